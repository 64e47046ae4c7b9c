"""Descriptions of releases that are wrong anywhere are refused with a sentence, before anything is charged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from copy import deepcopy
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from dither.errors import DitherError
from dither.privacy.kernel import LocalKernel, open_kernel
from dither.release.api import StaticRelease, open_release
from dither.release.spec import load_spec
from release.world import DATASET, SPEC, write_world

WHOLE: dict[str, Any] = {
    "version": 1,
    "name": "shares",
    "title": "Shares",
    "description": "Shares of links",
    "dataset": "dataset.yml",
    "from": "actions JOIN users ON actions.user_id = users.user_id",
    "where": "url_id IS NOT NULL",
    "unit": "user",
    "keys": {
        "url": "url_id",
        "month": {"sql": "DATE_TRUNC('month', at)", "description": "of the action"},
        "country": {"sql": "country", "values": ["AT", "CH"]},
    },
    "columns": {
        "views": {"where": "action = 'view'", "sigma": 300, "k": 9, "description": "views"},
        "clicks": {"where": "action = 'click'", "error": 500},
        "shares": {"where": "action = 'share'"},
    },
    "admission": {"where": "action = 'share'", "threshold": 30, "scale": 200, "description": "shared often"},
    "privacy": {"epsilon": 9, "delta": "1/100000"},
    "max_rows": 20,
    "max_rows_per_key": {"rows": 3, "keys": 4},
    "max_rows_per_value": {"column": "action", "rows": 5, "values": 2},
    "consistency": {"nonnegative": True},
    "output": {"format": "parquet", "rows_per_part": 40},
    "repeat": 1,
}
OTHER_PRIVACY = ({"rho": 1}, {"column_rho": "1/2"})
HOSTILE: tuple[Any, ...] = (
    None, [], {}, [1], {"a": 1}, float("nan"), float("inf"), -float("inf"), "nan", 1e308, 10**400, -1, 0, 1, -(10**30),
    True, False, "", " ", "x", "²", "--5", "-", "1/0", "0/0", "1e999999", "1e-999999", "9" * 5000, "'; DROP", "--",
    "url_id", "country", "COUNT(*)", "a" * 300, "../x", ".", '"', "a b", "é", 1 << 31, 1 << 62, 1 << 63, 1.5, "_",
    "1/3", "0x10", "user", "action", "NULL", "(SELECT 1)", "1 = 1", "TRUE", "/*",
    "1) AS z, COUNT(*) FILTER (WHERE 1 = 1",
    "TRUE GROUP BY 1, 2, 3 HAVING COUNT(*) > 5 --",
)  # fmt: skip


def places(tree: dict[str, Any], before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of a description, and of every listed value."""
    for name, value in tree.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from places(value, (*before, name))
        if isinstance(value, list):
            yield from ((*before, name, number) for number in range(len(value)))


