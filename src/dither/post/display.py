"""Plain words for all that a session returns: text for a terminal, HTML tables for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from html import escape
from typing import Any, Self, assert_never

from dither.loss import ZCDP, Approximate, Loss, Pure, Renyi
from dither.post.question_text import question_text
from dither.privacy.protocol import Balance, HistoryEntry, PrivacyStatement
from dither.schema import Dataset, Domain
from dither.schema.summary import domain_text, number_text

LONGEST_AMOUNT = 10
SMALL = Decimal("0.0001")
LEDGER_UNITS = 10**15  # the ledger counts multiples of 1e-15


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], above: str = "", below: Iterable[str] = ()) -> str:
    """Return an HTML table with a line above it and lines below it; all texts are escaped."""
    title = f"<p>{escape(above)}</p>" if above else ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "".join(f"<p>{escape(line)}</p>" for line in below)
    return f"{title}<table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>{notes}"


def html_lines(text: str) -> str:
    """Return lines of text as HTML."""
    return f"<pre>{escape(text)}</pre>"


def loss_text(losses: Iterable[Loss]) -> str:
    """Format losses, adding up those of one kind, such as "epsilon 2"."""
    totals: dict[str, Fraction] = {}
    for loss in losses:
        for name, value in _loss_parameters(loss).items():
            totals[name] = totals.get(name, Fraction(0)) + value
    return ", ".join(f"{name} {amount_text(value)}" for name, value in totals.items() if value) or "nothing"


def amount_text(value: Fraction) -> str:
    """Format an amount of loss exactly if that is short, else to six digits, rounded up.

    >>> amount_text(Fraction(9, 5)), amount_text(Fraction(1, 3)), amount_text(Fraction(10**9 + 7, 3 * 10**9))
    ('1.8', '1/3', 'about 0.333334')
    """
    exact = number_text(value)
    if len(exact.strip("0.")) <= LONGEST_AMOUNT:
        return exact if "/" in exact else small_number(Decimal(exact)) or exact
    return f"about {short_number(value, ROUND_CEILING)}"


def short_number(value: Fraction, rounding: str) -> str:
    """Format a number to six digits, without zeros at its end.

    >>> short_number(Fraction(14312310902086, 10**14), ROUND_CEILING), short_number(Fraction(4), ROUND_CEILING)
    ('0.143124', '4')
    """
    rounded = Context(prec=6, rounding=rounding).divide(Decimal(value.numerator), Decimal(value.denominator))
    text = f"{rounded:f}"
    return small_number(rounded) or (text.rstrip("0").rstrip(".") if "." in text else text)


def small_number(value: Decimal) -> str:
    """Format a number below 1e-4 with a power of ten, such as "1e-9"; return "" for any other.

    >>> small_number(Decimal("0.000001")), small_number(Decimal("0.0000166667")), small_number(Decimal("0.5"))
    ('1e-6', '1.66667e-5', '')
    """
    if not 0 < value < SMALL:
        return ""
    digits, _, power = f"{value.normalize():e}".partition("e")
    return f"{digits}e{int(power)}"


def rough_number(value: float) -> str:
    """Format a number to three digits, with commas and without powers of ten.

    >>> rough_number(6870.3), rough_number(20.94), rough_number(0.00512)
    ('6,870', '20.9', '0.00512')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def _loss_parameters(loss: Loss) -> dict[str, Fraction]:
    """Return the parameters of a loss by name."""
    match loss:
        case Pure(epsilon=epsilon):
            return {"epsilon": epsilon}
        case Approximate(epsilon=epsilon, delta=delta):
            return {"epsilon": epsilon, "delta": delta}
        case ZCDP(rho=rho, delta=delta):
            return {"rho": rho, "delta": delta}
        case Renyi(curve=curve, delta=delta):
            return {f"epsilon at order {order}": epsilon for order, epsilon in curve} | {"delta": delta}
        case _:
            assert_never(loss)


@dataclass(frozen=True, repr=False)
class ReadableBalance(Balance):
    """A budget that reads as plain words."""

    @classmethod
    def of(cls, balance: Balance) -> Self:
        """Return the same balance with a readable form."""
        return cls(**{part.name: getattr(balance, part.name) for part in fields(Balance)})

    @property
    def place(self) -> str:
        """The level of the budget, with its name and window if it has them."""
        return " ".join(filter(None, (self.level, self.name, self.window)))

    @property
    def amounts(self) -> str:
        """The spent part of each limit."""
        parts = zip(self.components, self.spent, self.limit, strict=True)
        return ", ".join(f"{name} {spent_text(spent)} of {left_text(limit)}" for name, spent, limit in parts if limit)

    @property
    def left(self) -> str:
        """The part of each limit that is not spent."""
        parts = zip(self.components, self.spent, self.limit, strict=True)
        return ", ".join(f"{name} {left_text(max(0, limit - spent))}" for name, spent, limit in parts if limit)

    def __repr__(self) -> str:
        return f"budget of unit {self.cap.unit} ({self.place}): spent {self.amounts}"

    def _repr_html_(self) -> str:
        return Budgets([self])._repr_html_()


