"""The exact audit of every mechanism of Dither, on inputs whose loss is close to the claim."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from dither.audit.enumeration.api import ExactResult, exact
from dither.audit.enumeration.sampler_models import sampler_runs
from dither.errors import NotFound
from dither.loss import Approximate, Loss, Pure, Sensitivity
from dither.privacy.mechanisms import (
    BY_NAME,
    AboveThreshold,
    ColumnGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    GaussianThreshold,
    Geometric,
    LaplaceThreshold,
    Mechanism,
    NoisyMax,
    NoisyMaxQuantiles,
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
MAX_EXCLUDED = 1e-15
# Smaller, because the mass of outputs that enumeration reaches on one input only, which is excluded from Renyi and zCDP
# claims, is about a hundred times the residual.
RENYI_RESIDUAL = 1e-18
TOLERANCE = 1e-6


@dataclass(frozen=True)
class CertifiedCase:
    """A mechanism and two inputs to certify it on.

    The inputs differ by 1 in at most `cells` cells. `gap_reason` says why the loss stays below the claim, where it
    does. Cases that are `large` take minutes.
    """

    mechanism: Mechanism
    a: tuple[int, ...]
    b: tuple[int, ...]
    cells: int = 1
    gap_reason: str = ""
    large: bool = False

    @property
    def claim(self) -> Loss:
        """The loss that the mechanism claims for inputs that differ in `cells` cells by 1 each."""
        return self.mechanism.loss(Sensitivity.of(l0=self.cells, linf=1))


@dataclass(frozen=True)
class Certificate:
    """The exact audit's bounds of the loss of a case (epsilon, or rho), and the executions and CPU time it took."""

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
        """The two inputs as text."""
        return f"{list(self.a)}, {list(self.b)}"


LISTED_CASES: tuple[CertifiedCase, ...] = (
    CertifiedCase(DiscreteLaplace(F(1)), (0,), (1,)),
    CertifiedCase(DiscreteLaplace(F(3)), (5,), (4,)),
    CertifiedCase(DiscreteGaussian(F(4)), (0,), (1,)),
    CertifiedCase(ColumnGaussian((F(4),)), (0,), (1,)),
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
        AboveThreshold(0, 1, F(1, 2), F(1)), (0, 0), (1, 1), 2, gap_reason="the bound is met by long lists of scores"
    ),
    CertifiedCase(SparseVector(0, 1, F(1, 50), F(1), F(1)), (-2,), (-1,)),
    CertifiedCase(
        SparseVector(0, 1, F(1, 3), F(1, 2), F(1, 2)), (0,), (1,), gap_reason="the bound is met far from the threshold"
    ),
    CertifiedCase(Quantiles((F(1, 2),), F(1)), (20, 20, 1), (21, 20, 1), gap_reason="the bound is met by long grids"),
    CertifiedCase(
        Quantiles((F(1, 4), F(1, 2)), F(1)), (3, 4, 1), (4, 4, 1), gap_reason="the bound is met by long grids"
    ),
    CertifiedCase(NoisyMaxQuantiles((F(1, 2),), F(1)), (3, 1), (4, 1), gap_reason="the bound is met by long grids"),
    CertifiedCase(PartitionSelection(F(1), F(1, 100)), (0,), (1,)),
    CertifiedCase(PartitionSelection(F(1), F(1, 100)), (3,), (4,)),
    CertifiedCase(LaplaceThreshold(F(1), 5), (0,), (1,)),
    CertifiedCase(LaplaceThreshold(F(1), 5), (2,), (3,)),
    CertifiedCase(GaussianThreshold(F(4), 8), (0,), (1,)),
    CertifiedCase(GaussianThreshold(F(4), 8), (3,), (4,), gap_reason="two outputs say less than the noisy count"),
    CertifiedCase(PublicThreshold(F(1), 5), (3,), (4,)),
    CertifiedCase(DiscreteLaplace(F(64)), (0,), (1,), large=True),
    CertifiedCase(DiscreteLaplace(F(100)), (0,), (1,), large=True),
    CertifiedCase(DiscreteGaussian(F(4096)), (0,), (1,), large=True),
    CertifiedCase(DiscreteGaussian(F(10_000)), (0,), (1,), large=True),
)


