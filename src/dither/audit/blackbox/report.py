"""What an audit found, as objects, as JSON and as a page with plots that opens without any other file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from math import exp, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from dither.audit.blackbox.events import Event
from dither.audit.claim_syntax import claim_text, finite
from dither.audit.claims import LARGEST_STRENGTH, ceiling, delta, strength
from dither.audit.confidence import Level
from dither.audit.neighbours import fingerprint
from dither.errors import InvalidParameter
from dither.loss import Loss, to_json

Points = tuple[tuple[float, float], ...]

WIDTH, HEIGHT, MARGIN = 560, 240, 42
# Of the examples of outputs, so many are named in a line of text.
MOST_NAMED = 3


@dataclass(frozen=True)
class Evidence:
    """Two inputs, an event, how likely it is on each, and its hits in how many runs of each.

    There are examples of its outputs, if words do not tell them. More than one step apart are inputs of which the claim
    allows what it allows neighbours, so many times over. If there are levels, the p-value is of the weight of their
    hits: of rarer and commoner outputs around the event too.
    """

    a: Any
    b: Any
    event: Event
    probability_a: float
    bounds_a: tuple[float, float]
    probability_b: float
    bounds_b: tuple[float, float]
    p_value: float
    hits: tuple[int, int]
    runs: tuple[int, int]
    examples: tuple[str, ...] = ()
    steps: int = 1
    levels: tuple[Level, ...] = ()

    def __str__(self) -> str:
        first, second = inputs(self.a, self.b)
        second += f", {self.steps} steps away," if self.steps > 1 else ""
        such = f", such as {' or '.join(self.examples[:MOST_NAMED])}" if self.examples else ""
        return (
            f"on {first} the event has probability {self.probability_a:.6g} "
            f"[{self.bounds_a[0]:.6g}, {self.bounds_a[1]:.6g}]; on {second} {self.probability_b:.6g} "
            f"[{self.bounds_b[0]:.6g}, {self.bounds_b[1]:.6g}]; the event: {self.event}{such}"
        )


@dataclass(frozen=True)
class Plots:
    """What the page draws: outputs on both inputs, the event, and the loss curve that was seen."""

    name: str = ""
    places: tuple[float, ...] = ()
    density_a: tuple[float, ...] = ()
    density_b: tuple[float, ...] = ()
    share_inside: tuple[float, ...] = ()
    curve: Points = ()


@dataclass(frozen=True)
class PrivacyResult:
    """The verdict on a claim: refuted with a counterexample, or not refuted with what would have been found."""

    claim: Loss
    mode: str
    alpha: float
    refuted: bool
    p_value: float
    epsilon_lower: float
    strength_lower: float
    evidence: Evidence
    samples: int
    pairs_tried: int
    detectable: float
    cpu_seconds: float
    plots: Plots = field(default_factory=Plots, repr=False)

    @property
    def counterexample(self) -> Evidence | None:
        """The evidence, if it refutes the claim."""
        return self.evidence if self.refuted else None

    def __str__(self) -> str:
        head = "REFUTED" if self.refuted else "not refuted"
        found = f"epsilon is at least {self.epsilon_lower:.4g} at delta {delta(self.claim):.3g}"
        kept = "no strength would have been found by an event like this"
        if self.detectable < LARGEST_STRENGTH:
            kept = f"a true strength of {self.detectable:.4g} would have been found 9 times in 10 by an event like this"
        tail = f"p = {self.p_value:.3g}" if self.refuted else kept
        return f"{head}: {claim_text(self.claim)}; {found} ({100 * (1 - self.alpha):g}% sure); {tail}; {self.samples} samples"

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "claim": to_json(self.claim),
            "mode": self.mode,
            "alpha": self.alpha,
            "refuted": self.refuted,
            "p_value": self.p_value,
            "epsilon_lower": finite(self.epsilon_lower),
            "strength_lower": self.strength_lower,
            "samples": self.samples,
            "pairs_tried": self.pairs_tried,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "power": {"detectable_strength": finite(self.detectable), "power": 0.9},
            "evidence": _evidence_dict(self.evidence),
            "curve": [list(point) for point in self.plots.curve],
        }

    def report(self, path: str | Path | None = None, *, kind: str | None = None) -> str:
        """The report as HTML or JSON (by the path's ending, else `kind`, else HTML); written to `path` if given."""
        chosen = kind or ("json" if path is not None and Path(path).suffix.lower() == ".json" else "html")
        if chosen not in ("html", "json"):
            raise InvalidParameter(f"a report is 'html' or 'json', not {chosen!r}")
        text = json.dumps(self.as_dict(), indent=2, default=str) if chosen == "json" else page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def page(result: PrivacyResult) -> str:
    """The result as one self-contained page."""
    verdict = "refuted" if result.refuted else "not refuted"
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _rows(result))
    figures = _densities(result.plots) + _loss_curve(result)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Audit: {verdict}</title><style>{STYLE}</style>"
        f"<h1 class='{'bad' if result.refuted else 'good'}'>Claim {escape(claim_text(result.claim))}: {verdict}</h1>"
        f"<p>{escape(str(result))}</p><table>{rows}</table>{figures}</html>"
    )


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "th{text-align:left;vertical-align:top;padding-right:1em}td{overflow-wrap:anywhere}.bad{color:#a11}.good{color:#164}"
    "figure{margin:1.5em 0}figcaption{color:#555}text{font:11px sans-serif;fill:#444}"
)


