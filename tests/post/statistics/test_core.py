"""A statistic is one request and one charge, quoted with the same arguments, and rehearsed before it is charged."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dither.errors import InvalidParameter, NotFound, Unsupported
from dither.post.session import Session
from dither.post.statistics.core import Measurements, Part, Statistic
from dither.post.statistics.result import Result, key_column, noisy_column, result_fields
from dither.post.statistics.source_rows import read_rows
from dither.schema import Category, Number
from post.bare import BareKernel


def counts(session: Session, source: str, **options: object) -> Statistic[Measurements]:
    rows = read_rows(session, source, options)  # type: ignore[arg-type]
    return Statistic(rows.settings, (Part(rows.plan(["COUNT(*) AS n"], by=["country"])),), lambda measured: measured)


def test_a_statistic_is_one_request(session: Session, kernel: BareKernel) -> None:
    before = len(kernel.requests)
    result = session.table("users", ["country", "gender"], margins="all", epsilon=1)
    assert len(kernel.requests) == before + 1
    assert sum(part.epsilon for part in result.loss) == 1  # type: ignore[union-attr]
    assert len(result.measurements) == 4


def test_a_quote_has_the_same_arguments_and_reads_nothing(blind: Session) -> None:
    quote = blind.table.quote("users", ["country"], margins=[[], ["country"]], epsilon=1)
    assert [column.name for column in quote.expected] == ["a cell by country", "the total"]
    assert quote.loss.epsilon == 1  # type: ignore[union-attr]
    assert all(column.half_width > 0 for column in quote.expected)


def test_the_rows_of_a_select_are_a_population(session: Session) -> None:
    rows = read_rows(session, "SELECT country, age FROM users WHERE age >= 40", {"epsilon": 1})
    assert isinstance(rows.domain("country"), Category)
    narrowed = rows.domain("age")
    assert isinstance(narrowed, Number) and (narrowed.lo, narrowed.hi) == (40, 65)
    assert isinstance(rows.domain("FLOOR(age / 10)"), Number)


def test_units_with_many_rows_have_a_private_bound_in_the_same_charge(session: Session, kernel: BareKernel) -> None:
    session.table("actions", ["action"], epsilon=2)
    request = kernel.requests[-1]
    assert len(request.searches) == 1 and len(request.parts) == 1


def test_parts_share_the_loss_by_their_weights(session: Session) -> None:
    rows = read_rows(session, "users", {"epsilon": 3})
    plan = rows.plan(["COUNT(*)"])
    parts = (Part(plan, Fraction(1)), Part(plan, Fraction(2)))
    ((one,), (two,)) = Statistic(rows.settings, parts, lambda measured: measured).measurements()
    assert (one.mechanism.loss.epsilon, two.mechanism.loss.epsilon) == (1, 2)  # type: ignore[union-attr]


def test_a_part_may_have_another_mechanism(session: Session) -> None:
    rows = read_rows(session, "users", {"epsilon": 1000})
    part = Part(rows.plan(["COUNT(*)"], by=["gender"]), mechanism="top_k", options=(("count", 2),))
    places = Statistic(rows.settings, (part,), lambda measured: measured.parts[0].released[0].values).ask()
    assert set(places) == {0, 1}  # f and m are far more common than x


def test_values_come_with_their_noise(session: Session) -> None:
    measured = counts(session, "users", epsilon=1000).ask()
    part = measured.parts[0]
    assert part.values().shape == (6, 1)
    assert part.values().sum() == 400
    assert part.variances().shape == (1,) and part.variances()[0] < 1e-6


@pytest.mark.parametrize("total", [5, 0, -5])
def test_a_result_that_only_some_numbers_break_is_refused_before_the_charge(
    total: int, session: Session, kernel: BareKernel
) -> None:
    """Regression: `independence` of a column with itself failed after its charge if the noisy total was above 1."""
    before = len(kernel.requests)

    def fail(measured: Measurements) -> Measurements:
        if np.sign(measured.parts[0].values()).sum() == np.sign(total) * 6:
            raise IndexError("only for such numbers")
        return measured

    with pytest.raises(Unsupported, match="IndexError"):
        replace(counts(session, "users", epsilon=1), build=fail).ask()
    assert len(kernel.requests) == before


def test_a_result_that_cannot_be_built_is_refused_before_the_charge(session: Session, kernel: BareKernel) -> None:
    before = len(kernel.requests)

    def fail(measured: Measurements) -> Measurements:
        raise ZeroDivisionError("no rows")

    with pytest.raises(Unsupported, match="nothing was asked or spent"):
        replace(counts(session, "users", epsilon=1), build=fail).ask()
    assert len(kernel.requests) == before


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("nobody", {"epsilon": 1}, NotFound, "no table 'nobody'"),
        ("", {"epsilon": 1}, InvalidParameter, "name of a table"),
        ("users", {}, InvalidParameter, "give epsilon= or rho="),
        ("users", {"epsilon": 1, "delta": 0.1}, TypeError, "no option delta"),
    ],
)
def test_refusals(
    session: Session, source: str, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        counts(session, source, **options)


def test_results_show_a_summary_above_their_table(session: Session) -> None:
    measured = counts(session, "users", epsilon=1).ask()
    columns = [key_column("name", ["a", "b"]), noisy_column("n", [1.0, 2.0], [0.1, 0.1], [0.8, 1.8], [1.2, 2.2])]
    result = Result(**result_fields(measured, "title", columns, ["a summary"], ["a note"]))
    assert repr(result).splitlines()[:3] == ["a summary", "name | n", "a | 1.00 [0.80, 1.20]"]
    assert "note: a note" in repr(result)
    assert "<p>a summary</p>" in result._repr_html_()
    assert list(result.to_pandas().columns) == ["name", "n", "n_std_error", "n_low", "n_high"]
    assert np.allclose(result["n"].value, [1, 2])
