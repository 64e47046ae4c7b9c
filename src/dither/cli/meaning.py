"""`dither meaning`: print the meaning of a privacy loss: tests, events, groups, and the epsilon-delta curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Grid

from dither.cli.options import CONSOLE, AsJson, print_json, text_table
from dither.errors import InvalidParameter
from dither.loss import ZCDP, Approximate, Loss, Pure, rational
from dither.post.display import loss_text
from dither.post.interpretation import privacy_curve
from dither.views.meaning import event_data, group_data, meaning_tables, power_data
from dither.views.privacy_curve import curve_svg, curve_text

EVENTS = tuple(Fraction(1, n) for n in (1000, 100, 10, 2))
GROUP_SIZES = (1, 2, 3, 5, 10)
SMALLEST_DELTA, CURVE_POINTS = 12, 49

app = typer.Typer(add_completion=False)


def read_loss(epsilon: str | None, rho: str | None, delta: str | None) -> Loss:
    """Return the loss that the options describe: epsilon, with or without delta, or rho."""
    if (epsilon is None) == (rho is None):
        raise InvalidParameter("give --epsilon or --rho, and only one of them")
    slack = rational(delta or 0, "delta")
    if rho is not None:
        return ZCDP(_positive(rho, "rho"), slack)
    exact = _positive(epsilon or "0", "epsilon")
    return Approximate(exact, slack) if slack else Pure(exact)


def _positive(text: str, name: str) -> Fraction:
    value = rational(text, name)
    if not 0 < value <= 1000:
        raise InvalidParameter(f"{name} must be above 0 and at most 1000, got {text[:40]!r}")
    return value


def meaning_data(loss: Loss) -> dict[str, Any]:
    """Return the meaning of a loss as plain data."""
    return {
        "loss": loss_text([loss]),
        "tests": power_data(loss),
        "events": event_data(loss, EVENTS),
        "groups": group_data(loss, GROUP_SIZES),
        "curve": [{"delta": delta, "epsilon": epsilon} for delta, epsilon in curve_points(loss)],
    }


def curve_points(loss: Loss) -> list[tuple[float, float]]:
    """Return points of the epsilon-delta curve, for deltas from 1e-12, or from the loss's own delta, to 0.1."""
    own = Fraction(0) if isinstance(loss, Pure) else loss.delta
    step = Fraction(SMALLEST_DELTA - 1, CURVE_POINTS - 1)
    deltas = [rational(f"{10 ** float(-SMALLEST_DELTA + number * step):.6g}") for number in range(CURVE_POINTS)]
    exact = [own] if own and isinstance(loss, Approximate) else []
    wanted = exact + [delta for delta in deltas if delta > own]
    points = [(float(delta), float(epsilon)) for delta, epsilon in privacy_curve(loss, wanted)]
    if isinstance(loss, ZCDP):
        return points
    stated = float(loss.epsilon) if isinstance(loss, Pure | Approximate) else 0.0
    return [(delta, epsilon_at_larger_delta(stated, float(own), delta)) for delta, _ in points]


def epsilon_at_larger_delta(epsilon: float, own: float, delta: float) -> float:
    """Return the epsilon that an (epsilon, own)-DP release has at a larger delta (Kairouz, Oh, Viswanath 2015).

    It is the least e for which 1 - (1 - own) (1 - (exp(epsilon) - exp(e)) / (1 + exp(epsilon))) is at most delta.
    """
    share = 1 - (1 - delta) / (1 - own)
    odds = 1 - share * (1 + math.exp(-epsilon))
    return max(0.0, epsilon + math.log(odds)) if odds > 0 else 0.0


def meaning_parts(data: dict[str, Any]) -> Iterator[str | Grid]:
    """Yield the lines and tables of a meaning."""
    yield f"{data['loss']}: what any release with this loss may reveal about one unit, whatever else is known"
    yield from map(text_table, meaning_tables(data))
    yield from curve_text([(row["delta"], row["epsilon"]) for row in data["curve"]])


@app.command()
def meaning(
    epsilon: Annotated[str | None, typer.Option(help="the loss as epsilon, such as 1 or 1/2")] = None,
    rho: Annotated[str | None, typer.Option(help="the loss as rho of zCDP")] = None,
    delta: Annotated[str | None, typer.Option(help="the delta that goes with it, such as 1e-6")] = None,
    svg: Annotated[Path | None, typer.Option(help="write the epsilon-delta curve to this file, as a picture")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the meaning of a privacy loss: tests, events, groups, and the epsilon-delta curve; nothing is opened."""
    data = meaning_data(read_loss(epsilon, rho, delta))
    if svg is not None:
        points = [(row["delta"], row["epsilon"]) for row in data["curve"]]
        svg.write_text(curve_svg(points, f"epsilon for each delta, at {data['loss']}"))
    if as_json:
        print_json(data)
        return
    for part in meaning_parts(data):
        CONSOLE.print(part)
    if svg is not None:
        CONSOLE.print(f"wrote {svg}")
