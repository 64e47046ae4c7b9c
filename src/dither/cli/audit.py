"""`dither audit ...`: test mechanisms, samplers and services, exactly where possible, and keep a history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from dither.audit import input_domains
from dither.audit.attacks.api import format_findings, service
from dither.audit.attacks.schedules import format_history, parse_interval, read_history, repeat_audit
from dither.audit.blackbox.api import privacy
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.claim_syntax import claim_text, import_object, parse_claim
from dither.audit.enumeration.api import TOLERANCE, ExactResult, exact
from dither.audit.enumeration.certify import Certificate, certify
from dither.audit.goodness_of_fit import fit
from dither.audit.neighbours import DistantPair, Pair, from_strategy
from dither.audit.stability import ClaimedFunction, InputSpace, ValueDomain, Vectors, transformation
from dither.audit.timing_channel import timing
from dither.audit.zoo import Member, catalogue, member
from dither.cli.options import AsJson
from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure, rational
from dither.privacy.mechanisms.distributions import DiscreteGaussianDistribution, DiscreteLaplaceDistribution

REFUTED = 1
NO_RESULT = 2
REPORT_SUFFIXES = (".html", ".htm", ".json")
DISTRIBUTIONS = {"laplace": DiscreteLaplaceDistribution, "gaussian": DiscreteGaussianDistribution}
DOMAINS = ("Numbers", "Choices", "Records", "Examples", "Vectors")
OUT, ERR = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)

Target = Annotated[str, typer.Argument(help="module:function, file.py:function, or 'module:maker(1, 2)'")]
ClaimText = Annotated[
    str,
    typer.Option(
        "--claim", help="the claimed loss: 'epsilon=1', 'epsilon=1, delta=1e-5', 'rho=1', 'order=8, epsilon=1'"
    ),
]
PairText = Annotated[str, typer.Option("--pair", help="two neighbouring inputs as JSON: '[0, 1]'")]
Alpha = Annotated[float, typer.Option(help="largest probability of rejecting a true claim")]
Seed = Annotated[int | None, typer.Option(min=0, help="seed of the auditor's random choices")]
NoBits = Annotated[bool, typer.Option("--no-bits", help="ignore what the low-order bits of floats reveal")]
ReportPath = Annotated[Path | None, typer.Option("--report", help="write a report: .html with plots, or .json")]

app = typer.Typer(
    help="Test mechanisms, samplers, services and the ledger.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def mechanism(
    target: Target,
    claim: ClaimText,
    neighbours: Annotated[
        str | None,
        typer.Option(help='pairs of inputs as JSON \'[[0, 1], {"a": 0, "b": 8, "steps": 8}]\', or module:list'),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="the inputs to take pairs from, if none are given: 'Numbers(0, 100)', 'Choices([0, 1])', "
            "'Records(0, 1)', 'Examples([[1, 2]])', 'Vectors(9, 0, 100, change=1)' for nine counts, columns as JSON "
            "'{\"age\": [0, 120]}', or module:domain"
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="largest number of runs")] = 1_000_000,
    alpha: Alpha = 0.01,
    sequential: Annotated[bool, typer.Option("--sequential", help="stop as soon as the evidence suffices")] = False,
    timed: Annotated[
        bool, typer.Option("--timed", help="treat the duration of each run as part of its output")
    ] = False,
    no_bits: NoBits = False,
    seed: Seed = None,
    report: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """Search for two inputs and an event that break a mechanism's claim; exit with 1 if there are any."""
    _check_report_path(report)
    stated, pairs = parse_claim(claim), None if neighbours is None else _parse_pairs(neighbours)
    mode = "sequential" if sequential else "fixed"
    with _progress_bar(as_json) as progress:
        result = privacy(
            import_object(target), stated, pairs, domain=None if domain is None else _parse_domain(domain),
            samples=samples, alpha=alpha, mode=mode, timed=timed, seed=seed, bits=not no_bits, progress=progress,
        )  # fmt: skip
    _print_result_and_exit(replace(result, mechanism=target), report, as_json)


