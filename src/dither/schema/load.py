"""From a dataset's YAML file to the nouns, with errors that name the line and say what to write."""

from __future__ import annotations

from pathlib import Path

from dither.errors import InvalidSchema
from dither.schema.model import Dataset


def load(path: str | Path) -> Dataset:
    """The dataset that a YAML file describes."""
    raise InvalidSchema(f"{path}:1: not readable")
