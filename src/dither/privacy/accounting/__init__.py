"""Composition, conversion and filters of privacy losses, in exact rationals."""

from __future__ import annotations

from dither.privacy.accounting.conversion import as_renyi, delta_at
from dither.privacy.accounting.filters import filter_of
