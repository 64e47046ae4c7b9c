"""Small bar charts as SVG, without a library: expected errors, and noisy totals."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from xml.sax.saxutils import escape

WIDTH, BAR, LABEL, VALUE = 720, 22, 190, 110


def bar_chart(
    title: str, names: Sequence[str], values: Sequence[float], note: str, logarithmic: bool = False, error: float = 0
) -> str:
    """Return a horizontal bar chart; with an error, a line from each value less the error to the value plus it."""
    scaled = [log10(1 + max(0.0, value)) if logarithmic else value for value in values]
    low, high = min([0.0, *(value - error for value in scaled)]), max([1e-9, *(value + error for value in scaled)])
    room, height = WIDTH - LABEL - VALUE, 60 + BAR * len(names)

    def place(value: float) -> float:
        return LABEL + room * (value - low) / (high - low)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, value, end) in enumerate(zip(names, values, scaled, strict=True)):
        top, left, right = 34 + BAR * number, place(min(0.0, end)), place(max(0.0, end))
        lines += [
            f'<text x="{LABEL - 6}" y="{top + 14}" text-anchor="end">{escape(name[:28])}</text>',
            f'<rect x="{left:.1f}" y="{top + 3}" width="{right - left:.1f}" height="{BAR - 6}" fill="#4878a8"/>',
            *([_error_line(place(end - error), place(end + error), top + BAR / 2)] if error else []),
            f'<text x="{place(max(0.0, end + error)) + 6:.1f}" y="{top + 14}">{short_number(value)}</text>',
        ]
    lines += [f'<text x="8" y="{height - 8}" fill="#555555">{escape(note)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _error_line(left: float, right: float, middle: float) -> str:
    """Return the line of an error."""
    return f'<path d="M{left:.1f} {middle}H{right:.1f}" stroke="#222222" stroke-width="1.5"/>'


def short_number(value: float) -> str:
    """Return a number with four digits, or as a whole number from 1,000 on.

    >>> short_number(27.4378), short_number(-58_142.0)
    ('27.44', '-58,142')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
