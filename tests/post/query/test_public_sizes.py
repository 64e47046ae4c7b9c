"""Test the noisy sizes that a request names as public."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dither.plan.context import Context, with_public_facts
from dither.plan.relations import Scan
from dither.post.query.public_sizes import public_sizes
from dither.post.session import Session


def sized(session: Session, epsilon: Fraction, rows: int) -> Context:
    dataset = replace(session.dataset, size_epsilon=epsilon)
    published = with_public_facts(dataset, False, {"users": 2_000, "actions": rows, "": 2_001})
    return Context(published, session.context.facts)


def test_sizes_with_hardly_any_noise_are_named(blind: Session) -> None:
    """Regression: a scale that was rounded to 0 was refused, so that no bound could be searched."""
    sizes = public_sizes(sized(blind, Fraction(20), 18_000), Scan("users"), "user", 1, 1, sums=False)
    assert len(sizes) == 2 and all(size.scale >= 1 for size in sizes)


def test_sizes_beyond_what_a_request_can_name_are_left_out(blind: Session) -> None:
    assert public_sizes(sized(blind, Fraction(1, 100), 10**10), Scan("actions"), "user", 1 << 40, 1, sums=True) == ()
