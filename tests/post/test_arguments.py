"""Every argument of every public method, with values that mean nothing: a plain refusal, and nothing charged.

The command line and HTTP read the same table of options, and get the same values.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dither
from dither import cli
from dither.errors import DitherError, InvalidParameter
from dither.loss import Pure
from dither.post.contribution_bound import ContributionBound
from dither.post.options import OPTIONS, QueryOptions, options_of, resolve_options
from dither.post.session import Session
from dither.post.statistics.core import statistic
from post.bare import BareKernel
from serve.servers import Place, place

COUNT = "SELECT COUNT(*) AS n FROM users"
HOSTILE: list[Any] = [
    math.nan, math.inf, -math.inf, "x", "", " 1", "1e400", "1" * 100, "\ud800", "a\0b", [1], ["a"], (), {}, {"a": 1},
    {"max_groups": 0}, {"max_rows": "x"}, {1: 2}, True, False, -1, 0, 10**400, 2**31, 2**64, 0.5, -0.0, 1e308, 5e-324,
    b"1", object(), Fraction(-1, 3), np.nan, np.int64(-3), np.array([1, 2]), print, 1 + 2j,
]  # fmt: skip
# The hostile values that an option takes after all: they are numbers of the right kind, or a way to write its default.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "epsilon": (2**31, 2**64, 0.5),
    "rho": (2**31, 2**64, 0.5),
    "max_error": (2**31, 2**64, 0.5),
    "assumed_group_size": (2**31, 2**64, 0.5),
    "confidence": (0.5,),
    "delta": (0.5,),
    "repeat": (0,),
    "nonnegative": (True, False),
    "max_contributions": ({},),
    "unit": ("x", " 1", "1e400", "1" * 100),  # texts, of which none names a unit
    "request_id": ("x", "", "1e400"),
    "refine": (2**31, 2**64, 0.5),
}
METHODS = {"sql": "question", "quote": "question", "explain": "question", "batch": "batch", "quote_batch": "batch",
           "split": "split"}  # fmt: skip


def wrong(name: str) -> list[Any]:
    """Return the hostile values that an argument must refuse."""
    allowed = ALLOWED.get(name, ())
    return [value for value in HOSTILE if not any(type(value) is type(each) and value == each for each in allowed)]


def call(session: Session, method: str, **arguments: Any) -> Any:
    """Call a method with arguments that are right, except for those given."""
    usual: dict[str, Any] = {"query": COUNT, "queries": [COUNT], "threshold": 3}
    names = inspect.signature(getattr(Session, method)).parameters
    options = {"epsilon": 1, **arguments}
    if {"rho", "max_error"} & set(arguments):
        options.pop("epsilon")
    return getattr(session, method)(**{**{name: value for name, value in usual.items() if name in names}, **options})


@pytest.mark.parametrize("method", METHODS)
def test_every_option_refuses_what_means_nothing(method: str, session: Session, kernel: BareKernel) -> None:
    asked = len(kernel.requests)
    for name in options_of(METHODS[method]):  # type: ignore[arg-type]
        if method == "explain" and name in ("epsilon", "rho", "max_error"):
            continue
        for value in wrong(name):
            with pytest.raises(InvalidParameter) as refusal:
                call(session, method, **{name: value})
            assert len(str(refusal.value)) > 20 and "Traceback" not in str(refusal.value), (name, value)
    assert len(kernel.requests) == asked, "nothing was asked of the kernel"


@pytest.mark.parametrize(("method", "name"), [
    ("sql", "query"), ("quote", "query"), ("explain", "query"), ("batch", "queries"), ("quote_batch", "queries"),
    ("split", "query"), ("split", "threshold"), ("sql", "request_id"), ("batch", "request_id"),
])  # fmt: skip
def test_every_argument_refuses_what_means_nothing(
    method: str, name: str, session: Session, kernel: BareKernel
) -> None:
    asked = len(kernel.requests)
    for value in (*wrong(name), *([] if name == "request_id" else [None])):
        with pytest.raises(DitherError):
            call(session, method, **{name: value})
    assert len(kernel.requests) == asked


# Right arguments of every statistic; each of them is replaced by hostile values in turn.
STATISTICS: dict[str, dict[str, Any]] = {
    "table": {"source": "users", "by": ["gender"]},
    "histogram": {"source": "users", "column": "age"},
    "quantiles": {"source": "users", "column": "age"},
    "contributions": {"table": "actions"},
    "distribution": {"source": "users", "column": "age"},
    "compare": {"source": "users", "value": "age", "by": "gender"},
    "independence": {"source": "users", "one": "gender", "two": "country"},
    "describe": {"source": "users", "columns": ["age"]},
    "proportion": {"source": "users", "condition": "vip"},
    "ratio": {"source": "users", "over": "salary", "under": "age"},
    "top": {"source": "users", "by": "country", "k": 2},
    "watch": {"query": "SELECT gender, COUNT(*) AS n FROM users GROUP BY gender", "above": 3},
    "regress": {"source": "users", "target": "salary", "features": ["age"]},
    "classify": {"source": "users", "target": "vip", "features": ["age"]},
    "synthesize": {"source": "users", "columns": ["gender", "vip"]},
    "components": {"source": "users", "columns": ["age", "salary"]},
    "cluster": {"source": "users", "columns": ["age", "salary"], "count": 2},
    "naive_bayes": {"source": "users", "target": "vip", "features": ["gender"]},
}
MORE_HOSTILE: list[Any] = [
    None, 10**9, [math.nan], [0.5] * 3, range(10**9), {"age": 10**9}, {"age": [math.nan]}, {"age": "x"}, ["age", "age"],
    "age'; DROP TABLE users; --", 'ag"e', "age)) FROM users --", "SELECT 1", "SELECT * FROM users; SELECT 1", "年齢",
    "COUNT(*)",
    [["gender"], "gender"], [[1]], "(SELECT MAX(age) FROM users)",
]  # fmt: skip


def statistic_arguments(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a statistic, without the options that all of them share."""
    parameters = inspect.signature(getattr(Session, name).__func__).parameters
    return {each: known for each, known in parameters.items() if each not in ("self", "options")}


