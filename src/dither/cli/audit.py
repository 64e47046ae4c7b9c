"""`dither audit ...`: test mechanisms, samplers and services, exactly where that can be done, and keep a history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from dither.audit.attacks.api import service
from dither.audit.attacks.schedules import entries, format_result, interval, repeated
from dither.audit.blackbox.api import privacy
from dither.audit.blackbox.report import PrivacyResult
from dither.audit.claim_syntax import claim_text, import_object
from dither.audit.claim_syntax import parse_claim as parsed
from dither.audit.enumeration.api import ExactResult, exact
from dither.audit.enumeration.certify import certify
from dither.audit.goodness_of_fit import fit
from dither.audit.neighbours import Apart, Pair, generated
from dither.audit.stability import InputSpace, Stated, ValueDomain, Vectors, transformation
from dither.audit.timing_channel import timing
from dither.audit.zoo import Member, catalogue, member
from dither.errors import InvalidParameter
from dither.loss import Approximate, Loss, Pure, rational
from dither.privacy.mechanisms.distributions import DiscreteGaussianDistribution, DiscreteLaplaceDistribution

REFUTED = 1
ENDINGS = (".html", ".htm", ".json")
LAWS = {"laplace": DiscreteLaplaceDistribution, "gaussian": DiscreteGaussianDistribution}
OUT, ERR = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Place = Annotated[str, typer.Argument(help="module:function, file.py:function, or 'module:maker(1, 2)'")]
ClaimText = Annotated[
    str,
    typer.Option(
        "--claim", help="what it promises: 'epsilon=1', 'epsilon=1, delta=1e-5', 'rho=1', 'order=8, epsilon=1'"
    ),
]
PairText = Annotated[str, typer.Option("--pair", help="two neighbouring inputs as JSON: '[0, 1]'")]
Alpha = Annotated[float, typer.Option(help="the chance of refuting what is right")]
Seed = Annotated[int | None, typer.Option(min=0, help="the seed of the auditor's own choices")]
NoBits = Annotated[bool, typer.Option("--no-bits", help="do not look at the last digits of floats")]
ReportPath = Annotated[Path | None, typer.Option("--report", help="write a report: .html with plots, or .json")]

app = typer.Typer(
    help="Test mechanisms, samplers, services and the ledger.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def mechanism(
    place: Place,
    claim: ClaimText,
    neighbours: Annotated[
        str | None,
        typer.Option(
            help='pairs of inputs as JSON \'[[0, 1], {"a": 0, "b": 8, "steps": 8}]\', or module:list; '
            "standard ones if not given"
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="how often it may be run")] = 1_000_000,
    alpha: Alpha = 0.01,
    sequential: Annotated[bool, typer.Option("--sequential", help="stop as soon as the evidence suffices")] = False,
    timed: Annotated[bool, typer.Option("--timed", help="the time of each run is part of its output")] = False,
    no_bits: NoBits = False,
    seed: Seed = None,
    report: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """Look for two inputs and an event that break a mechanism's claim; exit with 1 if there are."""
    _check_report(report)
    stated, pairs = parsed(claim), None if neighbours is None else _pairs(neighbours)
    mode = "sequential" if sequential else "fixed"
    with _bar(as_json) as progress:
        result = privacy(
            import_object(place), stated, pairs, samples=samples, alpha=alpha, mode=mode, timed=timed, seed=seed,
            bits=not no_bits, progress=progress,
        )  # fmt: skip
    _finish(result, report, as_json)


@app.command()
def sampler(
    place: Place,
    law: Annotated[
        str, typer.Option(help="laplace:SCALE, gaussian:VARIANCE, or module:law (mass function or scipy law)")
    ],
    draws: Annotated[int, typer.Option(help="how many draws")] = 10_000_000,
    alpha: Alpha = 1e-6,
    as_json: AsJson = False,
) -> None:
    """Test draws of a sampler f(size) against its law; exit with 1 if they do not follow it."""
    result = fit(import_object(place), _law(law), draws=draws, alpha=alpha)
    if as_json:
        typer.echo(result.report())
    else:
        grid = Grid("test", "statistic", "p-value")
        for test in result.tests:
            grid.add_row(test.name, f"{test.statistic:.6g}", f"{test.p_value:.4g}")
        OUT.print(grid)
        OUT.print(str(result))
    _leave(result.refuted)