def _rows(result: PrivacyResult) -> list[tuple[str, str]]:
    found = result.evidence
    first, second = inputs(found.a, found.b)
    return [
        ("First input", first), ("Second input", second),
        *([("Steps between them", f"{found.steps}, over which losses add up")] if found.steps > 1 else []),
        ("Event", str(found.event)),
        *([("Outputs in it, such as", "; ".join(found.examples))] if found.examples else []),
        ("Probability on the first", f"{found.probability_a:.8g} in {_interval(found.bounds_a)}"),
        ("Hits on the first", f"{found.hits[0]:,} in {found.runs[0]:,} runs"),
        ("Probability on the second", f"{found.probability_b:.8g} in {_interval(found.bounds_b)}"),
        ("Hits on the second", f"{found.hits[1]:,} in {found.runs[1]:,} runs"),
        *([("Judged by weight", "; ".join(map(_level, found.levels)))] if found.levels else []),
        ("p-value", f"{found.p_value:.4g}"), ("Epsilon at least", f"{result.epsilon_lower:.6g}"),
        ("Would have been found (power 0.9)", f"{result.detectable:.6g}"),
        ("Family-wise error", f"{result.alpha:g} over all neighbours, events and epsilons ({result.mode})"),
        ("Samples", str(result.samples)), ("Pairs tried", str(result.pairs_tried)),
    ]  # fmt: skip


def _level(level: Level) -> str:
    return f"{level.weight}: {level.hits_a:,} and {level.hits_b:,} hits ({level.within})"


def _interval(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:.8g}, {bounds[1]:.8g}]"


def _evidence_dict(found: Evidence) -> dict[str, Any]:
    first, second = inputs(found.a, found.b)
    return {
        "a": first, "b": second, "steps": found.steps, "event": str(found.event), "p_value": found.p_value,
        "probability_a": found.probability_a, "bounds_a": list(found.bounds_a),
        "probability_b": found.probability_b, "bounds_b": list(found.bounds_b), "examples": list(found.examples),
        "hits": list(found.hits), "runs": list(found.runs), "levels": [vars(level) for level in found.levels],
    }  # fmt: skip


def inputs(a: Any, b: Any) -> tuple[str, str]:
    """Two inputs in words; of long ones, where they differ.

    >>> inputs([0] * 1000, [0] * 999 + [1])[1][-21:]
    '0, 0... with 1 at 999'
    """
    first, second = briefly(a), briefly(b)
    if first != second or not isinstance(a, list | tuple | np.ndarray) or len(a) == 0:
        return first, second
    if len(a) != len(b):
        return f"{first} ({len(a)} entries)", f"{second} ({len(b)} entries)"
    place = next((at for at in range(len(a)) if fingerprint(a[at]) != fingerprint(b[at])), 0)
    inner = inputs(a[place], b[place])
    return f"{first} with {inner[0]} at {place}", f"{second} with {inner[1]} at {place}"