@app.command()
def sampler(
    target: Target,
    distribution: Annotated[
        str, typer.Option(help="laplace:SCALE, gaussian:VARIANCE, or module:name (mass function or scipy distribution)")
    ],
    draws: Annotated[int, typer.Option(help="number of draws")] = 10_000_000,
    alpha: Alpha = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Test draws of a sampler f(size) against a distribution; exit with 1 if they do not follow it."""
    result = fit(import_object(target), _parse_distribution(distribution), draws=draws, alpha=alpha)
    if as_json:
        typer.echo(result.report())
    else:
        grid = Grid("test", "statistic", "p-value")
        for test in result.tests:
            grid.add_row(test.name, f"{test.statistic:.6g}", f"{test.p_value:.4g}")
        OUT.print(grid)
        OUT.print(str(result))
    _exit_if_refuted(result.refuted)


@app.command("exact")
def exact_command(
    target: Target,
    pair: PairText,
    claim: Annotated[
        str | None,
        typer.Option(help="the claimed loss; exit with 1 if it is refuted, with 2 if it is neither that nor certified"),
    ] = None,
    residual: Annotated[float, typer.Option(help="largest probability that may stay undecided")] = 1e-15,
    most_runs: Annotated[int, typer.Option(help="largest number of runs on each input")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Enumerate every execution of f(input, bits), or of a Dither mechanism, on two inputs; print rigorous bounds."""
    stated = None if claim is None else parse_claim(claim)
    result = exact(import_object(target), _parse_pair(pair), residual=residual, most_runs=most_runs)
    typer.echo(json.dumps(result.as_dict(stated), indent=2) if as_json else str(result))
    if stated is None:
        return
    verdict = result.verdict(stated)
    if not as_json:
        typer.echo(_describe_verdict(result, stated, verdict))
    if verdict != "certified":
        raise typer.Exit(REFUTED if verdict == "refuted" else NO_RESULT)


@app.command("transformation")
def transformation_command(
    target: Target,
    domain: Annotated[
        str | None,
        typer.Option(
            help="columns with values or bounds as JSON '{\"age\": [0, 120]}', or 'size, low, high' of vectors"
        ),
    ] = None,
    claim: Annotated[str | None, typer.Option(help="largest claimed change of the result between neighbours")] = None,
    pairs: Annotated[int, typer.Option(help="number of pairs of neighbours to try")] = 500,
    seed: Annotated[int, typer.Option(help="seed of the search")] = 0,
    as_json: AsJson = False,
) -> None:
    """Search for neighbours that change the result of f(data) by more than claimed; exit with 1 if there are any."""
    claimed = import_object(target)
    if not isinstance(claimed, ClaimedFunction):
        if domain is None or claim is None:
            raise InvalidParameter("a plain function needs --domain and --claim")
        claimed = ClaimedFunction(claimed, _parse_input_space(domain), float(rational(claim, "the claim")))
    result = transformation(claimed.function, claimed.space, claimed.claimed, pairs=pairs, seed=seed)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else str(result))
    _exit_if_refuted(result.refuted)


@app.command("timing")
def timing_command(
    target: Target,
    pair: PairText,
    runs: Annotated[int, typer.Option(help="runs on each input")] = 2000,
    alpha: Alpha = 0.01,
    as_json: AsJson = False,
) -> None:
    """Test if the duration of f(input) depends on which of two inputs it gets; exit with 1 if it does."""
    result = timing(import_object(target), *_parse_pair(pair), runs=runs, alpha=alpha)
    typer.echo(result.report() if as_json else str(result))
    _exit_if_refuted(result.refuted)


@app.command()
def zoo(
    name: Annotated[str | None, typer.Argument(help="one mechanism; by default list all")] = None,
    samples: Annotated[int, typer.Option(help="largest number of runs")] = 1_000_000,
    alpha: Alpha = 0.01,
    no_bits: NoBits = False,
    seed: Seed = None,
    report: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """List the correct and faulty mechanisms of the zoo, or audit one of them."""
    if name is None:
        return _print_members(catalogue(), as_json)
    _check_report_path(report)
    chosen = member(name)
    with _progress_bar(as_json) as progress:
        result = privacy(
            chosen.mechanism(seed), chosen.claim, chosen.neighbours, samples=samples, alpha=alpha, seed=seed,
            timed=chosen.timed, vectorised=not chosen.one_by_one, bits=not no_bits, progress=progress,
        )  # fmt: skip
    return _print_result_and_exit(replace(result, mechanism=f"dither.audit.zoo: {name}"), report, as_json)


@app.command("certify")
def certify_command(
    name: Annotated[
        str | None, typer.Argument(help="name of one mechanism, such as noisy_max; all if not given")
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="also certify scales from 64 on, which takes minutes")] = False,
    as_json: AsJson = False,
) -> None:
    """Certify Dither's own mechanisms by enumerating every execution of their code on canonical pairs.

    The exit code is 1 if one of them is not certified.
    """
    rows = certify(name, large=large)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print_certificates(rows)
    _exit_if_refuted(not all(row.certified for row in rows))


