"""The result of an audit: as objects, as text, as JSON and as a self-contained HTML page with plots."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from math import exp, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from dither import __version__
from dither.audit.blackbox.events import Event
from dither.audit.blackbox.explain import FloatLeak, explain_bound, explain_leak, indent_program, recount_program
from dither.audit.blackbox.inputs import describe_difference, shorten
from dither.audit.blackbox.power import POWER, AuditPower
from dither.audit.blackbox.sweep import Sweep
from dither.audit.claim_syntax import claim_text, json_number
from dither.audit.claims import ceiling, delta, strength
from dither.audit.confidence import Level
from dither.errors import InvalidParameter
from dither.loss import Loss, to_json

Points = tuple[tuple[float, float], ...]

WIDTH, HEIGHT, MARGIN = 560, 240, 42
# The colours of the two inputs, of the two loss curves, and of an event that breaks the claim or was only judged.
FIRST, SECOND, ESTIMATED, CLAIMED, VIOLATION, JUDGED = "#1565c0", "#c62828", "#222", "#777", "#fc6", "#cfd8dc"
# A line of text names at most this many examples of outputs.
MAX_NAMED_EXAMPLES = 3


@dataclass(frozen=True)
class Evidence:
    """Two inputs, an event, its estimated probability, hits and runs on each input.

    `examples` lists some outputs in the event, unless a person can check the event by hand from its description.
    `steps` is the number of steps between the inputs, over which losses add up. If there are `levels`, the p-value is
    of their weighted hits, which include rarer and commoner outputs around the event. A `leak` shows two outputs, if
    the event depends on nothing but the low-order bits of floats.
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
    leak: FloatLeak | None = None

    def __str__(self) -> str:
        return "\n".join(f"  {name}: {text}" for name, text in self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Return the inputs, the event and the counts, as names and texts."""
        far = [("steps between them", f"{self.steps}, over which losses add up")] if self.steps > 1 else []
        where = describe_difference(self.a, self.b)
        such = f", such as {' or '.join(self.examples[:MAX_NAMED_EXAMPLES])}" if self.examples else ""
        return [
            ("first input", shorten(self.a)), ("second input", shorten(self.b)),
            *([("they differ", where)] if where else []), *far, ("event", f"{self.event}{such}"),
            ("on the first input", _share_text(self.hits[0], self.runs[0], self.probability_a, self.bounds_a)),
            ("on the second input", _share_text(self.hits[1], self.runs[1], self.probability_b, self.bounds_b)),
        ]  # fmt: skip


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
    power: AuditPower
    cpu_seconds: float
    plots: Plots = field(default_factory=Plots, repr=False)
    mechanism: str = "the mechanism"
    vectorised: bool = True
    seed: int | None = None
    version: str = __version__
    sweep: Sweep | None = None

    @property
    def detectable(self) -> float:
        """The smallest strength that would have been refuted with probability 0.9, by an event as common as this."""
        return self.power.detectable

    @property
    def counterexample(self) -> Evidence | None:
        """The evidence, if it refutes the claim."""
        return self.evidence if self.refuted else None

    @property
    def allowed(self) -> float:
        """The most that the claim allows the event's probability on the first input to be, given that on the second."""
        limit = ceiling(self.claim, strength(self.claim), self.evidence.steps)
        return float(limit(np.array([self.evidence.probability_b]))[0])

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        said = f"{'REFUTED' if self.refuted else 'not refuted'}: {claim_text(self.claim)} of {self.mechanism}"
        bound = f"epsilon is at least {self.epsilon_lower:.4g} at delta {delta(self.claim):.3g}"
        confidence = f"{100 * (1 - self.alpha):g}% confidence"
        support = f"; p = {self.p_value:.3g}" if self.refuted else ""
        return f"{said}; {bound} ({confidence}){support}; {self.samples:,} samples"

    def lines(self) -> list[tuple[str, str]]:
        """Return the evidence and what the claim allows, and if it is not refuted the power, as names and texts."""
        leak = [("why", explain_leak(self.evidence))] if self.refuted and self.evidence.leak else []
        power = [] if self.refuted else [("power", f"on this pair, {self.power}"), ("pairs", self._pairs_text)]
        return [*self.evidence.lines(), ("the claim allows", explain_bound(self)), *leak, *power]

    @property
    def _pairs_text(self) -> str:
        """Say how many pairs were tried, and how."""
        if self.sweep is None:
            return (
                f"{self.pairs_tried} tried, of which this one looked worst"
                if self.pairs_tried > 1
                else "no other tried"
            )
        chosen = f"{self.pairs_tried - self.sweep.kept} at the edges of the domain, or given"
        return f"{self.pairs_tried} were searched, of which this one looked worst: {chosen}, and {self.sweep}"

    @property
    def recipe(self) -> str:
        """A Python program that draws again and counts the event."""
        return recount_program(self)

    def __str__(self) -> str:
        lines = [self.verdict, *(f"  {name}: {text}" for name, text in self.lines())]
        if self.refuted:
            lines += ["  to check by hand, count again:", indent_program(self.recipe)]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "mechanism": self.mechanism,
            "claim": to_json(self.claim),
            "mode": self.mode,
            "alpha": self.alpha,
            "refuted": self.refuted,
            "p_value": self.p_value,
            "epsilon_lower": json_number(self.epsilon_lower),
            "strength_lower": self.strength_lower,
            "samples": self.samples,
            "pairs_tried": self.pairs_tried,
            "sweep": None if self.sweep is None else self.sweep.as_dict(),
            "seed": self.seed,
            "version": self.version,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "power": {
                "detectable_strength": json_number(self.detectable),
                "rarest_leak": json_number(self.power.rarest_leak),
                "power": POWER,
            },
            "evidence": {**_evidence_dict(self.evidence), "allowed": self.allowed, "recipe": self.recipe},
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
    title = f"{result.mechanism}: claim {claim_text(result.claim)} {verdict}"
    figures = _density_figure(result) + _loss_figure(result)
    program = f"<h2>Count again</h2><pre>{escape(result.recipe)}</pre>" if result.refuted else ""
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1 class='{'bad' if result.refuted else 'good'}'>{escape(title)}</h1>"
        f"<p>{escape(result.verdict)}</p><table>{rows}</table>{figures}{program}</html>"
    )


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "th{text-align:left;vertical-align:top;padding-right:1em}td{overflow-wrap:anywhere}.bad{color:#a11}.good{color:#164}"
    "pre{background:#f4f4f4;padding:.8em;overflow-x:auto}"
    "figure{margin:1.5em 0}figcaption{color:#555}text{font:11px sans-serif;fill:#444}"
)