def test_every_statistic_is_in_the_list() -> None:
    assert {name for name in dir(Session) if isinstance(getattr(Session, name), statistic)} == set(STATISTICS)


@pytest.mark.tier("test")
@pytest.mark.parametrize("name", STATISTICS)
def test_every_argument_of_a_statistic_is_refused_or_answered(name: str, blind: Session, session: Session) -> None:
    """What a quote accepts is also answered: nothing fails after the charge, and no value stops the process."""
    options = [*options_of("statistic"), "request_id"]
    for argument in (*statistic_arguments(name), *options):
        asked = 0
        for value in (*HOSTILE, *MORE_HOSTILE):
            given = {"epsilon": 1, **STATISTICS[name], argument: value}
            try:
                quote = getattr(blind, name).quote(**given)
            except DitherError as refusal:
                assert len(str(refusal)) > 15, (argument, value)
            else:
                assert str(quote), (argument, value)
                if argument not in options and (asked := asked + 1) <= 3:
                    assert str(getattr(session, name)(**given)), (argument, value)


def test_truth_values_and_lists_of_statistics_are_not_taken_for_something_else(blind: Session) -> None:
    flags = [
        (name, argument)
        for name in STATISTICS
        for argument, known in statistic_arguments(name).items()
        if known.annotation == "bool"
    ]
    assert len(flags) > 6
    for name, argument in flags:
        for value in ("no", 0, 1, [], None):
            with pytest.raises(InvalidParameter, match=f"{argument} must be true or false"):
                getattr(blind, name).quote(**STATISTICS[name], epsilon=1, **{argument: value})
    for epsilon in (700, 10**6):
        with pytest.raises(InvalidParameter, match="sample="):
            blind.classify.quote("users", "vip", ["age"], sample="1e-9", epsilon=epsilon)
    with pytest.raises(InvalidParameter, match="alpha"):
        blind.regress.quote("users", "salary", ["age"], alpha=-1, epsilon=1)
    one = blind.describe.quote("users", "age", epsilon=1)
    assert one == blind.describe.quote("users", ["age"], epsilon=1), "a text is one column, not its letters"


def test_refine_takes_only_an_answer(session: Session, kernel: BareKernel) -> None:
    answer = session.sql(COUNT, epsilon=1)
    asked = len(kernel.requests)
    for value in (*HOSTILE, None):
        with pytest.raises(InvalidParameter, match="refine takes an answer"):
            session.refine(value, epsilon=1)
    for name in ("epsilon", "rho", "request_id"):
        for value in wrong(name):
            with pytest.raises(InvalidParameter):
                session.refine(answer, **{"epsilon": 1, name: value} if name == "request_id" else {name: value})
    assert len(kernel.requests) == asked


