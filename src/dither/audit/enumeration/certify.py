"""Every mechanism of Dither on a pair of inputs that costs as much as it claims, or nearly: `dither audit certify`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dither.audit.enumeration.api import ExactResult, exact
from dither.audit.enumeration.sampler_models import executions
from dither.errors import DitherError, NotFound
from dither.loss import Approximate, Loss, Pure, Sensitivity
from dither.privacy.mechanisms import (
    AboveThreshold,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    GaussianThreshold,
    Geometric,
    LaplaceThreshold,
    Mechanism,
    NoisyMax,
    PartitionSelection,
    PublicThreshold,
    Quantiles,
    RandomizedResponse,
    Snapping,
    SparseVector,
    Staircase,
    TopK,
)

F = Fraction
RESIDUAL = 1e-15
ASIDE = 1e-15
RENYI_RESIDUAL = 1e-18  # the last output that only one input reaches is about a hundred times as likely
WITHIN = 1e-6


@dataclass(frozen=True)
class CertifiedCase:
    """A mechanism, two inputs, how many cells they may differ in, by 1 each, and why the claim is not reached if so."""

    mechanism: Mechanism
    a: tuple[int, ...]
    b: tuple[int, ...]
    cells: int = 1
    short: str = ""
    large: bool = False

    @property
    def claim(self) -> Loss:
        """What the mechanism says that this costs at most."""
        return self.mechanism.loss(Sensitivity.of(l0=self.cells, linf=1))


@dataclass(frozen=True)
class Certificate:
    """What the exact audit says about a case: bounds of its loss (epsilon, or rho), and what that took."""

    mechanism: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    claim: str
    certified: bool
    at_least: float | None
    at_most: float
    residual: float
    executions: int
    seconds: float

    @property
    def pair(self) -> str:
        """The two inputs."""
        return f"{list(self.a)}, {list(self.b)}"


CASES: tuple[CertifiedCase, ...] = (
    CertifiedCase(DiscreteLaplace(F(1)), (0,), (1,)),
    CertifiedCase(DiscreteLaplace(F(3)), (5,), (4,)),
    CertifiedCase(DiscreteGaussian(F(4)), (0,), (1,)),
    CertifiedCase(Geometric(F(1), -5, 5), (0,), (1,)),
    CertifiedCase(Staircase(F(1), 2, 1), (0,), (1,)),
    CertifiedCase(Snapping(F(1), 8), (0,), (1,)),
    CertifiedCase(RandomizedResponse(3, F(1, 2)), (0,), (1,)),
    CertifiedCase(NoisyMax(F(1)), (0, 10), (1, 9), 2),
    CertifiedCase(NoisyMax(F(3)), (0, 10), (1, 9), 2),
    CertifiedCase(ExponentialMechanism(F(1)), (0, 17), (1, 16), 2),
    CertifiedCase(TopK(2, F(1)), (0, 0, 17), (1, 1, 16), 3),
    CertifiedCase(AboveThreshold(0, 1, F(1, 50), F(1)), (-2,), (-1,)),
    CertifiedCase(
        AboveThreshold(0, 1, F(1, 2), F(1)), (0, 0), (1, 1), 2, short="the bound is met by long lists of scores"
    ),
    CertifiedCase(SparseVector(0, 1, F(1, 50), F(1), F(1)), (-2,), (-1,)),
    CertifiedCase(
        SparseVector(0, 1, F(1, 3), F(1, 2), F(1, 2)), (0,), (1,), short="the bound is met far from the threshold"
    ),
    CertifiedCase(Quantiles((F(1, 2),), F(1)), (20, 20, 1), (21, 20, 1), short="the bound is met by long grids"),
    CertifiedCase(Quantiles((F(1, 4), F(1, 2)), F(1)), (3, 4, 1), (4, 4, 1), short="the bound is met by long grids"),
    CertifiedCase(PartitionSelection(F(1), F(1, 100)), (0,), (1,)),
    CertifiedCase(PartitionSelection(F(1), F(1, 100)), (3,), (4,)),
    CertifiedCase(LaplaceThreshold(F(1), 5), (0,), (1,)),
    CertifiedCase(LaplaceThreshold(F(1), 5), (2,), (3,)),
    CertifiedCase(GaussianThreshold(F(4), 8), (0,), (1,)),
    CertifiedCase(GaussianThreshold(F(4), 8), (3,), (4,), short="two outputs say less than the noisy count"),
    CertifiedCase(PublicThreshold(F(1), 5), (3,), (4,)),
    CertifiedCase(DiscreteLaplace(F(64)), (0,), (1,), large=True),
    CertifiedCase(DiscreteLaplace(F(100)), (0,), (1,), large=True),
    CertifiedCase(DiscreteGaussian(F(4096)), (0,), (1,), large=True),
    CertifiedCase(DiscreteGaussian(F(10_000)), (0,), (1,), large=True),
)


def certificate(case: CertifiedCase) -> tuple[Certificate, ExactResult]:
    """The exact audit of one case."""
    started, before = time.process_time(), executions()
    pure = isinstance(case.claim, Pure | Approximate)
    result = exact(case.mechanism, (list(case.a), list(case.b)), residual=RESIDUAL if pure else RENYI_RESIDUAL)
    certified = result.residual <= RESIDUAL and result.certifies(case.claim, within=WITHIN, aside=ASIDE)
    made = Certificate(
        named(case.mechanism), case.a, case.b, shown(case.claim), certified,
        result.epsilon_lower() if isinstance(case.claim, Pure) else None, at_most(result, case.claim), result.residual,
        result.runs + executions() - before, time.process_time() - started,
    )  # fmt: skip
    return made, result


def at_most(result: ExactResult, claim: Loss) -> float:
    """The least epsilon, at the claim's delta, or rho that the result certifies."""
    match claim:
        case Pure():
            return result.epsilon_upper()
        case Approximate():
            return result.epsilon_upper(claim.delta)
        case _:
            return result.rho_upper()


