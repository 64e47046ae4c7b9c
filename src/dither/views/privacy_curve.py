"""The epsilon-delta curve of a loss as a picture: an SVG file, or a small plot in text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Curve = Sequence[tuple[float, float]]

WIDTH, HEIGHT, MARGIN = 520, 320, 56
COLUMNS, LINES = 48, 12


def curve_svg(curve: Curve, title: str) -> str:
    """Draw epsilon over the logarithm of delta as an SVG picture."""
    deltas, epsilons = [math.log10(delta) for delta, _ in curve], [epsilon for _, epsilon in curve]
    left, right, top = min(deltas), max(deltas), max(epsilons) or 1.0

    def place(exponent: float, epsilon: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * (exponent - left) / ((right - left) or 1.0)
        return x, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * epsilon / top

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, deltas, epsilons))
    marks = []
    for exponent in range(math.ceil(left), math.floor(right) + 1, max(1, round((right - left) / 6))):
        x, _ = place(exponent, 0.0)
        marks.append(f"<text x='{x:.0f}' y='{HEIGHT - MARGIN + 18}' text-anchor='middle'>1e{exponent}</text>")
    for share in (0.0, 0.5, 1.0):
        _, y = place(left, share * top)
        marks.append(f"<text x='{MARGIN - 6}' y='{y + 4:.0f}' text-anchor='end'>{share * top:.3g}</text>")
    base, end = HEIGHT - MARGIN, WIDTH - MARGIN
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' font-family='sans-serif' "
        f"font-size='12'><rect width='100%' height='100%' fill='white'/>"
        f"<text x='{WIDTH / 2}' y='24' text-anchor='middle'>{escape(title)}</text>"
        f"<path d='M{MARGIN},{MARGIN} V{base} H{end}' fill='none' stroke='black'/>"
        f"<polyline points='{points}' fill='none' stroke='#1f5fa8' stroke-width='2'/>{''.join(marks)}"
        f"<text x='{WIDTH / 2}' y='{HEIGHT - 12}' text-anchor='middle'>delta</text>"
        f"<text x='16' y='{HEIGHT / 2}' transform='rotate(-90 16 {HEIGHT / 2})' text-anchor='middle'>epsilon</text>"
        "</svg>"
    )


def curve_text(curve: Curve) -> list[str]:
    """Draw epsilon over the logarithm of delta with characters."""
    deltas, epsilons = [math.log10(delta) for delta, _ in curve], [epsilon for _, epsilon in curve]
    left, right, top = min(deltas), max(deltas), max(epsilons) or 1.0
    cells = [[" "] * COLUMNS for _ in range(LINES)]
    for exponent, epsilon in zip(deltas, epsilons, strict=True):
        column = round((COLUMNS - 1) * (exponent - left) / ((right - left) or 1.0))
        line = LINES - 1 - round((LINES - 1) * epsilon / top)
        cells[line][column] = "*"
    labels = {0: f"{top:.3g}", LINES - 1: "0"}
    drawn = [f"{labels.get(number, ''):>8} |{''.join(line).rstrip()}" for number, line in enumerate(cells)]
    ends = f"1e{round(left)}", f"1e{round(right)}"
    return [
        "epsilon",
        *drawn,
        f"{'':>8} +{'-' * COLUMNS}",
        f"{'delta':>8}  {ends[0]:<{COLUMNS - len(ends[1])}}{ends[1]}",
    ]