def test_connect_refuses_what_means_nothing(folder: Path, tmp_path: Path, kernel: BareKernel) -> None:
    described, ledger = folder / "dataset.yml", tmp_path / "ledger.sqlite"
    no_texts = [value for value in HOSTILE if not isinstance(value, str) or value in ("", "a\0b", "\ud800")]
    for value in (*HOSTILE, None):
        with pytest.raises(DitherError):
            dither.connect(value, ledger=ledger)
    for value in no_texts:
        with pytest.raises(DitherError):
            dither.connect(described, ledger=ledger, account=value)
        with pytest.raises(DitherError):
            Session.from_kernel(kernel, "analyst", value)
        with pytest.raises(DitherError):
            dither.connect("http://127.0.0.1:9", token=value)
    for value in (1, [1], b"x", True, 0.5):
        with pytest.raises(DitherError, match="ledger must be"):
            dither.connect(described, ledger=value)


def test_unknown_options_are_a_type_error_with_the_known_ones(session: Session) -> None:
    with pytest.raises(TypeError, match="no option epsilno here; there are: epsilon, rho"):
        session.sql(COUNT, epsilno=1)  # type: ignore[call-arg]


def test_none_means_that_an_option_is_not_given(session: Session) -> None:
    nothing: dict[str, Any] = {name: None for name in OPTIONS if name != "epsilon"}
    assert session.quote(COUNT, epsilon=1, **nothing) == session.quote(COUNT, epsilon=1)


def test_numbers_of_numpy_are_numbers(session: Session) -> None:
    usual = session.quote("SELECT COUNT(*) AS n FROM actions", epsilon=1, max_contributions=5)
    numpy: Any = {"epsilon": np.float64(1), "max_contributions": np.int64(5), "repeat": np.int32(0)}
    assert session.quote("SELECT COUNT(*) AS n FROM actions", **numpy) == usual
    assert resolve_options({"max_contributions": "5"}).max_contributions == ContributionBound(max_rows=5)
    texts = {
        "auto": ContributionBound(auto=True),
        "20,report": ContributionBound(max_rows=20, report=True),
        "max_rows=20, report=true, how=rows": ContributionBound(max_rows=20, report=True, how="rows"),
        "max_groups=3,max_rows_per_group=5": ContributionBound(max_rows=5, max_groups=3),
        "how=clip": ContributionBound(auto=True, how="clip"),
    }
    assert {text: resolve_options({"max_contributions": text}).max_contributions for text in texts} == texts
    for wrong in ("", "x", "report", "20,20", "20,report=5", "20,reprot", "-1", "1e3", "max_rows=two", "20,how=cut"):
        with pytest.raises(InvalidParameter, match="max_contributions must be"):
            resolve_options({"max_contributions": wrong})


def written(options: str) -> str:
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({options}) action, COUNT(*) AS n FROM actions GROUP BY action"


@pytest.mark.parametrize(("text", "arguments", "both"), [
    ("epsilon = 0.5", {"epsilon": 1}, ("epsilon = 0.5", "epsilon = 1")),
    ("rho = 3", {"epsilon": 1}, ("rho = 3", "epsilon = 1")),
    ("max_error = 9", {"epsilon": 1}, ("max_error = 9", "epsilon = 1")),
    ("unit = action", {"epsilon": 1, "unit": "user"}, ("unit = action", "unit = user")),
    ("confidence = 0.9", {"epsilon": 1, "confidence": 0.95}, ("confidence = 0.9", "confidence = 0.95")),
    ("delta = 1e-6", {"epsilon": 1, "delta": "1/100"}, ("delta = 1e-6", "delta = 1/100")),
    ("max_contributions = 3", {"epsilon": 1, "max_contributions": 4}, ("max_contributions = 3", "= 4")),
    ("max_rows_per_key = 3", {"epsilon": 1, "max_rows_per_key": 4}, ("max_rows_per_key = 3", "= 4")),
    ("max_groups = 2", {"epsilon": 1, "max_contributions": 4}, ("max_groups", "= 4")),
])  # fmt: skip
def test_an_argument_and_the_text_that_disagree_are_refused(
    text: str, arguments: Any, both: tuple[str, ...], blind: Session
) -> None:
    with pytest.raises(InvalidParameter, match="give one of them, or the same twice") as refusal:
        blind.quote(written(text), **arguments)
    assert all(value in str(refusal.value) for value in both)


