"""Populations and their budgets: what a loss costs each budget, who pays, and which caps apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

from dither.errors import LedgerError, NotAllowed
from dither.loss import Loss, from_json
from dither.privacy.accounting.filters import filter_of
from dither.privacy.ledger.keys import KERNEL, key
from dither.schema import BudgetCap, Dataset, Group

Level = Literal["dataset", "group", "analyst"]


CACHE_SIZE = 256  # entries per cache; one entry can hold a total for each window


@dataclass(frozen=True)
class BudgetBalance:
    """A running total for one budget at one level; `limit` is None if the total is counted but not capped."""

    level: Level
    name: str
    budget: BudgetCap
    window: str
    limit: tuple[int, ...] | None
    key: str


def budget_identity(cap: BudgetCap) -> tuple[object, ...]:
    """Return the unit, kind and order of a cap; caps that agree on these limit the same total."""
    return cap.unit, cap.kind, cap.order


@cache
def budget_limit(cap: BudgetCap) -> tuple[int, ...]:
    """Return a cap in integer units of 1e-15."""
    return filter_of(cap).cap


@lru_cache(maxsize=1 << 10)
def budget_cost(cap: BudgetCap, loss: Loss) -> tuple[int, ...]:
    """Return the cost of a loss to a budget, in integer units of 1e-15, rounded up."""
    return filter_of(cap).femto_cost(loss)


@dataclass(frozen=True)
class Population:
    """The people whose records one or more datasets hold, and their budgets; of several caps the tightest applies."""

    name: str
    datasets: tuple[Dataset, ...]
    _balances: dict[tuple[object, ...], tuple[BudgetBalance, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _costs: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def budgets(self) -> tuple[BudgetCap, ...]:
        """The budgets that every release is charged to."""
        return self.datasets[0].budgets

    @property
    def separate(self) -> bool:
        """True if each group has its own budgets."""
        return self.datasets[0].policy == "separate"

    def costs(self, losses: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
        """Return the cost of these losses, as a charge row states them, to each budget, in the order of `budgets`."""
        cache_key = repr(losses)
        if cache_key not in self._costs:
            if len(self._costs) > CACHE_SIZE:
                self._costs.clear()
            self._costs[cache_key] = self._compute_costs(losses)
        return self._costs[cache_key]

    def _compute_costs(self, losses: Sequence[Sequence[Any]]) -> tuple[tuple[int, ...], ...]:
        """Return the cost to each budget; raise if a budget has no loss."""
        loss_by_unit = {(unit, kind): from_json(loss) for unit, kind, loss in losses}
        missing = [f"{cap.unit} ({cap.kind})" for cap in self.budgets if (cap.unit, cap.kind) not in loss_by_unit]
        if missing:
            raise LedgerError(f"the charge states no loss for: {', '.join(missing)}")
        return tuple(budget_cost(cap, loss_by_unit[cap.unit, cap.kind]) for cap in self.budgets)

    def groups_of(self, dataset: Dataset, account: str) -> tuple[str, ...]:
        """Return the groups that pay for an account's queries: its own groups, or every group for the kernel."""
        if account == KERNEL:
            return tuple(group.name for group in dataset.groups) if self.separate else ()
        mine = tuple(group.name for group in dataset.groups if account in group.analysts)
        if not mine and (self.separate or dataset.groups):
            raise NotAllowed("this account belongs to no group of the dataset; ask the curator to add it to one")
        return mine

    def viewing_group(self, dataset: Dataset, account: str | None) -> str:
        """Return the group whose part of the ledger an account sees; "" is the whole dataset.

        This decides, for every account, what it may see of the ledger: under separate budgets an analyst sees the
        charges that its group paid, numbered among themselves, and nothing that depends on other charges. Under a
        shared policy, and for auditors, curators and the kernel (None), it is every charge of the dataset.
        """
        if account is None or account == KERNEL or not self.separate:
            return ""
        return self.groups_of(dataset, account)[0]

    def balances_for(
        self, groups: Sequence[str], account: str, windows: Mapping[str, Iterable[str]], fresh: bool
    ) -> tuple[BudgetBalance, ...]:
        """Return every balance that a charge adds to; the population's own only if new noise is drawn (`fresh`)."""
        cache_key = (*groups, "", account, fresh, *((unit, *names) for unit, names in windows.items()))
        if cache_key not in self._balances:
            if len(self._balances) > CACHE_SIZE:
                self._balances.clear()
            self._balances[cache_key] = tuple(self._build_balances(groups, account, windows, fresh))
        return self._balances[cache_key]

    def _build_balances(
        self, groups: Sequence[str], account: str, windows: Mapping[str, Iterable[str]], fresh: bool
    ) -> Iterator[BudgetBalance]:
        """Yield the balances of each budget: the population, then the groups, then the analyst; one for each window."""
        names: list[tuple[Level, str]] = [("dataset", "")] if fresh else []
        names += [("group", group) for group in groups]
        names += [("analyst", account)] if account != KERNEL else []
        for budget in self.budgets:
            for level, name in names:
                limit = self._tightest_limit(budget, level, name, account)
                for window in windows.get(budget.unit, ("",)):
                    yield BudgetBalance(
                        level, name, budget, window, limit, self.balance_key(budget, level, name, window)
                    )

    def balance_key(self, budget: BudgetCap, level: Level, name: str, window: str) -> str:
        """Return the state key of a budget's total at a level."""
        order = None if budget.order is None else str(budget.order)
        return key("spent", self.name, level, name, budget.unit, budget.kind, order, window)

    def _tightest_limit(self, budget: BudgetCap, level: str, name: str, account: str) -> tuple[int, ...] | None:
        """Return the tightest cap on a total among the population's datasets, or None if nothing caps it."""
        caps = [cap for dataset in self.datasets for cap in self._caps(dataset, level, name, account)]
        results = [budget_limit(cap) for cap in caps if budget_identity(cap) == budget_identity(budget)]
        return tuple(min(limits) for limits in zip(*results, strict=True)) if results else None

    def _caps(self, dataset: Dataset, level: str, name: str, account: str) -> tuple[BudgetCap, ...]:
        """Return the caps that a dataset declares at a level."""
        if level == "dataset":
            return () if self.separate else dataset.budgets
        if level == "group":
            return self._group_caps(dataset, [group for group in dataset.groups if group.name == name])
        return tuple(cap for group in dataset.groups if account in group.analysts for cap in group.analyst_caps)

    def _group_caps(self, dataset: Dataset, groups: list[Group]) -> tuple[BudgetCap, ...]:
        """Return a group's own caps; under separate budgets, add the dataset's caps that the group does not replace."""
        own = tuple(cap for group in groups for cap in group.caps)
        if not self.separate:
            return own
        identities = {budget_identity(cap) for cap in own}
        return own + tuple(cap for cap in dataset.budgets if budget_identity(cap) not in identities)