def named(mechanism: Mechanism) -> str:
    """A mechanism with its parameters, rationals as people write them."""
    given = ", ".join(f"{field.name}={_plain(getattr(mechanism, field.name))}" for field in fields(mechanism))  # type: ignore[arg-type]
    return f"{mechanism.name}({given})"


def _plain(value: object) -> str:
    return f"({', '.join(map(_plain, value))})" if isinstance(value, tuple) else str(value)


def shown(claim: Loss) -> str:
    """A claim in few digits."""
    strength = f"epsilon {float(claim.epsilon):.7g}" if isinstance(claim, Pure | Approximate) else ""
    strength = strength or f"rho {float(getattr(claim, 'rho', 0)):.7g}"
    delta = float(getattr(claim, "delta", 0))
    return f"{strength}, delta {delta:.4g}" if delta else strength


def certificates(cases: Sequence[CertifiedCase] = CASES) -> Iterator[Certificate]:
    """One after another."""
    return (certificate(case)[0] for case in cases)


def certify(
    name: Annotated[str | None, typer.Argument(help="one mechanism, such as noisy_max; all if not given")] = None,
    large: Annotated[bool, typer.Option("--large", help="also scales from 64 on, for some minutes")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Certify Dither's own mechanisms by enumerating every execution of their code on canonical pairs."""
    cases = [case for case in CASES if name in (None, case.mechanism.name) and (large or not case.large)]
    if not cases:
        raise NotFound(f"no mechanism {name!r}; there are: {', '.join(sorted({c.mechanism.name for c in CASES}))}")
    made = list(certificates(cases))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in made], indent=2))
    else:
        _print(made)
    if not all(each.certified for each in made):
        raise DitherError("not every claim was certified")


def _print(made: Sequence[Certificate]) -> None:
    grid = Table("mechanism", "inputs", "claim", "at least", "at most", "undecided", "executions", "CPU s", "certified")
    for each in made:
        least = "" if each.at_least is None else f"{each.at_least:.9f}"
        row = (f"{each.at_most:.9f}", f"{each.residual:.1e}", str(each.executions), f"{each.seconds:.2f}")
        grid.add_row(each.mechanism, each.pair, each.claim, least, *row, "yes" if each.certified else "NO")
    Console(highlight=False, width=200).print(grid)
