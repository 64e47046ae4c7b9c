"""Small bar charts as SVG, without a library: expected errors, and noisy totals."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from xml.sax.saxutils import escape

WIDTH, BAR, LABEL, VALUE = 720, 22, 190, 110


def bar_chart(title: str, names: Sequence[str], values: Sequence[float], note: str, logarithmic: bool = False) -> str:
    """Return a horizontal bar chart; bars below zero have no length and keep their number."""
    lengths = [_length(value, logarithmic) for value in values]
    longest = max([*lengths, 1e-9])
    room = WIDTH - LABEL - VALUE
    height = 60 + BAR * len(names)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for place, (name, value, length) in enumerate(zip(names, values, lengths, strict=True)):
        top, width = 34 + BAR * place, room * length / longest
        lines += [
            f'<text x="{LABEL - 6}" y="{top + 14}" text-anchor="end">{escape(name[:28])}</text>',
            f'<rect x="{LABEL}" y="{top + 3}" width="{width:.1f}" height="{BAR - 6}" fill="#4878a8"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{top + 14}">{value:,.4g}</text>',
        ]
    lines += [f'<text x="8" y="{height - 8}" fill="#555555">{escape(note)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _length(value: float, logarithmic: bool) -> float:
    """Return the length of a bar, up to a common factor."""
    return log10(1 + max(0.0, value)) if logarithmic else max(0.0, value)