@app.command("service")
def service_command(
    url: Annotated[str, typer.Argument(help="URL of the gateway")],
    neighbour: Annotated[
        str | None, typer.Option(help="URL of a second instance whose data lack one person; its replies must be equal")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="number of noisy counts to compare with the neighbour's, at least 1000")
    ] = 0,
    dataset: Annotated[str | None, typer.Option(help="name of the dataset to attack, if there are several")] = None,
    family: Annotated[list[str] | None, typer.Option(help="run only attacks of this family; may be repeated")] = None,
    epsilon: Annotated[str, typer.Option(help="privacy loss of each query of an attack")] = "1/1000",
    as_json: AsJson = False,
) -> None:
    """Attack a running service with the analyst's token from the environment variable DITHER_TOKEN.

    DITHER_OTHER_TOKEN and DITHER_AUDITOR_TOKEN add attacks that need these accounts. The neighbour's tokens are in
    DITHER_NEIGHBOUR_TOKEN, DITHER_NEIGHBOUR_OTHER_TOKEN and DITHER_NEIGHBOUR_AUDITOR_TOKEN.
    """
    findings = service(url, neighbour, samples=samples, dataset=dataset, families=family or (), epsilon=epsilon)
    typer.echo(json.dumps([vars(each) for each in findings], indent=2) if as_json else format_findings(findings))
    _exit_if_refuted(any(finding.learned for finding in findings))


