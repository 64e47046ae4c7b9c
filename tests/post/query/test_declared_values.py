"""A category that is compared with a text it can never be: refused before the charge, naming the declared values."""

from __future__ import annotations

import re

import pytest

from dither.errors import InvalidQuery
from dither.post.session import Session

MISSPELT = (
    ("COUNT(*) FROM users WHERE gender = 'female'", "'female'", "write one of them"),
    ("COUNT(*) FROM users WHERE gender <> 'F'", "'F'", "did you mean 'f'?"),
    ("COUNT(*) FROM users WHERE 'F' = gender", "'F'", "did you mean 'f'?"),
    ("COUNT(*) FROM users WHERE gender IN ('f', 'female')", "'female'", "write one of them"),
    ("COUNT(*) FROM users WHERE gender NOT IN ('male')", "'male'", "write one of them"),
    ("COUNT(*) FILTER (WHERE gender = 'male') FROM users", "'male'", "write one of them"),
    ("SUM(CASE gender WHEN 'male' THEN 1 ELSE 0 END) FROM users", "'male'", "write one of them"),
    ("COUNT(*) FROM users WHERE UPPER(gender) = 'f'", "'f'", "did you mean 'F'?"),
    ("COUNT(*) FROM users WHERE gender LIKE 'male'", "'male'", "write one of them"),
    ("gender, COUNT(*) FROM users GROUP BY gender HAVING gender = 'F'", "'F'", "did you mean 'f'?"),
    ("gender, CASE WHEN gender = 'F' THEN 1 ELSE 0 END, COUNT(*) FROM users GROUP BY gender", "'F'", "did you mean"),
    ("CASE WHEN gender = 'F' THEN 1 ELSE 0 END AS w, COUNT(*) FROM users GROUP BY w", "'F'", "did you mean 'f'?"),
    ("COUNT(*) FROM actions WHERE user_id IN (SELECT user_id FROM users WHERE gender = 'F')", "'F'", "did you mean"),
    ("COUNT(*) FROM actions JOIN urls USING (url_id) WHERE topic = 'sports'", "'sports'", "did you mean 'sport'?"),
)
POSSIBLE = (
    "COUNT(*) FROM users WHERE gender = 'f' OR gender <> ''",
    "COUNT(*) FROM users WHERE LOWER(gender) IN ('m', 'x') AND 'F' = 'F'",
    "COUNT(*) FILTER (WHERE gender = 'm') FROM users WHERE gender = 'f'",
    "COUNT(*) FROM (SELECT * FROM users WHERE gender = 'f') WHERE gender = 'm'",
    "COUNT(*) FROM (SELECT CASE WHEN vip THEN 'a' ELSE 'b' END AS g FROM users) WHERE g = 'a' AND g <> 'b'",
    "gender, COUNT(*) FROM users WHERE gender = 'f' GROUP BY gender HAVING gender <> 'm'",
    "COUNT(*) FROM users WHERE NULLIF(gender, 'unknown') = 'f' AND gender < 'g'",
)


@pytest.mark.parametrize(("query", "text", "advice"), MISSPELT)
def test_a_text_that_is_not_declared_is_refused(query: str, text: str, advice: str, blind: Session) -> None:
    with pytest.raises(InvalidQuery, match=re.escape(advice)) as refusal:
        blind.quote(f"SELECT {query}", epsilon=1)
    assert f"is compared with {text}, which is none of its" in str(refusal.value)


@pytest.mark.parametrize("query", POSSIBLE)
def test_what_conditions_leave_out_is_no_slip(query: str, blind: Session) -> None:
    assert blind.quote(f"SELECT {query}", epsilon=1).affordable