def default_cases(listed: Sequence[CertifiedCase]) -> Iterator[CertifiedCase]:
    """Yield a case for each mechanism without one whose only parameter is its scale: the inputs 0 and 1, at scale 1."""
    known = {case.mechanism.name for case in listed}
    kinds: dict[str, Any] = {name: kind for name, kind in BY_NAME.items() if name not in known}
    for kind in kinds.values():
        if [field.name for field in fields(kind)] == ["scale"]:
            yield CertifiedCase(kind(F(1)), (0,), (1,))


CASES = (*LISTED_CASES, *default_cases(LISTED_CASES))


def certificate(case: CertifiedCase) -> tuple[Certificate, ExactResult]:
    """Run the exact audit of one case; return its certificate and the full result."""
    started, runs_before = time.process_time(), sampler_runs()
    claim = case.claim
    residual = RESIDUAL if isinstance(claim, Pure | Approximate) else RENYI_RESIDUAL
    result = exact(case.mechanism, (list(case.a), list(case.b)), residual=residual)
    certified = result.residual <= RESIDUAL and result.certifies(claim, TOLERANCE, MAX_EXCLUDED)
    row = Certificate(
        mechanism=describe_mechanism(case.mechanism),
        a=case.a,
        b=case.b,
        claim=describe_claim(claim),
        certified=certified,
        at_least=result.epsilon_lower() if isinstance(claim, Pure) else None,
        at_most=certified_bound(result, claim),
        residual=result.residual,
        executions=result.runs + sampler_runs() - runs_before,
        seconds=time.process_time() - started,
    )
    return row, result


def certified_bound(result: ExactResult, claim: Loss) -> float:
    """Return the least epsilon at the claim's delta, or the least rho, that the result certifies."""
    match claim:
        case Pure():
            return result.epsilon_upper()
        case Approximate():
            return result.epsilon_upper(claim.delta)
        case _:
            return result.rho_upper()


def describe_mechanism(mechanism: Mechanism) -> str:
    """Return a mechanism's name and parameters as text, with rationals written as 1/2."""
    names = [field.name for field in fields(mechanism)]  # type: ignore[arg-type]
    parameters = ", ".join(f"{name}={_format_value(getattr(mechanism, name))}" for name in names)
    return f"{mechanism.name}({parameters})"


def _format_value(value: object) -> str:
    return f"({', '.join(map(_format_value, value))})" if isinstance(value, tuple) else str(value)


def describe_claim(claim: Loss) -> str:
    """Return a claim as text, rounded to a few digits."""
    strength = f"epsilon {float(claim.epsilon):.7g}" if isinstance(claim, Pure | Approximate) else ""
    strength = strength or f"rho {float(getattr(claim, 'rho', 0)):.7g}"
    delta = float(getattr(claim, "delta", 0))
    return f"{strength}, delta {delta:.4g}" if delta else strength


def certificates(cases: Sequence[CertifiedCase] = CASES) -> Iterator[Certificate]:
    """Yield the certificate of each case."""
    return (certificate(case)[0] for case in cases)


def certify(name: str | None = None, *, large: bool = False) -> list[Certificate]:
    """Certify Dither's own mechanisms, or one of them, by enumerating every execution of their code on canonical pairs.

    With `large`, scales from 64 on are certified too, which takes minutes.
    """
    cases = [case for case in CASES if name in (None, case.mechanism.name) and (large or not case.large)]
    if not cases:
        raise NotFound(f"no mechanism {name!r}; there are: {', '.join(sorted({c.mechanism.name for c in CASES}))}")
    return list(certificates(cases))