@app.command("exact")
def exactly(
    place: Place,
    pair: PairText,
    claim: Annotated[str | None, typer.Option(help="what it promises; exit with 1 if that is surely false")] = None,
    residual: Annotated[float, typer.Option(help="how much probability may stay undecided")] = 1e-15,
    most_runs: Annotated[int, typer.Option(help="how often the code may be run on each input")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Enumerate every execution of f(input, bits), or of a mechanism of Dither, on two inputs: rigorous bounds."""
    stated = None if claim is None else parsed(claim)
    result = exact(import_object(place), _pair(pair), residual=residual, most_runs=most_runs)
    typer.echo(json.dumps(result.as_dict(stated), indent=2) if as_json else str(result))
    if stated is None:
        return
    certified = result.certifies(stated) and not _refuted(result, stated)
    if not as_json:
        typer.echo(_verdict(result, stated, certified))
    _leave(not certified)


@app.command("transformation")
def transformed(
    place: Place,
    domain: Annotated[
        str | None,
        typer.Option(help="columns with values or ends as JSON '{\"age\": [0, 120]}', or 'size, low, high' of vectors"),
    ] = None,
    claim: Annotated[str | None, typer.Option(help="the most that the result may move between neighbours")] = None,
    pairs: Annotated[int, typer.Option(help="how many pairs of neighbours are tried")] = 500,
    seed: Annotated[int, typer.Option(help="the seed of the search")] = 0,
    as_json: AsJson = False,
) -> None:
    """Search for neighbours that move the result of f(data) by more than it claims; exit with 1 if there are."""
    thing = import_object(place)
    if not isinstance(thing, Stated):
        if domain is None or claim is None:
            raise InvalidParameter("a plain function needs --domain and --claim")
        thing = Stated(thing, _space(domain), float(rational(claim, "the claim")))
    result = transformation(thing.function, thing.space, thing.claimed, pairs=pairs, seed=seed)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else str(result))
    _leave(result.refuted)


@app.command("timing")
def time_channel(
    place: Place,
    pair: PairText,
    runs: Annotated[int, typer.Option(help="runs on each input")] = 2000,
    alpha: Alpha = 0.01,
    as_json: AsJson = False,
) -> None:
    """Ask whether the time of f(input) depends on which of two inputs it gets; exit with 1 if it does."""
    result = timing(import_object(place), *_pair(pair), runs=runs, alpha=alpha)
    typer.echo(result.report() if as_json else str(result))
    _leave(result.refuted)


@app.command()
def zoo(
    name: Annotated[str | None, typer.Argument(help="one member; all of them are listed if not given")] = None,
    samples: Annotated[int, typer.Option(help="how often it may be run")] = 1_000_000,
    alpha: Alpha = 0.01,
    no_bits: NoBits = False,
    seed: Seed = None,
    report: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """List the right and wrong mechanisms of the zoo, or audit one of them."""
    if name is None:
        return _listed(catalogue(), as_json)
    _check_report(report)
    animal = member(name)
    with _bar(as_json) as progress:
        result = privacy(
            animal.mechanism(seed), animal.claim, animal.neighbours, samples=samples, alpha=alpha, seed=seed,
            timed=animal.timed, vectorised=not animal.one_by_one, bits=not no_bits, progress=progress,
        )  # fmt: skip
    return _finish(result, report, as_json)


app.command()(certify)


@app.command("service")
@wraps(service)
def attacked(*given: Any, **options: Any) -> None:
    """Attack a running service."""
    _leave(any(finding.learned for finding in service(*given, **options)))


@app.command(context_settings={"ignore_unknown_options": True})
def schedule(
    command: Annotated[list[str] | None, typer.Argument(help="the audit to repeat, after --: service URL")] = None,
    every: Annotated[str, typer.Option(help="how long to wait between runs: 30m, 12h, 1d")] = "1d",
    history: Annotated[Path, typer.Option(help="where results are added, one JSON line each")] = Path(
        "audit-history.jsonl"
    ),
    times: Annotated[int | None, typer.Option(help="stop after this many runs")] = None,
    show: Annotated[bool, typer.Option("--show", help="print the history and run nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat an audit and keep its history; exit with 1 if the last run found something."""
    wait = interval(every)
    if show:
        kept = entries(history)
        typer.echo(json.dumps([vars(each) for each in kept], indent=2) if as_json else "\n".join(format_result(kept)))
        return
    last = None
    for last in repeated(command or [], history, wait, times):
        typer.echo(json.dumps(vars(last)) if as_json else format_result(entries(history))[-1])
    _leave(last is not None and not last.passed)


# ---- what the commands share ---------------------------------------------------------------------------------------


def _finish(result: PrivacyResult, report: Path | None, as_json: bool) -> None:
    if as_json:
        typer.echo(result.report(kind="json"))
    else:
        typer.echo(str(result))
        typer.echo(str(result.evidence))
    if report is not None:
        _written(result, report)
    _leave(result.refuted)


def _check_report(path: Path | None) -> None:
    """Before anything is run: is there a place for the report?"""
    if path is None:
        return
    if path.suffix.lower() not in ENDINGS:
        raise InvalidParameter(f"a report ends in {', '.join(ENDINGS)}; got {path.name!r}")
    if not path.parent.is_dir() or path.is_dir():
        raise InvalidParameter(f"no report can be written to {path}: there is no such directory, or only a directory")


def _written(result: PrivacyResult, path: Path) -> None:
    try:
        result.report(path)
    except OSError as error:
        raise InvalidParameter(f"the report {path} cannot be written: {error.strerror}") from None


def _refuted(result: ExactResult, stated: Loss) -> bool:
    return isinstance(stated, Pure | Approximate) and result.refutes(stated)


def _verdict(result: ExactResult, stated: Loss, certified: bool) -> str:
    """In words; what is surely false comes with the least delta that would make it true."""
    if _refuted(result, stated):
        least = float(result.delta_lower(rational(getattr(stated, "epsilon", 0))))
        return f"REFUTED: {claim_text(stated)}; no delta below {least:.4g} is true at this epsilon"
    return f"{'CERTIFIED' if certified else 'not certified'}: {claim_text(stated)}"


def _leave(refuted: bool) -> None:
    if refuted:
        raise typer.Exit(REFUTED)


def _listed(members: tuple[Member, ...], as_json: bool) -> None:
    if as_json:
        rows = [{"name": each.name, "claim": claim_text(each.claim), "private": each.private} for each in members]
        typer.echo(json.dumps(rows, indent=2))
        return
    grid = Grid("name", "claim holds", "true epsilon", "about")
    for each in members:
        true = "" if each.true_epsilon is None else f"{each.true_epsilon:.4g}"
        grid.add_row(each.name, "yes" if each.private else "no", true, each.about)
    OUT.print(grid)


def _pairs(text: str) -> list[Pair]:
    listed = _json(text) if text.lstrip().startswith(("[", "{")) else import_object(text)
    listed = import_object(f"{text}()") if callable(listed) else listed
    if hasattr(listed, "example"):  # a strategy of Hypothesis
        return generated(listed)
    pairs: Any = listed if isinstance(listed, list | tuple) and not isinstance(listed, Apart) else [None]
    if any(isinstance(pair, str) or not hasattr(pair, "__len__") for pair in pairs):
        raise InvalidParameter("neighbours are a list of pairs, such as '[[0, 1], [10, 11]]'")
    return [_apart(pair) if isinstance(pair, dict) else pair for pair in pairs]


def _apart(given: dict[str, Any]) -> Apart:
    """Two inputs and how many steps lead from the one to the other."""
    if set(given) != {"a", "b", "steps"}:
        names = ", ".join(map(repr, given)) or "nothing"
        raise InvalidParameter(f'inputs some steps apart are {{"a": 0, "b": 8, "steps": 8}}; got {names}')
    return Apart(**given)


def _pair(text: str) -> tuple[Any, Any]:
    read = _json(text)
    if not isinstance(read, list) or len(read) != 2:
        raise InvalidParameter("a pair is a JSON list of two inputs, such as '[0, 1]' or '[[0], [1]]'")
    return read[0], read[1]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidParameter(f"not JSON: {error.msg}") from None


def _space(text: str) -> InputSpace:
    if text.lstrip().startswith("{"):
        return ValueDomain(_json(text))
    size, *ends = [each.strip() for each in text.split(",")]
    if len(ends) != 2 or not size.isdigit():
        raise InvalidParameter("a domain is JSON of columns, or the size, low and high end of vectors: '100, 0, 1'")
    low, high = (float(rational(end, "an end")) for end in ends)
    return Vectors(int(size), low, high)


def _law(text: str) -> Any:
    kind, _, parameter = text.partition(":")
    if kind in LAWS:
        given = rational(parameter, "the parameter of the law")
        if given <= 0:
            raise InvalidParameter(f"the parameter of the law must be above 0, got {parameter}")
        return LAWS[kind](given)
    return import_object(text)


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on the error stream, if someone looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERR, transient=True, disable=quiet or not ERR.is_terminal) as bar:
        task = bar.add_task("audit", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
