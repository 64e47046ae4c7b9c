"""The session: what is asked is what is charged, quotes need no data, batches cost their joint norm."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binom

import dither
from conftest import Tier
from dither.connection import connect, show_measuring
from dither.errors import BudgetExceeded, InvalidParameter, NotFound
from dither.loss import ZCDP, Loss, Pure
from dither.post.estimate.intervals import estimate
from dither.post.query.request import noise_kind
from dither.post.query.spend import Spend
from dither.post.query.typical_rows import known_units
from dither.post.session import Session
from dither.privacy.protocol import Request
from post.bare import BareKernel
from post.estimate.test_intervals import ALARM, planned, redraws
from post.small_world import build, statements

SIZE = 10**13  # what the noisy sizes cost: epsilon 0.01


@contextmanager
def opened(tmp_path: Path, declared: str = "", instead: str = "") -> Iterator[Session]:
    """A session over a kernel of its own; its description may say something else."""
    path = build(tmp_path)
    if declared:
        path.write_text(path.read_text().replace(declared, instead))
    session = dither.connect(path, account="team-a")
    try:
        yield session
    finally:
        session.kernel.close()  # type: ignore[attr-defined]


def charged(request: Request, kernel: BareKernel) -> Fraction:
    """The sum of the pure losses that the mechanisms of a request really have."""
    quote = kernel.quote(request, "")
    return sum((part.loss.epsilon for part in (*(quote.searches or ()), *quote.parts)), Fraction(0))  # type: ignore[union-attr]


COSTLY = [
    "SELECT AVG(age) FROM users",
    "SELECT VARIANCE(age) FROM users",
    "SELECT AVG(age), VARIANCE(age), COUNT(*), SUM(age) FROM users",
    "SELECT country, AVG(salary), STDDEV(age), CORR(age, salary) FROM users GROUP BY country",
    "SELECT COUNT(*), COUNT(DISTINCT user_id), MEDIAN(price), AVG(price) FROM actions",
    "SELECT MIN(age), MAX(age), MEDIAN(age), COUNT(DISTINCT country) FROM users",
    "SELECT action, COUNT(*) FROM actions GROUP BY action",
]


@pytest.mark.parametrize("epsilon", ["1", "0.1", "3/7"])
@pytest.mark.parametrize("query", COSTLY)
def test_the_epsilon_asked_for_is_the_epsilon_charged(
    query: str, epsilon: str, kernel: BareKernel, session: Session
) -> None:
    before = len(kernel.requests)
    session.sql(query, epsilon=epsilon)
    (request,) = kernel.requests[before:]
    assert charged(request, kernel) == Fraction(epsilon)


@pytest.mark.parametrize("query", COSTLY)
def test_the_rho_asked_for_is_never_passed(query: str, kernel: BareKernel, session: Session) -> None:
    before = len(kernel.requests)
    session.sql(query, rho="1/2")
    (request,) = kernel.requests[before:]
    quote = kernel.quote(request, "")
    parts = (*(quote.searches or ()), *quote.parts)
    total = sum((part.mechanism.zcdp_loss(part.sensitivity).rho for part in parts), Fraction(0))
    assert Fraction(499, 1000) <= total <= Fraction(1, 2)


def test_average_variance_and_count_share_their_measures(blind: Session, kernel: BareKernel) -> None:
    together = planned(
        blind, "SELECT COUNT(age), AVG(age), VARIANCE(age), STDDEV(age), SUM(age) FROM users", Spend(Pure(1))
    )
    assert len(together.measures) == 1
    assert len(together.sources) == 3


def test_a_quote_needs_no_data(blind: Session) -> None:
    for query in statements("queries.sql"):
        price = blind.quote(query, epsilon=1, max_contributions=20)
        assert price.expected and all(np.isfinite(column.std_error) for column in price.expected)
        assert blind.explain(query, max_contributions=20).lines


PREDICTED = [
    ("SELECT COUNT(*) FROM users", None),
    ("SELECT SUM(salary) FROM users", None),
    ("SELECT COUNT(*) + 2 * SUM(age) FROM users", None),
    ("SELECT action, COUNT(*) FROM actions GROUP BY action", None),
    ("SELECT action, SUM(price) FROM actions GROUP BY action", None),
    ("SELECT COUNT(DISTINCT user_id) FROM actions", None),
    ("SELECT AVG(age) FROM users", 400.0),
]


@pytest.mark.parametrize("kind", ["epsilon", "rho"])
@pytest.mark.parametrize(("query", "rows"), PREDICTED)
def test_predicted_noise_is_the_measured_noise(
    query: str, rows: float | None, kind: str, session: Session, kernel: BareKernel, tier: Tier
) -> None:
    """Within 5%; the root mean square of 20,000 Laplace draws has a relative spread of 0.8%, so 6 of them fit."""
    times = tier.pick(quick=20_000, test=20_000, deep=100_000)
    price = session.quote(query, max_contributions=20, assumed_group_size=rows, **{kind: 1})  # type: ignore[arg-type]
    budget = Spend(Pure(1) if kind == "epsilon" else ZCDP(1))
    plan = planned(session, query, budget)
    noisy, exact = redraws(session, kernel, plan, budget, times)
    output = plan.outputs[-1]
    keys = [np.zeros(1)] * len(plan.keys)
    found = estimate(output.node, noisy, keys, 0.95)
    truth = estimate(output.node, exact, keys, 0.95)
    errors = found.value.reshape(times, -1) - truth.value[None, :]
    measured = np.sqrt(np.mean(errors**2))
    assert price.expected[-1].std_error == pytest.approx(measured, rel=0.05)


def test_a_wrong_prediction_is_caught(session: Session, kernel: BareKernel) -> None:
    """The named bug: a quote for noise of the wrong scale, off by a tenth."""
    budget = Spend(Pure(1))
    plan = planned(session, "SELECT COUNT(*) FROM users", budget)
    (noisy,), (exact,) = redraws(session, kernel, plan, budget, 20_000)
    measured = float(np.std(noisy.values - exact.values))
    predicted = session.quote("SELECT COUNT(*) FROM users", epsilon="10/11").expected[0].std_error
    assert predicted != pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("max_error", [5, 50, 1234])
def test_max_error_solves_for_epsilon(max_error: float, blind: Session) -> None:
    query = "SELECT country, COUNT(*) AS n FROM users GROUP BY country"
    price = blind.quote(query, max_error=max_error)
    assert price["n"].half_width <= max_error
    assert isinstance(price.loss, Pure)
    cheaper = blind.quote(query, epsilon=price.loss.epsilon * Fraction(9, 10))
    assert cheaper["n"].half_width > max_error * (1 if max_error > 10 else 0.9) - 1


MAX_ERRORS = [
    ("SELECT AVG(age) FROM users", 1),
    ("SELECT country, AVG(salary), COUNT(*) FROM users GROUP BY country", 20_000),
    ("SELECT SUM(salary) / COUNT(*) AS r FROM users", 5_000),
    ("SELECT LN(COUNT(*)) FROM users", 0.1),
    ("SELECT COUNT(*) FILTER (WHERE age > 30) * 1.0 / COUNT(*) FROM users", 0.2),
    ("SELECT CASE WHEN COUNT(*) > 10 THEN ROUND(AVG(age), 1) END AS a FROM users", 1),
    ("SELECT AVG(price) FROM actions", 5),
]


@pytest.mark.parametrize(("query", "max_error"), MAX_ERRORS)
def test_max_error_solves_for_ratios_too(query: str, max_error: float, blind: Session) -> None:
    """The least epsilon for groups of the size that is assumed, and the quote says which."""
    bound = {"max_contributions": 16} if "actions" in query else {}
    price = blind.quote(query, max_error=max_error, assumed_group_size=400, **bound)
    assert isinstance(price.loss, Pure)
    assert max(column.half_width for column in price.expected) <= max_error * 1.001
    assert all(column.known for column in price.expected)
    cheaper = blind.quote(query, epsilon=price.loss.epsilon * Fraction(9, 10), assumed_group_size=400, **bound)
    assert max(column.half_width for column in cheaper.expected) > max_error * 0.99
    dearer = blind.quote(query, max_error=max_error, assumed_group_size=100, **bound)
    assert dearer.loss.epsilon > price.loss.epsilon  # type: ignore[union-attr]
    assert any("400 rows" in note for note in price.notes)


def test_what_depends_on_a_bound_still_to_be_chosen_is_unknown_until_asked(blind: Session) -> None:
    query = "SELECT COUNT(*) AS n, COUNT(DISTINCT user_id) AS people FROM actions"
    quote = blind.quote(query, epsilon=1)
    assert not quote["n"].known and "n: unknown until asked" in repr(quote)
    assert quote["people"].known and f"people: expected ± {quote['people'].width}" in repr(quote)
    assert any("this quote assumes 16 rows" in note for note in quote.notes)
    assert blind.quote(query, epsilon=1, max_contributions=16)["n"].known
    with pytest.raises(InvalidParameter, match="chosen only when the query is asked; give max_contributions="):
        blind.quote(query, max_error=100)


SPREAD = (
    "SUM(age) / SUM(salary)", "CORR(age, salary)", "STDDEV(age)", "VARIANCE(age)", "REGR_SLOPE(age, salary)",
    "MAX(age)", "MIN(joined)", "MEDIAN(age)", "SQRT(SUM(age))", "SUM(age) * SUM(salary)", "AVG(age) / AVG(salary)",
    "COUNT(*) / COUNT(*) FILTER (WHERE vip)", "COUNT(*) / COUNT(DISTINCT user_id)",
)  # fmt: skip


@pytest.mark.parametrize("column", SPREAD)
def test_an_error_that_depends_on_the_spread_of_values_is_unknown_until_asked(column: str, blind: Session) -> None:
    """Regression: these were quoted as if values were spread evenly, up to 50 times too small."""
    query = f"SELECT {column} AS x FROM users"
    quoted = blind.quote(query, epsilon=1)
    assert (
        not quoted["x"].known and repr(quoted["x"]) == "x: unknown until asked: it depends on how the values are spread"
    )
    with pytest.raises(InvalidParameter, match="the error of x depends on how the values are spread"):
        blind.sql(query, max_error=10**6)


def test_a_quote_says_how_far_the_noisy_size_of_a_table_may_be_off(session: Session) -> None:
    """Regression: 158,902 rows were assumed of a table of 69,659, and small ones alone were called rough."""
    few, many = (session.quote(f"SELECT AVG({x}) AS a FROM {t}", epsilon=1) for x, t in COLUMNS_OF_TABLES)
    found = [
        re.findall(r"; that size may be off by about ([\d,.]+) rows", " ".join(each.notes)) for each in (few, many)
    ]
    one, other = (float(text.replace(",", "")) for (text,) in found)
    assert 0 < one <= other


def test_the_error_of_a_filtered_average_is_not_called_known(session: Session) -> None:
    """Regression: errors as if all rows met a condition were quoted as known, 7 times too small."""
    every, some = (
        session.quote(f"SELECT AVG(age) AS a FROM users {where}", epsilon=1) for where in ("", "WHERE age < 30")
    )
    assert "if all rows are left" in repr(some["a"]) and not some["a"].known
    assert any("WHERE or a join may leave fewer" in note for note in some.notes)
    assert "if all rows are left" not in repr(every) and not any("may leave fewer" in note for note in every.notes)
    given = session.quote("SELECT AVG(age) AS a FROM users WHERE age < 30", epsilon=1, assumed_group_size=50)
    assert "if all rows are left" not in repr(given)


COLUMNS_OF_TABLES = (("age", "users"), ("price", "actions"))


def test_max_error_holds_where_the_data_are_as_assumed(session: Session) -> None:
    """400 people in 6 countries: a ratio's real interval is as wide as was asked for, or little wider."""
    answer = session.sql("SELECT AVG(age) AS a FROM users", max_error=1, assumed_group_size=400)
    found = answer["a"].estimate
    assert float(found.high[0] - found.low[0]) / 2 <= 1.3
    assert any("as if each group had 400 rows" in note for note in answer.notes)
    wrong = session.sql("SELECT AVG(age) AS a FROM users", max_error=1, assumed_group_size=40_000)
    assert any("wider than 1" in note for note in wrong.notes)


