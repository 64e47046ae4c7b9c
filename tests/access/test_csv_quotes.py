"""CSV files whose quotes reach into other records are refused when opened; others are read record by record."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

from dither.access import csv_quotes as quotes
from dither.access.csv_quotes import first_unclosed_quote
from dither.access.engines.duckdb import DuckDBEngine, _csv_source
from dither.errors import InvalidSchema
from dither.plan import expressions as x
from dither.plan import measures as m
from dither.plan import relations as r
from dither.plan.sql.dialect import Dialect
from dither.schema import Category, Column, Dataset, Identifier, Source, Table, Unit

AFTER = [("7", "seven", "7"), ("8", "eight", "8"), ("9", "nine", "9")]
END = '7,seven,7\n8,"eight",8\n9,nine,9\n'


def reads(path: Path, text: str) -> list[Any]:
    """The records as DuckDB reads them, in the engine's dialect."""
    (path / "t.csv").write_text(text, newline="")
    source = Dialect().render(_csv_source("t", str(path / "t.csv"), ","))
    return duckdb.sql(f"SELECT * FROM {source}").fetchall()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b\n1,x\n", None),
        ('a,b\n1,"x, y"\n2,"a ""b"" c"\n', None),
        ('a,b\n1,"two\nlines"\n2,y\n', None),
        ('a,b\r\n1,"two\r\nlines"\r\n', None),
        ('a,b\n1,5" pipe\n2,y\n', None),
        ('a,b\n1,"x"y\n2,y\n', None),
        ('a,b\n1, "x, y"\n', None),
        ('a,b\n1,"open\n2,y\n', 2),
        ('a,b\n1,"open\n2,y\n3,"z"\n', 2),
        ('a,b\n1,y\n2,"x\\"y"\n3,z\n', 3),
        ('a,b\n1, "open\n2,y\n', 2),
        ('a,b\n1,"two\nlines"\n2,"', 4),
    ],
)
def test_the_first_open_quote_is_named(text: str, line: int | None) -> None:
    assert first_unclosed_quote(io.StringIO(text, newline=""), ",") == line


def test_a_record_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "LONGEST_RECORD", 100)
    assert first_unclosed_quote(['1,"\n', *["x\n"] * 100, '"\n'], ",") == 1
    assert first_unclosed_quote(['1,"\n', *["x\n"] * 10, '"\n'], ",") is None


def test_what_is_accepted_swallows_nothing(tmp_path: Path, tier: Any) -> None:
    """Random texts of quotes, commas, spaces and line breaks between plain records: those after it stay whole."""
    rng, refused = Random(8), 0
    count = tier.pick(quick=300, test=3_000, deep=30_000)
    for _ in range(count):
        middle = "".join(rng.choice('"""a ,\\\t\n\r\u2028') for _ in range(rng.randint(1, 12)))
        text = f"id,txt,v\n0,z,0\n{middle}\n{END}"
        if first_unclosed_quote(io.StringIO(text, newline=""), ",") is not None:
            refused += 1
            continue
        found = reads(tmp_path, text)
        assert all(record in found for record in AFTER), repr(middle)
    assert 0 < refused < count


def test_without_the_check_records_would_be_lost(tmp_path: Path) -> None:
    """Why there is one: the same dialect swallows what follows an open quote."""
    assert AFTER[0] not in reads(tmp_path, f'id,txt,v\n1,"open,1\n{END}')


def opened(path: Path) -> DuckDBEngine:
    columns = {"u": Column("u", Identifier("integer")), "c": Column("c", Category(("r", "g")))}
    table = Table("t", True, columns, Source("csv", {"path": str(path)}))
    return DuckDBEngine(Dataset("d", "d", "1", {"t": table}, {"user": Unit("user", "user", {"t": "u"})}, ()), threads=1)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_an_open_quote_is_refused_before_anything_is_asked(tmp_path: Path, name: str) -> None:
    write: Any = gzip.open if name.endswith(".gz") else open
    with write(tmp_path / name, "wt") as file:
        file.write('u,c\n1,r\n2,"g\n3,r\n')
    with pytest.raises(InvalidSchema, match=f"a quote in line 3 of {name}, a file of table t") as caught:
        opened(tmp_path / name)
    assert "g" not in str(caught.value).split()
    with write(tmp_path / name, "wt") as file:
        file.write('u,c\n1,r\n2,"g"\n3,r\n')
    by_colour = m.Count(r.LimitRowsPerUnit(r.Scan("t"), "user", 1), (m.GroupKey("c", x.ColumnRef("c")),))
    assert opened(tmp_path / name).vector(by_colour).tolist() == [2, 1]