def briefly(value: Any) -> str:
    """A value in at most 200 characters."""
    value = value.item() if isinstance(value, np.generic) else value
    text = np.array2string(value, threshold=20) if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _densities(plots: Plots) -> str:
    """Two step curves, and the event shaded by how much of each bin lies inside it."""
    if len(plots.places) < 2:
        return ""
    top = max(*plots.density_a, *plots.density_b, 1e-12)
    low, high = plots.places[0], plots.places[-1]
    across = [_scale(place, low, high, MARGIN, WIDTH - 10) for place in plots.places]
    ends = [*across[1:], across[-1]]
    shade = "".join(
        f"<rect x='{across[i]:.1f}' y='10' width='{max(ends[i] - across[i], 0.5):.1f}' height='{HEIGHT - 40}' "
        f"fill='#fc6' fill-opacity='{share:.2f}'/>"
        for i, share in enumerate(plots.share_inside) if share > 0.01
    )  # fmt: skip
    lines = "".join(
        _line([(across[i], _scale(value, 0, top, HEIGHT - 30, 10)) for i, value in enumerate(density)], colour)
        for density, colour in ((plots.density_a, "#1565c0"), (plots.density_b, "#c62828"))
    )
    labels = _label(MARGIN, HEIGHT - 12, f"{low:.4g}") + _label(WIDTH - 60, HEIGHT - 12, f"{high:.4g}")
    return _figure(
        shade + lines + labels, f"{plots.name} on the first input (blue), the second (red), the event (shaded)"
    )


def _loss_curve(result: PrivacyResult) -> str:
    """The smallest delta for each epsilon that the runs suggest, against what the claim allows."""
    points = [(x, y) for x, y in result.plots.curve if y > 0 and isfinite(y)]
    if len(points) < 2:
        return ""
    xs = np.array([x for x, _ in points])
    allowed = [(float(x), _claimed_delta(result, float(x))) for x in xs]
    floor = min(y for _, y in points)
    spans = (float(xs[0]), float(xs[-1])), (log10(max(floor, 1e-9)), 0.0)
    seen, stated = (
        [
            (_scale(x, *spans[0], MARGIN, WIDTH - 10), _scale(log10(max(y, floor)), *spans[1], HEIGHT - 30, 10))
            for x, y in line
        ]
        for line in (points, allowed)
    )
    labels = _label(MARGIN, HEIGHT - 12, f"epsilon {xs[0]:.3g}") + _label(WIDTH - 60, HEIGHT - 12, f"{xs[-1]:.3g}")
    labels += _label(2, 18, "delta 1") + _label(2, HEIGHT - 30, f"{floor:.0e}")
    caption = "The loss curve seen (blue) and the one claimed (red); blue above red is a violation"
    return _figure(_line(seen, "#1565c0") + _line(stated, "#c62828") + labels, caption)


def _claimed_delta(result: PrivacyResult, epsilon: float) -> float:
    grid = np.geomspace(1e-9, 1, 300)
    limit = ceiling(result.claim, strength(result.claim), result.evidence.steps)
    return float(max(np.max(limit(grid) - exp(epsilon) * grid), 1e-12))


def _figure(inside: str, caption: str) -> str:
    picture = (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img' aria-label='{escape(caption)}'>{inside}</svg>"
    )
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _line(points: list[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>"


def _label(x: float, y: float, text: str) -> str:
    return f"<text x='{x}' y='{y}'>{escape(text)}</text>"


def _scale(value: float, low: float, high: float, first: float, last: float) -> float:
    # Halved, as the distance of two numbers may be more than a number can be.
    span = high / 2 - low / 2
    return first + (last - first) * ((value / 2 - low / 2) / span if span > 0 else 0.5)