@app.command(context_settings={"ignore_unknown_options": True})
def schedule(
    command: Annotated[list[str] | None, typer.Argument(help="the audit to repeat, after --: service URL")] = None,
    every: Annotated[str, typer.Option(help="time between runs: 30m, 12h, 1d")] = "1d",
    history: Annotated[Path, typer.Option(help="file to which results are appended, one JSON line each")] = Path(
        "audit-history.jsonl"
    ),
    times: Annotated[int | None, typer.Option(help="stop after this many runs")] = None,
    show: Annotated[bool, typer.Option("--show", help="print the history and run nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat an audit and keep its history; exit with 1 if the last run found something."""
    wait = parse_interval(every)
    if show:
        runs = read_history(history)
        typer.echo(json.dumps([vars(each) for each in runs], indent=2) if as_json else "\n".join(format_history(runs)))
        return
    last = None
    for last in repeat_audit(command or [], history, wait, times):
        typer.echo(json.dumps(vars(last)) if as_json else format_history(read_history(history))[-1])
    _exit_if_refuted(last is not None and not last.passed)


# ---- helpers of the commands ---------------------------------------------------------------------------------------


def _print_result_and_exit(result: PrivacyResult, report: Path | None, as_json: bool) -> None:
    """Print the result, write the report, and exit."""
    if as_json:
        typer.echo(result.report(kind="json"))
    else:
        typer.echo(str(result))
    if report is not None:
        _write_report(result, report)
    _exit_if_refuted(result.refuted)


def _check_report_path(path: Path | None) -> None:
    """Check, before anything runs, that the report can be written."""
    if path is None:
        return
    if path.suffix.lower() not in REPORT_SUFFIXES:
        raise InvalidParameter(f"a report's name must end in {', '.join(REPORT_SUFFIXES)}; got {path.name!r}")
    if not path.parent.is_dir() or path.is_dir():
        raise InvalidParameter(
            f"cannot write a report to {path}: its directory does not exist, or it is a directory itself"
        )


def _write_report(result: PrivacyResult, path: Path) -> None:
    """Write the report; say why if the file cannot be written."""
    try:
        result.report(path)
    except OSError as error:
        raise InvalidParameter(f"cannot write the report {path}: {error.strerror}") from None


def _describe_verdict(result: ExactResult, stated: Loss, verdict: str) -> str:
    """Describe the verdict with its tolerance; for a refuted epsilon, give a lower bound on delta at it."""
    if verdict == "undecided":
        return f"UNDECIDED: {claim_text(stated)}; allow more runs (--most-runs) or less undecided mass (--residual)"
    text = f"{verdict.upper()}: {claim_text(stated)}, with a tolerance of {TOLERANCE:g}"
    if verdict == "refuted" and isinstance(stated, Pure | Approximate):
        least = float(result.delta_lower(stated.epsilon + Fraction(TOLERANCE)))
        return f"{text}; no delta below {least:.4g} is true at this epsilon"
    return text


def _print_certificates(rows: Sequence[Certificate]) -> None:
    grid = Grid("mechanism", "inputs", "claim", "at least", "at most", "undecided", "executions", "CPU s", "certified")
    for row in rows:
        least = "" if row.at_least is None else f"{row.at_least:.9f}"
        numbers = (f"{row.at_most:.9f}", f"{row.residual:.1e}", str(row.executions), f"{row.seconds:.2f}")
        grid.add_row(row.mechanism, row.pair, row.claim, least, *numbers, "yes" if row.certified else "NO")
    Console(highlight=False, width=200).print(grid)


def _exit_if_refuted(refuted: bool) -> None:
    """Exit with 1 if a claim was refuted."""
    if refuted:
        raise typer.Exit(REFUTED)


def _print_members(members: tuple[Member, ...], as_json: bool) -> None:
    """Print the mechanisms of the zoo."""
    if as_json:
        rows = [{"name": each.name, "claim": claim_text(each.claim), "private": each.private} for each in members]
        typer.echo(json.dumps(rows, indent=2))
        return
    grid = Grid("name", "claim holds", "true epsilon", "about")
    for each in members:
        true = "" if each.true_epsilon is None else f"{each.true_epsilon:.4g}"
        grid.add_row(each.name, "yes" if each.private else "no", true, each.about)
    OUT.print(grid)


def _parse_pairs(text: str) -> list[Pair]:
    """Parse pairs of inputs from JSON, or import a list or a Hypothesis strategy of them."""
    loaded = _parse_json(text) if text.lstrip().startswith(("[", "{")) else import_object(text)
    loaded = import_object(f"{text}()") if callable(loaded) else loaded
    if hasattr(loaded, "example"):  # a strategy of Hypothesis
        return from_strategy(loaded)
    pairs: Any = loaded if isinstance(loaded, list | tuple) and not isinstance(loaded, DistantPair) else [None]
    if any(isinstance(pair, str) or not hasattr(pair, "__len__") for pair in pairs):
        raise InvalidParameter("--neighbours must be a list of pairs, such as '[[0, 1], [10, 11]]'")
    return [_parse_distant_pair(pair) if isinstance(pair, dict) else pair for pair in pairs]


def _parse_distant_pair(given: dict[str, Any]) -> DistantPair:
    """Parse two inputs and the number of steps between them."""
    if set(given) != {"a", "b", "steps"}:
        names = ", ".join(map(repr, given)) or "nothing"
        raise InvalidParameter(f'a pair with steps must look like {{"a": 0, "b": 8, "steps": 8}}; got {names}')
    return DistantPair(**given)


def _parse_pair(text: str) -> tuple[Any, Any]:
    """Parse a pair of inputs."""
    inputs = _parse_json(text)
    if not isinstance(inputs, list) or len(inputs) != 2:
        raise InvalidParameter("--pair must be a JSON list of two inputs, such as '[0, 1]' or '[[0], [1]]'")
    return inputs[0], inputs[1]


def _parse_json(text: str) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidParameter(f"expected JSON: {error.msg}") from None


def _parse_domain(text: str) -> Any:
    """Parse the domain of a mechanism: one of `input_domains`, a space of inputs, or an object to import."""
    if text.partition("(")[0].strip() in DOMAINS:
        return import_object(f"{input_domains.__name__}:{text.strip()}")
    return import_object(text) if ":" in text and not text.lstrip().startswith("{") else _parse_input_space(text)


def _parse_input_space(text: str) -> InputSpace:
    """Parse the space of inputs of a transformation: columns as JSON, or vectors as 'size, low, high'."""
    if text.lstrip().startswith("{"):
        return ValueDomain(_parse_json(text))
    size, *bounds = [each.strip() for each in text.split(",")]
    if len(bounds) != 2 or not size.isdigit():
        raise InvalidParameter(
            "--domain must be JSON of columns, or the size, lower and upper bound of vectors: '100, 0, 1'"
        )
    low, high = (float(rational(bound, "a bound")) for bound in bounds)
    return Vectors(int(size), low, high)


def _parse_distribution(text: str) -> Any:
    """Parse laplace:SCALE or gaussian:VARIANCE, or import a distribution."""
    kind, _, parameter = text.partition(":")
    if kind in DISTRIBUTIONS:
        given = rational(parameter, "the distribution's parameter")
        if given <= 0:
            raise InvalidParameter(f"the distribution's parameter must be above 0, got {parameter}")
        return DISTRIBUTIONS[kind](given)
    return import_object(text)


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on the error stream if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERR, transient=True, disable=quiet or not ERR.is_terminal) as bar:
        task = bar.add_task("audit", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
