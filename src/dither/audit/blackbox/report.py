"""The result of an audit: as objects, as JSON and as a self-contained HTML page with plots."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from math import exp, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from dither.audit.blackbox.events import Event
from dither.audit.claim_syntax import claim_text, json_number
from dither.audit.claims import MAX_STRENGTH, ceiling, delta, strength
from dither.audit.confidence import Level
from dither.audit.neighbours import fingerprint
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Loss, to_json

Points = tuple[tuple[float, float], ...]

WIDTH, HEIGHT, MARGIN = 560, 240, 42
# A line of text names at most this many examples of outputs.
MAX_NAMED_EXAMPLES = 3


@dataclass(frozen=True)
class Evidence:
    """Two inputs, an event, its estimated probability, hits and runs on each input.

    `examples` lists some outputs in the event, unless a person can check the event by hand from its description.
    `steps` is the number of steps between the inputs, over which losses add up. If there are `levels`, the p-value is
    of their weighted hits, which include rarer and commoner outputs around the event.
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
        first, second = describe_inputs(self.a, self.b)
        second += f", {self.steps} steps away," if self.steps > 1 else ""
        such = f", such as {' or '.join(self.examples[:MAX_NAMED_EXAMPLES])}" if self.examples else ""
        return (
            f"on {first} the event has probability {self.probability_a:.6g} "
            f"[{self.bounds_a[0]:.6g}, {self.bounds_a[1]:.6g}]; on {second} {self.probability_b:.6g} "
            f"[{self.bounds_b[0]:.6g}, {self.bounds_b[1]:.6g}]; the event: {self.event}{such}"
        )


@dataclass(frozen=True)
class Plots:
    """The data of the page's plots: densities of outputs on both inputs, the event, and the estimated loss curve."""

    name: str = ""
    bin_starts: tuple[float, ...] = ()
    density_a: tuple[float, ...] = ()
    density_b: tuple[float, ...] = ()
    share_inside: tuple[float, ...] = ()
    curve: Points = ()


@dataclass(frozen=True)
class PrivacyResult:
    """The verdict on a claim: refuted with a counterexample, or not refuted with the strength that it could detect."""

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
        verdict = "REFUTED" if self.refuted else "not refuted"
        bound = f"epsilon is at least {self.epsilon_lower:.4g} at delta {delta(self.claim):.3g}"
        confidence = f"{100 * (1 - self.alpha):g}% confidence"
        if self.refuted:
            support = f"p = {self.p_value:.3g}"
        elif self.detectable < MAX_STRENGTH:
            name = "rho" if isinstance(self.claim, ZCDP) else "epsilon"
            support = f"a similar event would refute a true {name} of {self.detectable:.4g} with probability 0.9"
        else:
            support = "a similar event would refute no strength with probability 0.9"
        return f"{verdict}: {claim_text(self.claim)}; {bound} ({confidence}); {support}; {self.samples} samples"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "claim": to_json(self.claim),
            "mode": self.mode,
            "alpha": self.alpha,
            "refuted": self.refuted,
            "p_value": self.p_value,
            "epsilon_lower": json_number(self.epsilon_lower),
            "strength_lower": self.strength_lower,
            "samples": self.samples,
            "pairs_tried": self.pairs_tried,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "power": {"detectable_strength": json_number(self.detectable), "power": 0.9},
            "evidence": _evidence_dict(self.evidence),
            "curve": [list(point) for point in self.plots.curve],
        }

    def report(self, path: str | Path | None = None, *, kind: str | None = None) -> str:
        """Return the report as HTML or JSON and write it to `path`, if given.

        The format is `kind`, or by default JSON for a path ending in .json and HTML otherwise.
        """
        chosen = kind or ("json" if path is not None and Path(path).suffix.lower() == ".json" else "html")
        if chosen not in ("html", "json"):
            raise InvalidParameter(f"kind must be 'html' or 'json', got {chosen!r}")
        text = json.dumps(self.as_dict(), indent=2, default=str) if chosen == "json" else html_page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def html_page(result: PrivacyResult) -> str:
    """Return the result as one self-contained HTML page."""
    verdict = "refuted" if result.refuted else "not refuted"
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _table_rows(result))
    figures = _density_figure(result.plots) + _loss_figure(result)
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


def _table_rows(result: PrivacyResult) -> list[tuple[str, str]]:
    """Return the names and texts of the rows of the page's table."""
    evidence = result.evidence
    first, second = describe_inputs(evidence.a, evidence.b)
    return [
        ("First input", first), ("Second input", second),
        *([("Steps between them", f"{evidence.steps}, over which losses add up")] if evidence.steps > 1 else []),
        ("Event", str(evidence.event)),
        *([("Examples of outputs in it", "; ".join(evidence.examples))] if evidence.examples else []),
        ("Probability on the first", f"{evidence.probability_a:.8g} in {_interval_text(evidence.bounds_a)}"),
        ("Hits on the first", f"{evidence.hits[0]:,} in {evidence.runs[0]:,} runs"),
        ("Probability on the second", f"{evidence.probability_b:.8g} in {_interval_text(evidence.bounds_b)}"),
        ("Hits on the second", f"{evidence.hits[1]:,} in {evidence.runs[1]:,} runs"),
        *([("Hits by weight", "; ".join(map(_level_text, evidence.levels)))] if evidence.levels else []),
        ("p-value", f"{evidence.p_value:.4g}"), ("Epsilon at least", f"{result.epsilon_lower:.6g}"),
        ("Detectable strength (power 0.9)", f"{result.detectable:.6g}"),
        ("Family-wise error", f"{result.alpha:g} over all neighbours, events and epsilons ({result.mode})"),
        ("Samples", str(result.samples)), ("Pairs tried", str(result.pairs_tried)),
    ]  # fmt: skip


