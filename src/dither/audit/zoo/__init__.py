"""The zoo: correct and broken mechanisms from the literature and from practice, with their true loss where known."""

from __future__ import annotations

from dither.audit.zoo import basic, floats, local, records, sparse, timed
from dither.audit.zoo.member import Member
from dither.errors import NotFound

__all__ = ["Member", "catalogue", "member"]


def catalogue() -> tuple[Member, ...]:
    """Return every member of the zoo."""
    modules = (basic, sparse, local, floats, records, timed)
    return tuple(each for module in modules for each in module.members())


def member(name: str) -> Member:
    """Return the member of this name."""
    members = {each.name: each for each in catalogue()}
    if name not in members:
        raise NotFound(f"the zoo has no member {name!r}; it has: {', '.join(members)}")
    return members[name]