def _table_rows(result: PrivacyResult) -> list[tuple[str, str]]:
    """Return the names and texts of the rows of the page's table."""
    evidence, seed = result.evidence, "none: other runs draw other samples" if result.seed is None else str(result.seed)
    return [
        ("Mechanism", result.mechanism), *((f"{name[0].upper()}{name[1:]}", text) for name, text in result.lines()),
        *([("More outputs in the event", "; ".join(evidence.examples))] if evidence.examples else []),
        *([("Hits by weight", "; ".join(map(_level_text, evidence.levels)))] if evidence.levels else []),
        ("p-value", f"{evidence.p_value:.4g}"), ("Epsilon at least", f"{result.epsilon_lower:.6g}"),
        ("Family-wise error", f"{result.alpha:g} over all neighbours, events and epsilons ({result.mode})"),
        ("Samples", f"{result.samples:,}"), ("Pairs tried", str(result.pairs_tried)),
        ("Seed of the auditor", seed), ("Dither version", result.version),
    ]  # fmt: skip


def _share_text(hits: int, runs: int, share: float, bounds: tuple[float, float]) -> str:
    return f"{hits:,} of {runs:,} runs, a share of {share:.6g} (between {bounds[0]:.6g} and {bounds[1]:.6g})"


def _level_text(level: Level) -> str:
    return f"{level.weight}: {level.hits_a:,} and {level.hits_b:,} hits ({level.within})"


def _evidence_dict(evidence: Evidence) -> dict[str, Any]:
    return {
        "a": shorten(evidence.a), "b": shorten(evidence.b), "difference": describe_difference(evidence.a, evidence.b),
        "steps": evidence.steps, "event": str(evidence.event), "p_value": evidence.p_value,
        "probability_a": evidence.probability_a, "bounds_a": list(evidence.bounds_a),
        "probability_b": evidence.probability_b, "bounds_b": list(evidence.bounds_b),
        "examples": list(evidence.examples), "hits": list(evidence.hits), "runs": list(evidence.runs),
        "levels": [vars(level) for level in evidence.levels],
        "float_leak": None if evidence.leak is None else evidence.leak.as_dict(),
    }  # fmt: skip


def _density_figure(result: PrivacyResult) -> str:
    """Draw the densities of the outputs on both inputs; shade each bin by the share of it inside the event."""
    plots = result.plots
    if len(plots.bin_starts) < 2:
        return ""
    top = max(*plots.density_a, *plots.density_b, 1e-12)
    low, high = plots.bin_starts[0], plots.bin_starts[-1]
    across = [_rescale(place, low, high, MARGIN, WIDTH - 10) for place in plots.bin_starts]
    ends = [*across[1:], across[-1]]
    shade = "".join(
        f"<rect x='{across[i]:.1f}' y='10' width='{max(ends[i] - across[i], 0.5):.1f}' height='{HEIGHT - 40}' "
        f"fill='{VIOLATION if result.refuted else JUDGED}' fill-opacity='{share:.2f}'/>"
        for i, share in enumerate(plots.share_inside) if share > 0.01
    )  # fmt: skip
    lines = "".join(
        _line([(across[i], _rescale(value, 0, top, HEIGHT - 30, 10)) for i, value in enumerate(density)], colour)
        for density, colour in ((plots.density_a, FIRST), (plots.density_b, SECOND))
    )
    labels = _label(MARGIN, HEIGHT - 12, f"{low:.4g}") + _label(WIDTH - 60, HEIGHT - 12, f"{high:.4g}")
    event = "the event that breaks the claim" if result.refuted else "the event that was judged, and does not refute it"
    inputs = (
        f"on the first input, {shorten(result.evidence.a)} (blue), and the second, {shorten(result.evidence.b)} (red)"
    )
    return _figure(shade + lines + labels, f"{plots.name} {inputs}; shaded: {event}")


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
    verdict = (
        "where black lies above grey, the estimate breaks the claim"
        if result.refuted
        else "black may lie above grey by chance: the judgement did not refute the claim"
    )
    caption = f"The estimated loss curve (black) and the claimed one (grey, dashed); {verdict}"
    dashes = " stroke-dasharray='5 3'"
    return _figure(_line(seen, ESTIMATED) + _line(stated, CLAIMED, dashes) + labels, caption)


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


def _line(points: list[tuple[float, float]], colour: str, style: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'{style}/>"


def _label(x: float, y: float, text: str) -> str:
    return f"<text x='{x}' y='{y}'>{escape(text)}</text>"


def _rescale(value: float, low: float, high: float, first: float, last: float) -> float:
    # Halved, because the difference of two floats may overflow.
    span = high / 2 - low / 2
    return first + (last - first) * ((value / 2 - low / 2) / span if span > 0 else 0.5)