def test_a_batch_is_solved_too(blind: Session) -> None:
    price = blind.quote_batch([*TEN_RANGES, "SELECT AVG(age) FROM users"], max_error=10, assumed_group_size=400)
    assert 9 < max(column.half_width for column in price.expected) <= 10


def test_sizes_come_from_the_kernel_where_it_knows_them(tmp_path: Path) -> None:
    """The noisy sizes of registration, in equal parts: about 400 people in 6 countries, counted by rows or by units."""
    with opened(tmp_path) as session:
        price = session.quote("SELECT country, AVG(age) AS a FROM users GROUP BY country", epsilon=1)
        assert price["a"].rows != 1000 and price["a"].needs_rows
        sizes = (session.context.noisy_rows("users"), known_units(session.context, "user"))
        assert price["a"].rows in {max(1.0, (size or 0) / 6) for size in sizes}


def test_what_nothing_is_known_about_has_no_warning(blind: Session) -> None:
    """Both ends of a logarithm's interval may be infinite: then the error is, and numpy says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epsilon in (1, 10**9):
            price = blind.quote("SELECT LN(SUM(CASE WHEN vip THEN -1 ELSE 1 END)) AS x FROM users", epsilon=epsilon)
            assert price["x"].half_width > 0


def test_selected_keys_have_a_quote(tmp_path: Path) -> None:
    """The whole of the loss and its delta; refused as a whole, so that no half is spent in vain."""
    query = "SELECT age, gender, COUNT(*) AS n FROM users GROUP BY age, gender"
    with opened(tmp_path, "kind: pure, epsilon: 1000", "kind: zcdp, rho: 3, delta: 0.001") as session:
        price = session.quote(query, rho=2, delta="1/10000", max_contributions=1)
        assert price.loss == ZCDP(2, "1/10000") and price.affordable
        assert price["n"].half_width > 0
        spent = session.budget[0].spent
        dear = session.quote(query, rho=4, delta="1/10000", max_contributions=1)
        assert not dear.affordable
        with pytest.raises(BudgetExceeded, match="nothing was read"):
            session.sql(query, rho=4, delta="1/10000", max_contributions=1)
        assert session.budget[0].spent == spent
        with pytest.raises(InvalidParameter, match="max_error"):
            session.quote(query, max_error=4, delta="1/10000")
        answer = session.sql(query, rho=2, delta="1/10000", max_contributions=1)
        assert session.budget[0].spent[0] - spent[0] == 2 * 10**15
        again = session.sql(
            query, rho=2, delta="1/10000", max_contributions=1
        )  # paid for: what is left need not cover it twice
        assert again.to_dicts() == answer.to_dicts() and all(release.cached for release in again.releases)
        with pytest.raises(BudgetExceeded, match="nothing was read"):
            session.sql(query, rho=2, delta="1/10000", max_contributions=1, repeat=1)
        assert session.budget[0].spent[0] - spent[0] == 2 * 10**15


def test_options_that_do_not_exist_are_refused_by_name(blind: Session) -> None:
    with pytest.raises(TypeError, match="no option epsilno here; there are: epsilon, rho"):
        blind.quote("SELECT COUNT(*) FROM users", epsilno=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option delta"):
        blind.batch(["SELECT COUNT(*) FROM users"], epsilon=1, delta="1/9")
    with pytest.raises(InvalidParameter, match="as arguments"):
        blind.quote_batch(["SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1) COUNT(*) FROM users"] * 2, epsilon=1)


TEN_RANGES = [f"SELECT COUNT(*) FROM users WHERE age >= {low} AND age < {low + 5}" for low in range(18, 68, 5)]
TEN_NESTED = [f"SELECT COUNT(*) FROM users WHERE age < {high}" for high in range(20, 70, 5)]


@pytest.mark.parametrize(
    ("queries", "norm"), [(TEN_RANGES, 1), (TEN_NESTED, 10), ([*TEN_RANGES, "SELECT COUNT(*) FROM users"], 2)]
)
def test_ten_counts_cost_their_joint_norm(queries: list[str], norm: int, session: Session, kernel: BareKernel) -> None:
    """The same noise on each: the batch costs `norm` times what one count costs, not ten times."""
    before = len(kernel.requests)
    answers = session.batch(queries, epsilon=1)
    (request,) = kernel.requests[before:]
    assert charged(request, kernel) == 1
    (part,) = kernel.quote(request, "").parts
    assert part.sensitivity.l1 == norm
    assert part.mechanism.scale == norm  # type: ignore[attr-defined]
    assert len(answers) == len(queries)


MERGED = [
    [
        *TEN_RANGES,
        "SELECT COUNT(*) FROM users WHERE NOT vip AND age <> 30",
        "SELECT COUNT(*) FROM users WHERE age + 1 > 40",
    ],
    [
        "SELECT COUNT(*) FROM users WHERE country NOT IN ('DE', 'FR') OR salary BETWEEN 1000 AND 50000",
        "SELECT COUNT(*) FROM users WHERE salary < 1000 AND NOT (gender = 'f' OR country = 'DE')",
        "SELECT COUNT(*) FILTER (WHERE salary IN (5, 7) OR 100000 <= salary) FROM users",
    ],
]


@pytest.mark.parametrize("queries", MERGED)
def test_a_batch_gives_the_answers_of_its_questions(queries: list[str], session: Session, kernel: BareKernel) -> None:
    one = [session.sql(query, epsilon=10**12).value() for query in queries]
    many = [answer.value() for answer in session.batch(queries, epsilon=10**12)]
    assert np.allclose(one, many, rtol=1e-6)
    assert len(kernel.requests[-1].parts) == 1


def test_a_batch_may_mix_kinds(session: Session) -> None:
    queries = [*TEN_RANGES[:2], "SELECT AVG(age) FROM users", "SELECT COUNT(*) FROM actions"]
    one = [session.sql(query, epsilon=10**12).value() for query in queries]
    many = [answer.value() for answer in session.batch(queries, epsilon=10**12, max_contributions=100)]
    assert np.allclose(one, many, rtol=1e-2)


def test_each_question_of_a_batch_has_a_bound_of_its_own(session: Session, kernel: BareKernel) -> None:
    """Few rows are long: their bound is far below that of all."""
    queries = ["SELECT COUNT(*) AS n FROM actions", "SELECT COUNT(*) AS n FROM actions WHERE seconds > 590"]
    before = len(kernel.requests)
    every, few = session.batch(queries, epsilon=10**9)
    (request,) = kernel.requests[before:]
    assert [search.tag for search in request.searches] == ["mass", "mass 1"]
    assert every.bounds["mass"].bound > few.bounds["mass 1"].bound
    assert (every.value(), few.value()) == pytest.approx(
        tuple(session.sql(query, epsilon=10**12, max_contributions=100).value() for query in queries), rel=1e-2
    )


@pytest.mark.tier("test")
def test_a_large_batch_finds_all_its_bounds_in_one_charge(tmp_path: Path) -> None:
    """Each question has bounds of its own, for rows and values; ladders are thinned so that pricing stays cheap."""
    queries = [
        f"SELECT COUNT(*) AS n, SUM(price) AS s FROM actions WHERE seconds < {most}" for most in range(20, 620, 20)
    ]
    with opened(tmp_path) as session:
        answers = session.batch(queries, epsilon=3)
        assert session.budget[0].spent[0] - SIZE == 3 * 10**15
        assert len(answers) == 30 and all(len(answer.bounds) == 2 for answer in answers)
        assert len({id(answer.releases[0]) for answer in answers}) == 1
        assert len(answers[0].releases[0].search_results or ()) == 60


def test_another_draw_is_another_price(tmp_path: Path) -> None:
    """The named bug: the quote for a second draw said that it was free, because the first had been asked."""
    query, pair = "SELECT COUNT(*) AS n FROM users", ["SELECT COUNT(*) AS n FROM users", "SELECT AVG(age) FROM users"]
    with opened(tmp_path) as session:
        session.sql(query, epsilon=1, repeat=3)
        session.batch(pair, epsilon=1, repeat=3)
        for draw, free in ((0, False), (3, True), (4, False)):
            assert session.quote(query, epsilon=1, repeat=draw).free is free
            assert session.quote_batch(pair, epsilon=1, repeat=draw).free is free
            spent = session.budget[0].spent
            session.sql(query, epsilon=1, repeat=draw)
            assert (session.budget[0].spent == spent) is free  # as the quote said


def test_a_batch_quote_is_one_price(blind: Session) -> None:
    price = blind.quote_batch(TEN_RANGES, epsilon=1)
    assert len(price.expected) == 10
    assert all(column.std_error == pytest.approx(1.357, rel=0.01) for column in price.expected)


def test_rho_takes_the_better_noise(blind: Session) -> None:
    """One count: Laplace; many cells of one unit: Gaussian."""
    one = planned(blind, "SELECT COUNT(*) FROM users", Spend(ZCDP(Fraction(1, 2))))
    many = f"SELECT {', '.join(f'COUNT(*) FILTER (WHERE age < {age})' for age in range(20, 65, 5))} FROM users"
    several = planned(blind, many, Spend(ZCDP(Fraction(1, 2))))
    kinds = [
        noise_kind(blind.context, plan.measures[0].measure, "user", ZCDP(Fraction(1, 2))) for plan in (one, several)
    ]
    assert kinds[1] == "discrete_gaussian"


@pytest.mark.tier("test")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
        "SELECT COUNT(*) AS n FROM actions",
        "SELECT SUM(price) AS n FROM actions",
        "SELECT AVG(price) AS n FROM actions",
    ],
)
def test_automatic_bounds_cover_the_unbounded_truth(query: str, session: Session, truth: object, tier: Tier) -> None:
    """Coverage over whole redraws, bound included; a right interval fails the bound with a chance below 1e-12."""
    times = tier.pick(quick=40, test=120, deep=1_000)
    exact = {row[:-1]: float(row[-1]) for row in truth.execute(query).fetchall()}  # type: ignore[attr-defined]
    held = 0
    for draw in range(times):
        answer = session.sql(query, epsilon=1, max_contributions="auto", repeat=draw)
        keys = [
            tuple(answer.keys.column(place)[row].as_py() for place, c in enumerate(answer.columns) if c.key)
            for row in range(len(answer))
        ]
        found = answer["n"].estimate
        held += sum(found.low[row] <= exact[key] <= found.high[row] for row, key in enumerate(keys))
    total = times * len(exact)
    # Groups of one redraw are not independent: the bound is for as many trials as there are redraws.
    assert held / total >= (binom.ppf(ALARM, times, 0.95) - 1) / times


def test_light_and_heavy_units_add_up(session: Session, truth: object) -> None:
    query = "SELECT COUNT(*) AS n FROM actions"
    light, heavy = session.split(query, 10, epsilon=10**12, max_contributions=100)
    rows = truth.execute(  # type: ignore[attr-defined]
        "SELECT SUM(n) FILTER (WHERE n <= 10), SUM(n) FILTER (WHERE n > 10) "
        "FROM (SELECT COUNT(*) AS n FROM actions GROUP BY user_id)"
    ).fetchone()
    assert (light.value(), heavy.value()) == pytest.approx(rows, rel=1e-4)


def test_bounds_lie_below_the_step_that_loses_the_unit(blind: Session) -> None:
    """Rows are bounded just below the join that loses their unit: two changed rows for each of five."""
    query = "SELECT topic, COUNT(*) AS n FROM urls LEFT JOIN actions ON urls.url_id = actions.url_id GROUP BY topic"
    assert blind.quote(query, epsilon=1, max_contributions=5)["n"].std_error == pytest.approx(2 * 5 * 2**0.5, rel=0.1)


def test_answers_travel_well(session: Session) -> None:
    answer = session.sql("SELECT country, COUNT(*) AS n FROM users GROUP BY country ORDER BY n DESC", epsilon=1)
    assert isinstance(answer.table, pa.Table)
    assert answer.table.column_names == ["country", "n", "n_std_error", "n_low", "n_high"]
    assert list(answer.to_pandas().columns) == answer.table.column_names
    assert answer.to_polars().shape == (6, 5)
    assert "<svg" in answer._repr_html_() and "epsilon 1" in answer._repr_html_()
    assert answer.plot().get_xlabel().startswith("n (95%")
    assert "DE" in str(answer)
    (noisy,) = answer.measurements
    assert noisy["mechanism"] == "discrete_laplace" and noisy["sensitivity"]["l1"] == "1" and len(noisy["values"]) == 6


def test_html_escapes_what_the_query_says(session: Session) -> None:
    answer = session.sql('SELECT COUNT(*) AS "<script>alert(1)</script>" FROM users', epsilon=1)
    assert "<script>" not in answer._repr_html_()


MEANINGLESS = (
    {},
    {"epsilon": 1, "rho": 1},
    {"epsilon": 0},
    {"epsilon": -1},
    {"epsilon": "x"},
    {"epsilon": 1, "max_error": 3},
    {"epsilon": 1, "max_contributions": 0},
    {"epsilon": 1, "max_contributions": "many"},
    {"epsilon": 1, "max_contributions": {"max_rows": 0}},
    {"epsilon": 1, "confidence": 1},
)


@pytest.mark.parametrize("options", MEANINGLESS)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], blind: Session) -> None:
    with pytest.raises(InvalidParameter):
        blind.quote("SELECT COUNT(*) FROM users", **options)  # type: ignore[arg-type]


def test_options_in_the_text_count_like_arguments(blind: Session) -> None:
    options = "epsilon=0.5, max_groups_contributed=2, max_rows_per_group=3"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({options}) action, COUNT(*) FROM actions GROUP BY action"
    argued = blind.quote(
        "SELECT action, COUNT(*) FROM actions GROUP BY action",
        epsilon="1/2",
        max_contributions={"max_groups": 2, "max_rows_per_group": 3},
    )
    assert blind.quote(text).expected[0].std_error == argued.expected[0].std_error


def test_connect_in_process(tmp_path: Path) -> None:
    """The real kernel: charged exactly, remembered, refused when spent."""
    with opened(tmp_path, "epsilon: 1000", "epsilon: 2") as session:
        answer = session.sql("SELECT country, AVG(age) AS a FROM users GROUP BY country", epsilon=1)
        assert session.budget[0].spent[0] - SIZE == 10**15
        again = session.sql("SELECT country, AVG(age) AS a FROM users GROUP BY country", epsilon=1)
        assert list(again["a"].estimate.value) == list(answer["a"].estimate.value)
        assert session.budget[0].spent[0] - SIZE == 10**15
        with pytest.raises(BudgetExceeded):
            session.sql("SELECT COUNT(*) FROM users", epsilon=1)
        assert not session.quote("SELECT COUNT(*) FROM users", epsilon=1).affordable
        assert len(session.history) >= 1
        assert sorted(session.tables) == ["actions", "urls", "users"]


def test_opening_reads_nothing_and_a_question_or_quote_measures_the_sizes_first(tmp_path: Path) -> None:
    query = "SELECT country, AVG(age) AS a FROM users GROUP BY country"
    with opened(tmp_path) as session:
        assert sorted(session.tables) == ["actions", "urls", "users"] and not session.history
        assert session.budget[0].spent[0] == 0 and session.profile is None and session.statement.balances
        with pytest.raises(NotFound):
            session.sql("SELECT COUNT(*) FROM usres", epsilon=1)
        assert not session.history and session.described.noisy_rows("users") is None
        priced = session.quote(query, epsilon=1)
        assert [entry.account for entry in session.history] == ["kernel"] and session.budget[0].spent[0] == SIZE
        assert priced["a"].rows == max(1.0, (session.context.noisy_rows("users") or 0) / 6)
        assert any("size_epsilon" in note for note in priced.notes)
        session.sql(query, epsilon=1)
        assert session.budget[0].spent[0] == SIZE + 10**15
        later = Session.from_kernel(session.kernel, "team-a")
        assert later.context == session.context == later.described


def test_measuring_shows_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with show_measuring("towns"):
        pass
    assert capsys.readouterr() == ("", "")


def test_an_automatic_bound_is_one_charge_of_the_session(tmp_path: Path) -> None:
    """Charged once, answered again for nothing, refused without spending; history and the answer show both draws."""
    query = "SELECT COUNT(*) AS n, COUNT(DISTINCT url_id) AS d, SUM(price) AS s FROM actions"
    with opened(tmp_path, "epsilon: 1000", "epsilon: 2") as session:
        answer = session.sql(query, epsilon=1, request_id="once")
        assert session.budget[0].spent[0] - SIZE == 10**15
        assert [entry.account for entry in session.history] == ["kernel", "team-a"]
        assert answer.loss == (Pure(1),) and sorted(answer.bounds) == ["mass", "rows", "values0"]
        assert (
            len(answer.measurements) == 6
            and sum(Fraction(part["loss"]["epsilon"]) for part in answer.measurements) == 1
        )
        for again in (session.sql(query, epsilon=1, request_id="once"), session.sql(query, epsilon=1)):
            assert again.to_dicts() == answer.to_dicts() and again.releases[0].cached
        assert session.quote(query, epsilon=1).free
        with pytest.raises(BudgetExceeded):
            session.sql(query, epsilon="3/2")
        assert session.budget[0].spent[0] - SIZE == 10**15
        assert "in the same charge" in str(session.explain(query))


def test_connect_needs_a_name_and_a_token(session: Session, kernel: BareKernel) -> None:
    with pytest.raises(NotFound, match="no dataset 'other'"):
        Session.from_kernel(kernel, "analyst", "other")
    with pytest.raises(InvalidParameter, match="token"):
        connect("https://dither.example")


def test_losses_are_reported_with_the_answer(session: Session) -> None:
    losses: tuple[Loss, ...] = session.sql("SELECT COUNT(*) FROM users", epsilon="1/3").loss
    assert losses == (Pure(Fraction(1, 3)),)


def test_undeclared_keys_are_selected_privately(tmp_path: Path) -> None:
    """A key with a handful of units behind it is not named; common ones are, with their counts."""
    query = "SELECT age, gender, COUNT(*) AS n FROM users GROUP BY age, gender"
    with opened(tmp_path, "kind: pure, epsilon: 1000", "kind: zcdp, rho: 100, delta: 0.001") as session:
        answer = session.sql("SELECT gender, COUNT(*) AS n FROM users GROUP BY gender", rho=2, delta="1/10000")
        assert {row["gender"] for row in answer.to_dicts()} == {"f", "m", "x"}
        assert "selected privately" in answer.notes[-1]
        fewer = session.sql(query, rho=2, delta="1/10000", max_contributions=1)
        assert len(fewer) < 48 * 3
        with pytest.raises(NotFound, match="enough units"):
            by_salary = "SELECT salary, COUNT(*) AS n FROM users GROUP BY salary"  # delta 1e-12: none by chance
            session.sql(by_salary, rho="1/100", delta="1/1000000000000", max_contributions=1)


def test_a_batch_says_whose_loss_it_reports_and_quotes_the_notes_of_every_query(session: Session) -> None:
    rounded = "SELECT SUM(CLAMP(salary / 7, 0, 1000)) AS s FROM users"
    answers = session.batch(["SELECT COUNT(*) AS n FROM users", rounded], epsilon=1)
    assert all("the loss is that of all 2 queries of the batch, charged once" in answer.notes for answer in answers)
    (single,) = session.batch(["SELECT COUNT(*) AS n FROM users"], epsilon=1)
    assert not any("charged once" in note for note in single.notes)
    halves = session.split("SELECT COUNT(*) AS n FROM actions", 3, epsilon=1)
    assert all("the loss is that of both answers of the split, charged once" in answer.notes for answer in halves)
    own = session.quote(rounded, epsilon=1).notes
    notes = session.quote_batch(["SELECT COUNT(*) AS n FROM users", rounded], epsilon=1).notes
    assert notes.count("unit of privacy: user") == 1
    (note,) = (note for note in own if "are rounded to multiples of" in note)
    assert f"query 2: {note}" in notes


def test_a_quote_warns_that_selecting_keys_may_release_none(session: Session) -> None:
    quote = session.quote("SELECT salary, COUNT(*) AS n FROM users GROUP BY salary", epsilon=1, delta="1/1000000")
    assert any("charged even if none is released" in note for note in quote.notes)


def test_a_large_answer_is_announced(session: Session) -> None:
    query = "SELECT salary, COUNT(*) AS n FROM users GROUP BY salary"
    assert "the answer has 300,001 groups" in " ".join(session.quote(query, epsilon=1).notes)
    assert "groups" not in " ".join(session.quote("SELECT COUNT(*) AS n FROM users", epsilon=1).notes)
