"""The four queries through Dither's own kernel, charged and recorded, with the options that it has by default.

Run by `benchmarks/queries.py`, like its peers: prints, for each query, the answers and the CPU seconds that they took.
"""

import json
import resource
import sys
from pathlib import Path

import dither

FOLDER, QUERIES, REPEATS, NAME = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
# user code
ASKED = [
    "SELECT action, COUNT(*) AS n FROM actions GROUP BY action",
    "SELECT country, FLOOR(age / 10) AS decade, COUNT(*) AS n FROM actions JOIN users USING (user_id) "
    "GROUP BY country, decade",
    "SELECT country, AVG(age) AS a FROM users GROUP BY country",
    "SELECT COUNT(DISTINCT user_id) AS n FROM actions",
]
# end of user code


def cpu() -> float:
    """Return the CPU seconds of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rows_of(answer: dither.Answer) -> list[list[object]]:
    """Return keys and values, a list for each row."""
    columns = [
        answer.keys.column(place).to_pylist() if column.key else column.estimate.value.tolist()
        for place, column in enumerate(answer.columns)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def main() -> None:
    """Ask each query once to warm up, then `REPEATS` times."""
    # user code
    session = dither.connect(
        FOLDER / "dataset.yml", account="benchmark", ledger=FOLDER / f"{NAME}.ledger", another_ledger=True
    )
    # end of user code
    results = []
    for place in QUERIES:
        session.sql(ASKED[place], epsilon=1)
        start = cpu()
        answers = [session.sql(ASKED[place], epsilon=1, repeat=number + 1) for number in range(REPEATS)]
        spent = (cpu() - start) / REPEATS
        notes = "; ".join(note for note in answers[-1].notes if "bound" in note)
        results.append({"query": place, "runs": [rows_of(one) for one in answers], "cpu": spent, "note": notes})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
