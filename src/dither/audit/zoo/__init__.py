"""The zoo: mechanisms from the literature and from practice, right and wrong, with their true loss where known."""

from __future__ import annotations

from dither.audit.zoo import basic, floats, local, records, sparse, timed
from dither.audit.zoo.member import Member
from dither.errors import NotFound

__all__ = ["Member", "catalogue", "member"]


def catalogue() -> tuple[Member, ...]:
    """Every member."""
    rooms = (basic, sparse, local, floats, records, timed)
    return tuple(found for room in rooms for found in room.members())


def member(name: str) -> Member:
    """The member of this name."""
    found = {each.name: each for each in catalogue()}
    if name not in found:
        raise NotFound(f"the zoo has no {name!r}; it has: {', '.join(found)}")
    return found[name]