def _level_text(level: Level) -> str:
    return f"{level.weight}: {level.hits_a:,} and {level.hits_b:,} hits ({level.within})"


def _interval_text(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:.8g}, {bounds[1]:.8g}]"


def _evidence_dict(evidence: Evidence) -> dict[str, Any]:
    first, second = describe_inputs(evidence.a, evidence.b)
    return {
        "a": first, "b": second, "steps": evidence.steps, "event": str(evidence.event), "p_value": evidence.p_value,
        "probability_a": evidence.probability_a, "bounds_a": list(evidence.bounds_a),
        "probability_b": evidence.probability_b, "bounds_b": list(evidence.bounds_b),
        "examples": list(evidence.examples), "hits": list(evidence.hits), "runs": list(evidence.runs),
        "levels": [vars(level) for level in evidence.levels],
    }  # fmt: skip


def describe_inputs(a: Any, b: Any) -> tuple[str, str]:
    """Describe two inputs; for long ones, name an entry in which they differ.

    >>> describe_inputs([0] * 1000, [0] * 999 + [1])[1][-21:]
    '0, 0... with 1 at 999'
    """
    first, second = shorten(a), shorten(b)
    if first != second or not isinstance(a, list | tuple | np.ndarray) or len(a) == 0:
        return first, second
    if len(a) != len(b):
        return f"{first} ({len(a)} entries)", f"{second} ({len(b)} entries)"
    place = next((at for at in range(len(a)) if fingerprint(a[at]) != fingerprint(b[at])), 0)
    inner = describe_inputs(a[place], b[place])
    return f"{first} with {inner[0]} at {place}", f"{second} with {inner[1]} at {place}"


def shorten(value: Any) -> str:
    """Return a text of at most 200 characters for a value."""
    value = value.item() if isinstance(value, np.generic) else value
    text = np.array2string(value, threshold=20) if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _density_figure(plots: Plots) -> str:
    """Draw the densities of the outputs on both inputs; shade each bin by the share of it inside the event."""
    if len(plots.bin_starts) < 2:
        return ""
    top = max(*plots.density_a, *plots.density_b, 1e-12)
    low, high = plots.bin_starts[0], plots.bin_starts[-1]
    across = [_rescale(place, low, high, MARGIN, WIDTH - 10) for place in plots.bin_starts]
    ends = [*across[1:], across[-1]]
    shade = "".join(
        f"<rect x='{across[i]:.1f}' y='10' width='{max(ends[i] - across[i], 0.5):.1f}' height='{HEIGHT - 40}' "
        f"fill='#fc6' fill-opacity='{share:.2f}'/>"
        for i, share in enumerate(plots.share_inside) if share > 0.01
    )  # fmt: skip
    lines = "".join(
        _line([(across[i], _rescale(value, 0, top, HEIGHT - 30, 10)) for i, value in enumerate(density)], colour)
        for density, colour in ((plots.density_a, "#1565c0"), (plots.density_b, "#c62828"))
    )
    labels = _label(MARGIN, HEIGHT - 12, f"{low:.4g}") + _label(WIDTH - 60, HEIGHT - 12, f"{high:.4g}")
    return _figure(
        shade + lines + labels, f"{plots.name} on the first input (blue), the second (red), the event (shaded)"
    )


def _loss_figure(result: PrivacyResult) -> str:
    """Draw the estimated smallest delta for each epsilon, and the delta that the claim allows."""
    points = [(x, y) for x, y in result.plots.curve if y > 0 and isfinite(y)]
    if len(points) < 2:
        return ""
    xs = np.array([x for x, _ in points])
    allowed = [(float(x), _claimed_delta(result, float(x))) for x in xs]
    floor = min(y for _, y in points)
    spans = (float(xs[0]), float(xs[-1])), (log10(max(floor, 1e-9)), 0.0)
    seen, stated = (
        [
            (_rescale(x, *spans[0], MARGIN, WIDTH - 10), _rescale(log10(max(y, floor)), *spans[1], HEIGHT - 30, 10))
            for x, y in line
        ]
        for line in (points, allowed)
    )
    labels = _label(MARGIN, HEIGHT - 12, f"epsilon {xs[0]:.3g}") + _label(WIDTH - 60, HEIGHT - 12, f"{xs[-1]:.3g}")
    labels += _label(2, 18, "delta 1") + _label(2, HEIGHT - 30, f"{floor:.0e}")
    caption = "The estimated loss curve (blue) and the claimed one (red); blue above red is a violation"
    return _figure(_line(seen, "#1565c0") + _line(stated, "#c62828") + labels, caption)


def _claimed_delta(result: PrivacyResult, epsilon: float) -> float:
    """Return the smallest delta that the claim implies at this epsilon, on a grid of probabilities."""
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


def _rescale(value: float, low: float, high: float, first: float, last: float) -> float:
    # Halved, because the difference of two floats may overflow.
    span = high / 2 - low / 2
    return first + (last - first) * ((value / 2 - low / 2) / span if span > 0 else 0.5)
