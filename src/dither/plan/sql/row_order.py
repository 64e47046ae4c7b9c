"""The pseudo-random order of rows: an integer hash that is the same on every engine, and the sort key made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from sqlglot import exp

from dither.plan.sql.builders import Sql, add, add_all, binary, integer, literal, times
from dither.plan.sql.dialect import Dialect

# MODULUS: a prime below 2^31 modulo which cubing is a permutation. FOLD: the largest prime below 2^40.
MODULUS = (1 << 31) - 69
FOLD = (1 << 40) - 87
LOW_BITS = (1 << 31) - 1
MIXED_BITS = 62


@dataclass(frozen=True)
class HashPart:
    """One input of a row's hash: an integer of fewer than `bits` bits, not counting its sign."""

    value: Sql
    bits: int


def mix_hash(parts: Sequence[HashPart], seed: int) -> Sql:
    """Combine integers into one between -2^62 and 2^62, the same on every engine; apply `hash_order` before comparing.

    The result is a sum with coefficients from the seed, each as large as its part allows: it cannot overflow, needs no
    reduction, and needs no hash function of the engine.
    """
    room = MIXED_BITS - (len(parts) + 1).bit_length()
    factors = [integer(coefficient(seed, index, room - part.bits)) for index, part in enumerate(parts)]
    terms = [binary(exp.Mul, part.value, factor) for part, factor in zip(parts, factors, strict=True)]
    return add_all([integer(coefficient(seed, -1, room)), *terms])


def coefficient(seed: int, index: int, bits: int) -> int:
    """Return a pseudo-random integer of exactly `bits` bits: the factor of part `index`, or the constant for -1."""
    half = 1 << (bits - 1)
    return half + int.from_bytes(sha256(f"{seed}:{index}".encode()).digest()[:8]) % half


def hash_order(dialect: Dialect, order: Sql) -> Sql:
    """Build the sort key of rows: the cube of an order modulo a prime, then the order's low bits.

    x -> x^3 permutes the residues, and residue and low bits together determine the order, so unequal orders have
    unequal keys (but two multiples of the prime, of opposite sign, may share one). Without the cube, the orders of two
    rows would differ by the same amount for every unit, and one kind of row would come first more often than another.
    """
    residue = dialect.remainder(order, literal(MODULUS))
    square = dialect.remainder(times(residue, residue), literal(MODULUS))
    cube = dialect.remainder(times(square, residue), literal(MODULUS))
    return add(times(cube, 1 << 31), low_bits(order))


def low_bits(order: Sql) -> Sql:
    """Build the last 31 bits of an order."""
    return binary(exp.BitwiseAnd, order, literal(LOW_BITS))
