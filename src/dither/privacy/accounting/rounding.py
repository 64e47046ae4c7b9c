"""Logarithms and exponentials of rationals, rounded up or down, by integer arithmetic alone."""

from __future__ import annotations

from fractions import Fraction

from dither.errors import InvalidParameter

BITS = 192
ONE = 1 << BITS
SLACK = 256  # units of 2**-BITS that cover the truncations of one series (proof: directed_rounding.md)
LARGEST_EXPONENT = 1 << 14
SIGNIFICANT_DIGITS = 20
MAX_DECIMAL_PLACES = 60


def log_down(x: Fraction) -> Fraction:
    """Return a lower bound of log(x), less than 1e-45 below it."""
    return Fraction(_log(x)[0], ONE)


def log_up(x: Fraction) -> Fraction:
    """Return an upper bound of log(x), less than 1e-45 above it."""
    return Fraction(_log(x)[1], ONE)


def exp_down(x: Fraction) -> Fraction:
    """Return a lower bound of e**x, within a relative 1e-45; 0 below x = -16384, e**16384 above x = 16384."""
    if x < -LARGEST_EXPONENT:
        return Fraction(0)
    return _exp(min(x, Fraction(LARGEST_EXPONENT)))[0]


def exp_up(x: Fraction) -> Fraction:
    """Return an upper bound of e**x, within a relative 1e-45; e**-16384 below x = -16384."""
    if x > LARGEST_EXPONENT:
        raise InvalidParameter(f"a loss must be at most {LARGEST_EXPONENT} to be converted")
    return _exp(max(x, Fraction(-LARGEST_EXPONENT)))[1]


def digits_up(x: Fraction) -> Fraction:
    """Round x up to about twenty significant decimal digits, none beyond the sixtieth decimal place.

    >>> digits_up(Fraction(2, 3))
    Fraction(66666666666666666667, 100000000000000000000)
    """
    return Fraction(-_units_of_last_place(-x), 10 ** _decimal_places(x))


def digits_down(x: Fraction) -> Fraction:
    """Round x down to about twenty significant decimal digits, none beyond the sixtieth decimal place."""
    return Fraction(_units_of_last_place(x), 10 ** _decimal_places(x))


def _units_of_last_place(x: Fraction) -> int:
    """Return x in units of the last decimal place to keep, rounded down."""
    power_of_ten: int = 10 ** _decimal_places(x)
    return x.numerator * power_of_ten // x.denominator


def _decimal_places(x: Fraction) -> int:
    """Return the number of decimal places that leave about twenty significant digits."""
    magnitude = (abs(x.numerator).bit_length() - x.denominator.bit_length()) * 3 // 10
    return max(0, min(MAX_DECIMAL_PLACES, SIGNIFICANT_DIGITS - magnitude))


def _atanh(numerator: int, denominator: int) -> int:
    """Return atanh(z), z = numerator / denominator from 0 to 1/3, in units of 2**-BITS; the series is truncated."""
    power = (numerator << BITS) // denominator
    square = power * power >> BITS
    total, odd = 0, 1
    while power:
        total += power // odd
        power = power * square >> BITS
        odd += 2
    return total


LOG_TWO = 2 * _atanh(1, 3)


def _log(x: Fraction) -> tuple[int, int]:
    """Return bounds of log(x) in units of 2**-BITS: x = m 2**k, log x = k log 2 + 2 atanh z."""
    if x <= 0:
        raise InvalidParameter("the argument of a logarithm must be positive")
    twos = x.numerator.bit_length() - x.denominator.bit_length()
    above, below = x.numerator << max(0, -twos), x.denominator << max(0, twos)
    size = 2 * _atanh(abs(above - below), above + below)
    middle = twos * LOG_TWO + (size if above >= below else -size)
    slack = 2 * SLACK * (abs(twos) + 1)
    return middle - slack, middle + slack


def _exp(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return bounds of e**x: x = k log 2 + r, e**x = 2**k e**r, e**r by its series."""
    if not x:
        return Fraction(1), Fraction(1)
    fixed = (x.numerator << BITS) // x.denominator
    twos = fixed // LOG_TWO
    rest = fixed - twos * LOG_TWO
    total = term = ONE
    step = 1
    while term:
        term = (term * rest >> BITS) // step
        total += term
        step += 1
    slack = 4 * SLACK * (abs(twos) + 1)
    scale = Fraction(2) ** twos
    return Fraction(max(0, total - slack), ONE) * scale, Fraction(total + slack, ONE) * scale