def changed(tree: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of a description with one value replaced."""
    copy = deepcopy(tree)
    inside: Any = copy
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return copy


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[LocalKernel]:
    budget = "budgets:\n  - {unit: user, kind: zcdp, rho: 999, delta: 1/10}\n"
    write_world(tmp_path / "world", SPEC, DATASET.partition("budgets:")[0] + budget)
    opened = open_kernel(tmp_path / "world" / "dataset.yml", measure_size=False)
    yield opened
    opened.close()


def is_accepted(kernel: LocalKernel, folder: Path, description: dict[str, Any]) -> bool:
    """Whether a description can be quoted, planned and laid out; any error but a refusal leaves this function."""
    path = folder / "world" / "changed.yml"
    path.write_text(yaml.safe_dump(description, allow_unicode=True))
    try:
        release = StaticRelease(load_spec(path), kernel)
        return bool(release.quote().text and release.plan() and release.layout())
    except DitherError:
        return False


def test_the_whole_description_is_accepted_and_its_documents_are_built_before_the_charge(
    kernel: LocalKernel, tmp_path: Path
) -> None:
    assert is_accepted(kernel, tmp_path, WHOLE)
    for privacy in OTHER_PRIVACY:
        assert is_accepted(kernel, tmp_path, {**WHOLE, "privacy": privacy})
    assert not kernel.balances("shares")[0].spent[0]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(41, id="some", marks=pytest.mark.tier("test")),
        pytest.param(1, id="all", marks=pytest.mark.tier("deep")),
    ],
)
def test_no_wrong_value_gives_a_traceback(kernel: LocalKernel, tmp_path: Path, step: int) -> None:
    """Every value of the description in turn is replaced by values that are wrong almost everywhere."""
    numbers, accepted, tried = count(), 0, 0
    for tree in (WHOLE, *({**WHOLE, "privacy": privacy} for privacy in OTHER_PRIVACY)):
        for path in places(tree):
            for value in HOSTILE:
                if (tree is WHOLE or path[0] == "privacy") and next(numbers) % step == 0:
                    accepted += is_accepted(kernel, tmp_path, changed(tree, path, value))
                    tried += 1
    assert tried * step >= 2_500 and 0 < accepted < tried // 2
    assert not kernel.balances("shares")[0].spent[0]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("repeat",), "--5", "must be an integer"),
        (("max_rows",), "²", "must be an integer"),
        (("max_rows",), "9" * 5000, "must be an integer"),
        (("privacy", "delta"), 1, "below 1"),
        (("privacy", "delta"), "3/2", "below 1"),
        (("keys", "views"), "country", "would be called 'views'"),
        (("columns", "Views"), {"where": "code > 5"}, "would be called 'views'"),
        (("columns", "clicks_nonnegative"), {"where": "code > 5"}, "would be called 'clicks_nonnegative'"),
        (("keys", "country"), "url_id", "no two keys are the same"),
        (("admission", "where"), "1) AS z, COUNT(*) FILTER (WHERE 1 = 1", "condition"),
        (("where",), "TRUE GROUP BY 1, 2, 3 HAVING COUNT(*) > 5 --", "without comments"),
        (("where",), "TRUE GROUP BY 1, 2, 3 LIMIT 5 --", "without comments"),
        (("columns", "clicks", "where"), "TRUE) AS z, COUNT(*) FILTER (WHERE code > 5", "without comments"),
        (("keys", "country"), {"sql": "code", "values": ["AT"]}, "a value of the key country must be a number"),
        (("keys", "country"), {"sql": "code > 5", "values": ["AT"]}, "must be true or false"),
    ],
)
def test_what_was_a_traceback_or_a_wrong_release_is_refused_with_a_sentence(
    kernel: LocalKernel, tmp_path: Path, path: tuple[str, ...], value: object, words: str
) -> None:
    place = tmp_path / "world" / "changed.yml"
    place.write_text(yaml.safe_dump(changed(WHOLE, path, value), allow_unicode=True))
    with pytest.raises(DitherError, match=words):
        StaticRelease(load_spec(place), kernel).quote()


def test_a_row_that_counts_twice_costs_four_times_in_every_figure(tmp_path: Path) -> None:
    """Regression: the figures by column assumed that one action changes one cell by one."""
    once = "SELECT user_id, url_id, action, at FROM actions"
    twice = f"({once} UNION ALL {once}) AS q"
    spec = SPEC.replace("actions JOIN users ON actions.user_id", f"{twice} JOIN users ON q.user_id")
    with open_release(write_world(tmp_path / "world", spec)) as release:
        facts = release.quote().columns
        assert [facts[0].k_rho, facts[1].k_rho] == [4 * Fraction(9, 2 * 9), 4 * Fraction(1, 2)]
        assert release.cost.losses[0].loss == release.cost.parts[0].loss
    solved = spec.replace("sigma: 3, ", "").replace(", sigma: 1", "") + "privacy: {column_rho: 1/2}\n"
    with open_release(write_world(tmp_path / "solved", solved)) as release:
        assert [round(column.sigma, 3) for column in release.quote().columns] == [6.0, 2.0]


@pytest.mark.tier("test")
def test_files_have_one_time_and_decimal_keys_one_type_in_every_part(tmp_path: Path) -> None:
    """Regression: how long each part took could be read off its file; the type of a key depended on the part."""
    dataset = DATASET.replace(
        "code: {type: integer, min: 0, max: 60000000}", "code: {type: decimal, min: 0, max: 2, step: 0.5}"
    )
    keys = "  url: url_id\n  month: DATE_TRUNC('month', at)\n  country: country"
    spec = SPEC.replace(keys, "  code: code\n  country: {sql: country, values: [AT]}").replace("40", "1")
    with open_release(write_world(tmp_path / "world", spec, dataset)) as release:
        release.write(tmp_path / "out")
    files = sorted((tmp_path / "out" / "data").iterdir())
    assert len({os.stat(path).st_mtime_ns for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"))}) == 1
    assert len(files) == 5
    types = {tuple(duckdb.sql(f"DESCRIBE FROM '{path}'").fetchall()[0][:2]) for path in files}
    assert types == {("code", "DOUBLE")}
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == 5
