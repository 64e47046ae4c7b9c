"""Grids of values: cells of a declared range that are narrower the nearer they are to zero, so that widths cost little.

A range is often declared far too wide, to be safe. Equal cells would then all be too wide for the values that occur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from dither.errors import Unsupported
from dither.plan import expressions as expr
from dither.plan.domains import bounds_of
from dither.plan.expressions.core import Expr
from dither.post.noise import Floats
from dither.schema import Number

# Cells stop growing at this many times the width of equal ones, so that about half of all cells lie near zero. With too
# few cells for that, the widest become wider, since equal ones would then hold all that occurs in one or two.
WIDEST = 2
# Each width is so many times the one before, and there are at most so many: every width is a part of an expression.
GROWTH, MOST_WIDTHS = 4, 20


@dataclass(frozen=True)
class Piece:
    """Consecutive cells of one width, in steps: `cells` of them, the first of which begins at `start` steps."""

    start: int
    width: int
    cells: int


@dataclass(frozen=True)
class ValueGrid:
    """Cells of a column's range: single values, equal ones, or cells that are narrower the nearer they are to zero.

    The values are multiples of `step`, from `lo` to `hi`. A cell of the grid is `merged` cells of its pieces.
    """

    lo: Fraction
    hi: Fraction
    step: Fraction
    pieces: tuple[Piece, ...]
    merged: int = 1

    @property
    def size(self) -> int:
        """The number of cells."""
        return -(-sum(piece.cells for piece in self.pieces) // self.merged)

    def low_ends(self) -> Floats:
        """Return the smallest value of each cell."""
        return np.asarray(np.maximum(self._values(self._starts()[:: self.merged]), float(self.lo)))

    def high_ends(self) -> Floats:
        """Return the largest value of each cell."""
        return np.append(self._values(self._starts()[self.merged :: self.merged] - 1), float(self.hi))

    def middles(self) -> Floats:
        """Return the middle of each cell."""
        return (self.low_ends() + self.high_ends()) / 2

    def coarser(self, factor: int) -> ValueGrid:
        """Return the grid whose cells are `factor` of these each."""
        return replace(self, merged=self.merged * factor)

    def _starts(self) -> Floats:
        """Return the first value of each cell of the pieces, in steps."""
        return np.concatenate([piece.start + piece.width * np.arange(float(piece.cells)) for piece in self.pieces])

    def _values(self, steps: Floats) -> Floats:
        """Return the values of numbers of steps."""
        return np.asarray(steps * self.step.numerator / self.step.denominator)


def make_grid(domain: object, most: int) -> ValueGrid:
    """Divide a declared range into its values if there are at most `most`, else into cells that grow from zero.

    So a range that is declared far too wide costs little: what lies near zero has narrow cells in any case.
    """
    known = check_number(domain)
    first, last = bounds_of(known)
    equal = -(-(last - first + 1) // most)
    if equal == 1 or last - first + 1 <= WIDEST * equal:
        return make_equal_grid(domain, most)
    finest, widest = _ends_of_widths(first, last, equal, most)
    fineness = _most_that(lambda tried: _count_cells(first, last, tried, finest, widest) <= most, 1, most)
    # Cells that are left over make the widest ones narrower.
    saved = _most_that(
        lambda tried: _count_cells(first, last, fineness, finest, widest - tried) <= most, 0, widest - equal
    )
    return _grid(known, _growing_pieces(first, last, fineness, finest, widest - saved))


def _ends_of_widths(first: int, last: int, equal: int, most: int) -> tuple[int, int]:
    """Return the least widths of the finest and the widest cells, of which a grid has at most `most`.

    The widest ones grow first, up to the whole range: what lies near zero is more likely than what lies far off.
    """
    finest, widest = 1, WIDEST * equal
    while _count_cells(first, last, 1, finest, widest) > most:
        if widest <= last - first:
            widest = min(WIDEST * widest, last - first + 1)
        else:
            finest, widest = GROWTH * finest, WIDEST * equal
    return finest, widest


def make_equal_grid(domain: object, most: int) -> ValueGrid:
    """Divide a declared range into at most `most` equal cells."""
    known = check_number(domain)
    first, last = bounds_of(known)
    width = -(-(last - first + 1) // most)
    return _grid(known, (Piece(first, width, -(-(last - first + 1) // width)),))


def check_number(domain: object) -> Number:
    """Return the domain of a number; refuse other columns."""
    if not isinstance(domain, Number):
        raise Unsupported("this needs a number with a declared range; count other columns with session.table")
    return domain


def _grid(domain: Number, pieces: tuple[Piece, ...]) -> ValueGrid:
    return ValueGrid(Fraction(domain.lo), Fraction(domain.hi), domain.step, pieces)


def _most_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from `low` to `high` for which a condition holds, if it holds up to some number."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _count_cells(first: int, last: int, fineness: int, finest: int, widest: int) -> int:
    return sum(piece.cells for piece in _growing_pieces(first, last, fineness, finest, widest))


def _growing_pieces(first: int, last: int, fineness: int, finest: int, widest: int) -> tuple[Piece, ...]:
    """Divide a range into pieces whose cells are at most as wide as their distance from zero over `fineness`.

    Widths are `finest`, 4 and 16 times that and so on, unless the range is too wide to begin so, and end with `widest`.
    """
    below = _side_of_zero(
        max(0, -last - 1), -first - 1, fineness, finest, widest
    )  # the values -1, -2, ... as 0, 1, ...
    mirrored = [Piece(-(piece.start + piece.width * piece.cells), piece.width, piece.cells) for piece in below[::-1]]
    return (*mirrored, *_side_of_zero(max(0, first), last, fineness, finest, widest))


def _side_of_zero(first: int, last: int, fineness: int, finest: int, widest: int) -> list[Piece]:
    """Divide the values from `first` to `last`, which are not negative."""
    width, start, pieces = min(widest, max(finest, widest // GROWTH**MOST_WIDTHS)), first, list[Piece]()
    while start <= last:
        following = min(GROWTH * width, widest)
        end = last + 1 if width == widest else min(fineness * following, last + 1)
        if end > start:
            pieces.append(Piece(start, width, -(-(end - start) // width)))
            start += pieces[-1].width * pieces[-1].cells
        width = following
    return pieces


def cell_key(value: Expr, grid: ValueGrid) -> Expr:
    """Return the expression whose values, in their order, are the cells of a grid."""
    if len(grid.pieces) == 1:
        piece = grid.pieces[0]
        return expr.Rounded("floor", _plus(value, -piece.start * grid.step), piece.width * grid.merged * grid.step)
    ends = list(accumulate(piece.cells for piece in grid.pieces))
    numbers = [
        _cell_number(value, grid, piece, end - piece.cells) for piece, end in zip(grid.pieces, ends, strict=True)
    ]
    starts = [expr.LiteralValue(piece.start * grid.step) for piece in grid.pieces[1:]]
    below = [expr.Compare("<", value, start) for start in starts]
    number = expr.Case(tuple(zip(below, numbers[:-1], strict=True)), numbers[-1])
    # Each branch is evaluated in its own piece alone, which its domain does not show.
    least, most = (expr.LiteralValue(place * grid.step) for place in (0, ends[-1] - 1))
    inside = expr.LeastGreatest("least", (expr.LeastGreatest("greatest", (number, least)), most))
    return expr.Rounded("floor", inside, grid.merged * grid.step)


def _cell_number(value: Expr, grid: ValueGrid, piece: Piece, before: int) -> Expr:
    """Return the number of the cell of a value in a piece, times the step; `before` cells precede those of the piece.

    It is the value over the width, rounded down, where the piece begins at a multiple of the width.
    """
    rest = -piece.start % piece.width
    whole = expr.Rounded("floor", _plus(value, rest * grid.step), piece.width * grid.step)
    number = expr.Arithmetic("*", whole, expr.LiteralValue(Fraction(1, piece.width))) if piece.width > 1 else whole
    return _plus(number, (before - (piece.start + rest) // piece.width) * grid.step)


def _plus(value: Expr, constant: Fraction) -> Expr:
    """Return a value plus a constant."""
    return expr.Arithmetic("+", value, expr.LiteralValue(constant)) if constant else value