def test_the_same_twice_and_either_alone_mean_one_thing(blind: Session) -> None:
    options: QueryOptions = {"epsilon": "1/2", "confidence": "0.9", "max_contributions": 3, "unit": "user"}
    text = "epsilon = 0.5, confidence = 0.9, max_contributions = 3, unit = user"
    quotes = [
        blind.quote(written(""), **options), blind.quote(written(text)), blind.quote(written(text), **options),
        blind.quote(written("epsilon = 0.5, unit = user"), confidence=0.9, max_contributions="3"),
    ]  # fmt: skip
    assert all(quote == quotes[0] for quote in quotes) and quotes[0].loss == Pure("1/2")
    join = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({}) COUNT(*) AS n FROM users a JOIN users b ON a.age = b.age"
    argued = blind.quote(join.format("epsilon = 1"), max_contributions=1, max_rows_per_key=50)
    assert argued == blind.quote(join.format("epsilon = 1, max_contributions = 1, max_rows_per_key = 50"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("arguments")) as made:
        yield made


def in_json(value: Any) -> str | None:
    """Return a value as JSON, or None if it has none."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


@pytest.mark.tier("test")
@pytest.mark.parametrize(("path", "place"), [
    ("/v1/answer", "question"), ("/v1/quote", "question"), ("/v1/batch", "batch"), ("/v1/split", "split"),
])  # fmt: skip
def test_http_refuses_what_means_nothing(path: str, place: Any, there: Place) -> None:
    charges = there.charges()
    query = "SELECT COUNT(*) AS n FROM people"
    body = {"dataset": "town", "queries" if place == "batch" else "query": [query] if place == "batch" else query}
    body |= {"threshold": 3} if place == "split" else {}
    extra = {"question": ("refine", "request_id", "query"), "batch": ("queries", "request_id"), "split": ("threshold",)}
    for name in (*options_of(place), *extra[place], "dataset"):
        fields = body if {name} & {"rho", "max_error"} else {**body, "epsilon": 1}
        values = [text for value in wrong(name) if (text := in_json(value)) is not None]
        for value in values if name not in ("query", "dataset") else ["5", "[1]", "{}", "true", '""']:
            text = json.dumps({**fields, name: "?"}).replace('"?"', value)
            reply = there.http.post(path, content=text.encode("utf-8", "replace"), headers=there.headers("ann"))
            known = reply.status_code in (400, 404) or (name == "unit" and reply.status_code == 404)
            assert known and reply.json()["error"]["message"], (name, value, reply.text)
    assert there.charges() == charges


def test_http_needs_no_dataset_if_there_is_one(there: Place) -> None:
    query = {"query": "SELECT COUNT(*) AS n FROM people", "epsilon": "0.1"}
    assert there.post("/v1/quote", query).json()["affordable"]
    assert there.post("/v1/answer", query).status_code == 200
    for name in ("budget", "history", "statement"):
        assert there.get(f"/v1/{name}").json() == there.get(f"/v1/{name}?dataset=town").json()
    assert there.post("/v1/quote", {**query, "dataset": "village"}).status_code == 404


@pytest.mark.tier("test")
def test_the_command_line_refuses_what_means_nothing(folder: Path, tmp_path: Path) -> None:
    at, ledger = str(folder / "dataset.yml"), str(tmp_path / "ledger.sqlite")
    values = ("nan", "0")
    for name, option in OPTIONS.items():
        if option.form == "flag":
            continue
        for value in values:
            if (name, value) in {("repeat", "0")}:
                continue
            loss = [] if name in ("epsilon", "rho", "max_error") else ["--epsilon", "1"]
            words = ["ask", at, COUNT, *loss, f"--{name.replace('_', '-')}={value}", "--ledger", ledger]
            words.append("--another-ledger")  # other tests use the same description
            result = CliRunner().invoke(cli.app, words)
            assert result.exit_code in (1, 2) and "Traceback" not in result.output, (name, value, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit), (name, value)
    session = dither.connect(at, ledger=tmp_path / "ledger.sqlite", another_ledger=True)
    assert [entry for entry in session.history if entry.account != "kernel"] == []
    session.kernel.close()  # type: ignore[attr-defined]
