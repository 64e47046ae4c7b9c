"""The keys under which the ledger stores state, the texts that it stores, and the name of the kernel's own account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

KERNEL = "kernel"  # the account that a kernel charges its own queries to; no token authenticates as it

_sorted_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@lru_cache(maxsize=1 << 10)
def key(*parts: str | int | None) -> str:
    """Return the key under which a piece of state is stored: its parts as a JSON list.

    >>> key("paid", 7, None)
    '["paid",7,null]'
    """
    texts = ["null" if p is None else str(p) if isinstance(p, int) else encode_basestring_ascii(p) for p in parts]
    return f"[{','.join(texts)}]"


@lru_cache(maxsize=1 << 10)
def decode_names(stored_list: str) -> tuple[str, ...]:
    """Decode a JSON list of names that is stored as state."""
    return tuple(json.loads(stored_list))


def canonical_json(body: Mapping[str, Any]) -> str:
    """Encode a row's body as canonical JSON: equal bodies give equal text."""
    return _sorted_json(body)