def spent_text(units: int) -> str:
    """Format an amount of the ledger that was spent, to six digits, rounded up."""
    return short_number(Fraction(units, LEDGER_UNITS), ROUND_CEILING)


def left_text(units: int) -> str:
    """Format a limit of the ledger, or what is left of it, to six digits, rounded down."""
    return short_number(Fraction(units, LEDGER_UNITS), ROUND_FLOOR)


class Budgets(tuple[ReadableBalance, ...]):
    """The budgets that queries are charged to."""

    def __new__(cls, balances: Iterable[Balance]) -> Self:
        """Make each balance readable."""
        return super().__new__(cls, map(ReadableBalance.of, balances))

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no budget"

    def _repr_html_(self) -> str:
        rows = [(each.place, each.cap.unit, each.amounts) for each in self]
        return html_table(("budget", "unit", "spent"), rows)


@dataclass(frozen=True, repr=False)
class ReadableCharge(HistoryEntry):
    """A charge that reads as plain words."""

    @classmethod
    def of(cls, entry: HistoryEntry) -> Self:
        """Return the same charge with a readable form."""
        return cls(**{part.name: getattr(entry, part.name) for part in fields(HistoryEntry)})

    @property
    def cells(self) -> tuple[str, ...]:
        """The time, the account, what was asked, the losses, and whether it was answered."""
        question = question_text(self.request) or f"query {self.digest[:12]}"
        losses = "; ".join(f"{part.unit}: {loss_text([part.loss])}" for part in self.losses)
        return self.time, self.account, question, losses, "answered" if self.answered else "not answered"

    def __repr__(self) -> str:
        time, account, question, losses, answered = self.cells
        return f"{time} {account}, {question}: {losses} ({answered})"

    def _repr_html_(self) -> str:
        return History([self])._repr_html_()


class History(tuple[ReadableCharge, ...]):
    """The earlier charges that an account may see."""

    def __new__(cls, entries: Iterable[HistoryEntry]) -> Self:
        """Make each charge readable."""
        return super().__new__(cls, map(ReadableCharge.of, entries))

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no charge yet"

    def _repr_html_(self) -> str:
        return html_table(("time", "account", "question", "loss", ""), [each.cells for each in self])


@dataclass(frozen=True, repr=False)
class ReadableStatement(PrivacyStatement):
    """A privacy statement that reads as plain words; `dither statement` prints what its numbers mean."""

    @classmethod
    def of(cls, statement: PrivacyStatement) -> Self:
        """Return the same statement with a readable form."""
        return cls(**{part.name: getattr(statement, part.name) for part in fields(PrivacyStatement)})

    @property
    def title(self) -> str:
        """The dataset, its population and the policy."""
        return f"privacy statement of {self.dataset} (population {self.population}, policy {self.policy})"

    def __repr__(self) -> str:
        units = [f"unit {unit}" for unit in self.units]
        return "\n".join(
            [self.title, *units, *map(repr, Budgets(self.balances)), "assumptions:", *self._assumption_lines()]
        )

    def _repr_html_(self) -> str:
        units = "; ".join(f"unit {unit}" for unit in self.units)
        return f"<p>{escape(self.title)}</p><p>{escape(units)}</p>{Budgets(self.balances)._repr_html_()}" + html_lines(
            "\n".join(["assumptions:", *self._assumption_lines()])
        )

    def _assumption_lines(self) -> list[str]:
        return [f"- {assumption}" for assumption in self.assumptions]


class TableColumns(dict[str, Domain]):
    """The columns of a table, with the domain of each."""

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {domain_words(domain)}" for name, domain in self.items())

    def _repr_html_(self) -> str:
        return html_table(("column", "values"), [(name, domain_words(domain)) for name, domain in self.items()])


class Tables(dict[str, TableColumns]):
    """The tables of a dataset, with the domains of their columns."""

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return the tables that a description declares."""
        return cls(
            (name, TableColumns((column.name, column.domain) for column in table.columns.values()))
            for name, table in dataset.tables.items()
        )

    def __repr__(self) -> str:
        lines = [(f"{name}\n{columns!r}").replace("\n", "\n  ") for name, columns in self.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(name, key, domain_words(domain)) for name, table in self.items() for key, domain in table.items()]
        return html_table(("table", "column", "values"), rows)


def domain_words(domain: Domain) -> str:
    """Describe a domain, and say where values may be missing."""
    return domain_text(domain) + ("; may be missing" if domain.nullable else "")


def answer_text(value: Any) -> str:
    """Write a key of an answer; a missing one is NULL."""
    return "NULL" if value is None else str(value)
