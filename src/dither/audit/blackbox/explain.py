"""Explain a result in plain text: the event, the counts, the claim's bound, and a program that counts again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp
from textwrap import indent
from typing import TYPE_CHECKING

from dither.audit.blackbox.inputs import as_code
from dither.audit.claim_syntax import json_number
from dither.audit.claims import tangent

if TYPE_CHECKING:
    from dither.audit.blackbox.report import Evidence, PrivacyResult

MATH_NAMES = ("exp", "inf", "isnan", "nan")
RECOUNT_RUNS = 100_000
BITS_NOTE = (
    "bits=False (on the command line --no-bits) leaves the low-order bits of floats out of the search, and audits the "
    "mechanism as if it computed with real numbers"
)


@dataclass(frozen=True)
class FloatLeak:
    """Two outputs whose low-order bits show the input: one of the first input, and the nearest one of the second."""

    first: float
    second: float | None

    def as_dict(self) -> dict[str, float | str | None]:
        """Return the outputs as plain JSON values, in decimal and in hexadecimal."""
        second = None if self.second is None else json_number(self.second)
        return {
            "first": json_number(self.first), "first_hex": self.first.hex(),
            "second": second, "second_hex": None if self.second is None else self.second.hex(),
        }  # fmt: skip


def explain_leak(evidence: Evidence) -> str:
    """Explain a leak by the bits of floats, with two outputs to look at."""
    leak = evidence.leak
    if leak is None:
        return ""
    seen = "none was" if evidence.hits[1] == 0 else f"{evidence.hits[1]:,} were"
    near = f"; the nearest output on the second input is {_float_text(leak.second)}" if leak.second is not None else ""
    return (
        "this is a floating-point leak, and says nothing of the amount of noise. The sum of an input and its noise is "
        "rounded to a float, and which floats can come out depends on the input. An output on the first input is "
        f"{_float_text(leak.first)}; of {evidence.runs[1]:,} outputs on the second, {seen} of that kind{near}. To mend "
        "it, compute on a fixed grid: round the input to it and add discrete Laplace or Gaussian noise. "
        f"{BITS_NOTE}"
    )


def explain_bound(result: PrivacyResult) -> str:
    """Compare the event's share on the first input with the most that the claim allows."""
    evidence, epsilon, extra = result.evidence, *_implied_loss(result)
    upper = exp(epsilon) * evidence.bounds_b[1] + extra
    if upper < evidence.bounds_a[0]:
        second, most = evidence.bounds_b[1], upper
        given = f"even if the second has {second:.6g}, the upper end of its range"
    else:
        second, most = evidence.probability_b, exp(epsilon) * evidence.probability_b + extra
        given = f"if the second has {second:.6g}"
    return f"at most exp({epsilon:.6g}) * {second:.6g} + {extra:.3g} = {min(most, 1.0):.6g} on the first input, {given}"


def _implied_loss(result: PrivacyResult) -> tuple[float, float]:
    """Return an epsilon and a delta that the claim implies, tight for the event."""
    return tangent(result.claim, max(result.evidence.probability_b, 1e-12), result.evidence.steps)


def recount_program(result: PrivacyResult) -> str:
    """Return a short Python program that draws again and counts the event."""
    evidence, condition = result.evidence, result.evidence.event.code
    inputs = [as_code(value) or f"result.evidence.{name}" for name, value in (("a", evidence.a), ("b", evidence.b))]
    draws = [f"f({each}, runs)" if result.vectorised else f"[f({each}) for _ in range(runs)]" for each in inputs]
    if condition:
        count = f"    return sum(1 for output in outputs if {condition}) / runs"
    else:
        count = "    return result.evidence.event.contains(outputs).mean()  # `result` is what audit.privacy returned"
    epsilon, extra = _implied_loss(result)
    body = "\n".join([
        f"runs = {min(RECOUNT_RUNS, max(evidence.runs)):_}", "def share(outputs):", count,
        f"p, q = share({draws[0]}), share({draws[1]})",
        f'print(p, "should be at most about", exp({epsilon!r}) * q + {extra!r})',
    ])  # fmt: skip
    return "\n".join([*_imports(body), _mechanism_line(result.mechanism), body])


def _mechanism_line(name: str) -> str:
    """Import the mechanism if its name says from where, a module or a file, else ask for it."""
    if re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", name):
        return f"from dither.audit.claim_syntax import import_object\nf = import_object({name!r})"
    match = re.fullmatch(r"([\w.]+):([A-Za-z_]\w*)", name)
    if match is None or match[1] == "__main__":
        return f"f = ...  # the mechanism that was audited: {name}"
    return f"from {match[1]} import {match[2]} as f"


def _imports(body: str) -> list[str]:
    names = [name for name in MATH_NAMES if re.search(rf"\b{name}\b", body)]
    lines = [f"from math import {', '.join(names)}"] if names else []
    lines += ["import numpy as np"] if "np." in body else []
    return lines + (["from dither.audit.blackbox.features import lowest_bit"] if "lowest_bit(" in body else [])


def indent_program(text: str) -> str:
    """Indent the lines of a program."""
    return indent(text, "    ")


def _float_text(value: float | None) -> str:
    return "" if value is None else f"{value!r} ({value.hex()})"
