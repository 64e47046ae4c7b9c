"""The profile of a dataset: what it measures, and how questions, quotes and commands use it."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dither
from dither.cli import app
from dither.connection import measure_profile
from dither.errors import InvalidParameter, NotAllowed
from dither.post.estimate.profile import Profile, profile_items, profile_lines, profile_request
from dither.post.session import Session

COUNTED, BY_ACTION = "SELECT COUNT(*) AS n FROM actions", "SELECT action, COUNT(*) AS n FROM actions GROUP BY action"
MEAN = "SELECT AVG(seconds) AS n FROM actions"


def copy_world(folder: Path, place: Path) -> None:
    """Copy the data and the description, but no ledger that another test has made beside them."""
    shutil.copytree(folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.ledger*"))


@pytest.fixture(scope="module")
def profiled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session on the small world, with a profile of one column so precise that chance decides nothing."""
    place = tmp_path_factory.mktemp("profiled")
    copy_world(folder, place)
    return measure_profile(dither.connect(place / "dataset.yml"), Fraction(400), ["actions.seconds"])


def test_a_profile_measures_what_searches_would_for_all_of_its_loss(session: Session) -> None:
    items = profile_items(session.context, "user")
    names = {item.name for item in items}
    assert "actions: the units by their rows" in names and not any(name.startswith("users") for name in names)
    request = profile_request(session.context, "user", Fraction(1, 10), items)
    losses = [part.mechanism.loss for part in request.parts] + [search.mechanism.loss for search in request.searches]  # type: ignore[union-attr]
    assert sum(loss.epsilon for loss in losses) == Fraction(1, 10)  # type: ignore[union-attr]
    with pytest.raises(InvalidParameter, match="no column"):
        profile_items(session.context, "user", ["actions.nothing"])
    with pytest.raises(InvalidParameter, match="nothing to profile"):
        profile_request(session.context, "user", Fraction(1), ())


@pytest.mark.parametrize("query", [COUNTED, BY_ACTION, MEAN])
def test_a_question_that_the_profile_answers_searches_for_nothing(query: str, profiled: Session) -> None:
    quote, answer = profiled.quote(query, epsilon=1), profiled.sql(query, epsilon=1)
    assert answer.releases[0].search_results is None and answer.bounds
    assert any("profile" in note for note in answer.notes) and quote["n"].known
    low, high = answer["n"].interval
    widest, narrowest = (max, min) if query == BY_ACTION else (float, float)
    assert narrowest(high - low) / 8 <= quote["n"].half_width <= widest(high - low)


def test_a_question_with_a_filter_searches_for_its_own_bound(profiled: Session) -> None:
    answer = profiled.sql(f"{COUNTED} WHERE seconds > 300", epsilon=1)
    assert answer.releases[0].search_results is not None


@pytest.mark.tier("test")
def test_a_poor_profile_does_not_replace_a_good_search(folder: Path, tmp_path: Path) -> None:
    copy_world(folder, tmp_path)
    session = measure_profile(dither.connect(tmp_path / "dataset.yml"), Fraction(1, 1000))
    assert session.sql(COUNTED, epsilon=10).releases[0].search_results is not None


@pytest.mark.tier("test")
def test_max_error_is_solved_with_a_profile(profiled: Session, session: Session) -> None:
    with pytest.raises(InvalidParameter, match="chosen only when the query is asked"):
        session.quote(COUNTED, max_error=100)
    quote = profiled.quote(COUNTED, max_error=100)
    assert 90 <= quote["n"].half_width <= 100
    low, high = profiled.sql(COUNTED, max_error=100)["n"].interval
    assert (high - low) / 2 <= 200


def test_a_profile_is_described_in_words(profiled: Session) -> None:
    lines = profile_lines(profiled.context, "user")
    assert len(lines) == 3 and all(line.startswith("actions") for line in lines)
    assert "the median of the units' means is about 3" in lines[1] or "about 2" in lines[1]


@pytest.mark.tier("test")
def test_a_description_may_ask_for_its_profile_and_gets_it_once(folder: Path, tmp_path: Path) -> None:
    copy_world(folder, tmp_path)
    path = tmp_path / "dataset.yml"
    path.write_text(path.read_text().replace("name: world\n", "name: world\nprofile_epsilon: 1/2\n", 1))
    first = dither.connect(path)
    assert first.profile is not None and len(first.history) == 2
    first.kernel.close()  # type: ignore[attr-defined]
    again = dither.connect(path)
    assert again.profile == first.profile and len(again.history) == 2
    assert "profile_epsilon 0.5" in CliRunner().invoke(app, ["check", str(path)]).output


@pytest.mark.tier("test")
def test_the_command_shows_the_cost_and_asks(folder: Path, tmp_path: Path) -> None:
    copy_world(folder, tmp_path)
    path, runner = str(tmp_path / "dataset.yml"), CliRunner()
    assert runner.invoke(app, ["profile", path]).exit_code != 0
    refused = runner.invoke(app, ["profile", path, "--epsilon", "0.5"], input="n\n")
    assert "costs epsilon 0.5 of unit user" in refused.output and refused.exit_code != 0
    assert Profile.of(dither.connect(path).dataset) is None
    measured = runner.invoke(app, ["profile", path, "--epsilon", "0.5", "--yes", "--json"])
    assert json.loads(measured.output)["profile"]
    assert "a new data_version" in runner.invoke(app, ["profile", path, "--epsilon", "0.1"]).output
    assert "Measured once with noise" in runner.invoke(app, ["statement", path]).output
    assert len(dither.connect(path).history) == 2


@pytest.mark.tier("test")
def test_a_session_opens_without_a_profile_that_its_group_has_not_paid_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: after a group was added, nobody could open the data."""
    copy_world(folder, tmp_path)
    path = tmp_path / "dataset.yml"
    red, blue = "groups:\n  - {name: red, analysts: [ann]}\n", "  - {name: blue, analysts: [bob]}\n"
    described = path.read_text().replace("name: world\n", "name: world\npolicy: separate\nprofile_epsilon: 1/2\n", 1)
    path.write_text(described + red)
    paid = dither.connect(path, account="ann")
    assert paid.profile is not None and "WARNING" not in capsys.readouterr().err
    paid.kernel.close()  # type: ignore[attr-defined]
    path.write_text(described + red + blue)
    for account, profile in (("bob", None), ("ann", paid.profile)):
        session = dither.connect(path, account=account)
        assert session.profile == profile
        assert ("open without a profile: the group of this account" in capsys.readouterr().err) == (profile is None)
        session.kernel.close()  # type: ignore[attr-defined]
    refused = CliRunner().invoke(app, ["profile", str(path), "--account", "bob", "--epsilon", "0.5", "--yes"])
    assert refused.exit_code != 0 and not isinstance(refused.exception, NotAllowed)
