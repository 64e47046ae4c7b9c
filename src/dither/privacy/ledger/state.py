"""The rules that admit a row to the ledger, and the state that follows from the admitted rows.

The ledger applies `LedgerState` before it writes a row, and the verifier applies it again to every written row, so the
offline check enforces the same rules as the live ledger. All amounts are integers in units of 1e-15.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import gt
from typing import Any, Literal

from dither.errors import BudgetExceeded, InvalidParameter, InvalidSchema, LedgerError, NotAllowed, NotFound
from dither.loss import from_json
from dither.privacy.accounting.filters import filter_of
from dither.privacy.accounting.units import FEMTO
from dither.privacy.codec import RESPONSE, decode
from dither.privacy.ledger.descriptions import (
    DatasetVersion,
    DescriptionCache,
    check_dataset,
    group_by_account,
    still_counts,
    unit_columns,
)
from dither.privacy.ledger.keys import KERNEL, canonical_json, decode_names, key
from dither.privacy.ledger.populations import BudgetBalance, Population, budget_cost, budget_identity, budget_limit
from dither.privacy.ledger.store import Row
from dither.schema import BudgetCap, Dataset

ROW_KINDS = ("dataset", "account", "charge", "answer", "restore", "gap", "act", "clock")  # each has a rule
ROLES = ("analyst", "auditor", "curator")
ALL_WINDOWS = "*"  # a window name that stands for all windows of a unit, past and future


class LedgerState:
    """The state after the rows so far, and the rules that check and apply the next row.

    `read` returns stored values by key, `row` a stored row by number; `known` holds values that need no read.
    """

    def __init__(
        self,
        read: Callable[[list[str]], dict[str, str]],
        row: Callable[[int], Row | None],
        decoded: DescriptionCache | None = None,
        known: Mapping[str, str | None] | None = None,
    ) -> None:
        self._read, self._row, self._decoded, self._known = read, row, decoded or DescriptionCache(), known or {}
        self._fetched: dict[str, str | None] = {}
        self._bodies: dict[int, Any] = {}
        self.updates: dict[str, str] = {}
        self._counts_earlier_charges = True

    def get(self, name: str) -> str | None:
        """Return the value of a state key after the rows so far, or None."""
        if name in self.updates:
            return self.updates[name]
        if name in self._known:
            return self._known[name]
        if name not in self._fetched:
            self.fetch([name])
        return self._fetched[name]

    def fetch(self, names: Iterable[str], absent: Iterable[str] = ()) -> None:
        """Read several state keys in one call, skipping those already known and those listed in `absent`."""
        self._fetched.update(dict.fromkeys(absent))
        wanted = [name for name in dict.fromkeys(names) if name not in self._fetched and name not in self._known]
        if wanted:
            results = self._read(wanted)
            self._fetched.update({name: results.get(name) for name in wanted})

    def body(self, sequence: int) -> Any:
        """Return the decoded body of an earlier row."""
        if sequence not in self._bodies:
            row = self._row(sequence)
            if row is None:
                raise LedgerError(f"the ledger has no row {sequence}")
            self._bodies[sequence] = json.loads(row.body)
        return self._bodies[sequence]

    def description(self, name: str) -> DatasetVersion:
        """Return the last registered version of a dataset."""
        position = self.get(key("dataset", name))
        if position is None:
            raise NotFound(f"there is no dataset {name!r}")
        known = self._decoded.schemas
        if position not in known:
            known[position] = DatasetVersion.of(self.body(int(position.split()[0])))
        return known[position]

    def dataset(self, name: str) -> Dataset:
        """Return the last registered description of a dataset."""
        return self.description(name).dataset

    def population(self, name: str) -> Population | None:
        """Return a population with its datasets, or None if no dataset of it is registered."""
        stored_list = self.get(key("population", name))
        if stored_list is None:
            return None
        members = decode_names(stored_list)
        cache_key, known = (name, *[self.get(key("dataset", each)) for each in members]), self._decoded.populations
        if cache_key not in known:
            known[cache_key] = Population(name, tuple(self.dataset(each) for each in members))
        return known[cache_key]

    def stored_list(self, name: Literal["populations", "gaps"]) -> list[Any]:
        """Return all population names, or the JSON loss of each gap (None for a gap that exhausts every budget)."""
        results: list[Any] = json.loads(self.get(key(name)) or "[]")
        return results

    def apply(self, kind: str, body: Mapping[str, Any], sequence: int, *, format_3: bool = False) -> None:
        """Check a row against the rules and apply its effects; raise, without any effect, if it breaks a rule.

        A dataset row of format 3 may add a budget without counting the earlier charges.
        """
        if kind not in ROW_KINDS:
            raise LedgerError(f"unknown kind of ledger row: {kind!r}")
        self._counts_earlier_charges = not format_3
        self.updates.update(getattr(self, f"_{kind}")(body, sequence))
        self._bodies[sequence] = body

    def _dataset(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check a dataset row: budgets cannot be bypassed, spending still counts, and records have one population."""
        dataset = decode(body["schema"].encode(), Dataset, RESPONSE)
        known = self.population(dataset.population)
        others = [each for each in known.datasets if each.name != dataset.name] if known else []
        check_dataset(dataset, others)
        if self.get(key("dataset", dataset.name)) and self.dataset(dataset.name).population != dataset.population:
            raise InvalidSchema(f"dataset {dataset.name!r} belongs to another population, which cannot be changed")
        self._check_spending_still_counts(known, dataset)
        self._check_accounts_keep_groups(dataset)
        for source in body["sources"]:
            if self.get(key("source", source)) not in (None, dataset.population):
                raise InvalidSchema("another population holds these records; declare the same population for both")
        names = sorted({dataset.name, *(each.name for each in others)})
        population = Population(dataset.population, (*others, dataset))
        earlier = self._earlier_totals(population, dataset, body) if self._counts_earlier_charges else {}
        return {
            key("dataset", dataset.name): f"{sequence} {hashlib.sha256(canonical_json(body).encode()).hexdigest()}",
            key("population", dataset.population): json.dumps(names),
            key("populations"): json.dumps(sorted({*self.stored_list("populations"), dataset.population})),
            **{key("source", source): dataset.population for source in body["sources"]},
            **{name: stored for _, name, stored in unit_columns(dataset)},
            **earlier,
            **self._totals_with_gaps(population, self.stored_list("gaps"), earlier),
        }

    def added_budgets(self, dataset: Dataset) -> tuple[BudgetCap, ...]:
        """Return the budgets of a new description that earlier charges of the dataset were not counted against."""
        if not self.charges(dataset.name):
            return ()
        known = set(map(budget_identity, self.dataset(dataset.name).budgets))
        return tuple(cap for cap in dataset.budgets if budget_identity(cap) not in known)

    def _earlier_totals(self, population: Population, dataset: Dataset, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the totals of added budgets: what every earlier charge of the dataset costs them.

        `earlier` of the row lists each charge with its losses and windows for the added budgets.
        """
        added, numbers = self.added_budgets(dataset), range(1, self.charges(dataset.name) + 1)
        charges = [int(self.get(key("charge", dataset.name, "", number)) or 0) for number in numbers] if added else []
        if [entry[0] for entry in body.get("earlier", [])] != charges:
            raise LedgerError("a dataset row that adds a budget must list the loss of every earlier charge")
        totals: dict[str, tuple[int, ...]] = {}
        for sequence, losses, windows in body.get("earlier", []):
            charge, cost_by_budget = self.body(sequence), added_costs(added, losses)
            if any(dataset.units[cap.unit].kind == "window" and cap.unit not in windows for cap in added):
                raise LedgerError("the losses of earlier charges must list the windows that they touch")
            fresh = charge["of"] is None
            for balance in population.balances_for(charge["groups"], charge["account"], windows, fresh):
                if budget_identity(balance.budget) in cost_by_budget:
                    cost = cost_by_budget[budget_identity(balance.budget)]
                    totals[balance.key] = add_totals(totals.get(balance.key, (0,) * len(cost)), cost)
        return {name: " ".join(map(str, total)) for name, total in totals.items()}

    def _check_spending_still_counts(self, known: Population | None, dataset: Dataset) -> None:
        """Reject a new description under which past spending would no longer count."""
        before = [each for each in known.datasets if each.name == dataset.name] if known else []
        if known is None or not before or not self._has_spent(known):
            return
        lost = [f"{cap.unit} ({cap.kind})" for cap in known.budgets if not still_counts(cap, before[0], dataset)]
        if self._counts_earlier_charges:  # format 3 did not compare keys
            lost += [what for what, name, stored in unit_columns(dataset) if self.get(name) not in (None, stored)]
        if lost or before[0].policy != dataset.policy:
            raise NotAllowed(
                f"population {known.name!r} has spent from its budgets: {', '.join(lost) or 'its policy'} must stay as"
                " declared (unit, kind, order, windows, time zone, keys); caps may change, budgets and tables be added"
            )

    def _check_accounts_keep_groups(self, dataset: Dataset) -> None:
        """Reject separate budgets under which an account that has asked would have another group's as well."""
        named = group_by_account(dataset).items() if self._counts_earlier_charges else ()  # format 3 did not check
        for account, group in named:
            asked_in = self.get(key("asked", dataset.population, account))
            if asked_in not in (None, group):
                raise NotAllowed(
                    f"account {account!r} has asked as a member of group {asked_in!r}, whose budget it has spent from:"
                    " under separate budgets it must stay in that group or leave the dataset"
                )

    def _has_spent(self, population: Population) -> bool:
        """Return True if a charge or a gap was counted against the population."""
        balance_keys = [
            population.balance_key(cap, "dataset", "", window)
            for cap in population.budgets
            for window in ("", ALL_WINDOWS)
        ]
        return any(self.charges(each.name) for each in population.datasets) or any(map(self.get, balance_keys))

    def _account(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check an account row: a known role, a name that is not reserved."""
        if body["role"] not in ROLES or body["name"] == KERNEL:
            raise InvalidParameter(f"an account needs a name other than 'kernel' and a role: {', '.join(ROLES)}")
        updates = {key("account", body["name"]): str(sequence)}
        if body["token"] is not None:
            updates[key("token", body["token"])] = body["name"]
        return updates

    def _charge(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check a charge row: version, payers, losses and windows are right, and every budget allows it."""
        dataset, population, question = self.resolve_query(body["dataset"], body["digest"])
        if body["version"] != question[1]:
            raise LedgerError("the charge is for a different version of the dataset than the registered one")
        if self.get(key("closed")):
            raise LedgerError("the ledger is closed after a restore until the curator marks the gap as spent")
        groups = population.groups_of(dataset, body["account"])
        if self.paid_charge(population, groups, question) is not None:
            raise LedgerError("the query was already paid for")
        root, unpaid_groups = self.shared_draw(question), self.unpaid_groups(population, groups, question)
        if body["of"] != root or body["groups"] != unpaid_groups:
            raise LedgerError("the charge does not list the groups that must pay for it")
        self._check_losses(body, root)
        if any(dataset.units[cap.unit].kind == "window" and cap.unit not in body["windows"] for cap in dataset.budgets):
            raise LedgerError("the charge must list the windows that it touches")
        updates = self._spend(
            population, body, population.balances_for(unpaid_groups, body["account"], body["windows"], root is None)
        )
        payers = unpaid_groups if population.separate else []
        numbers = {view: self.charges(body["dataset"], view) + 1 for view in ("", *payers)}
        for view, number in numbers.items():
            updates[key("charges", body["dataset"], view)] = str(number)
            updates[key("charge", body["dataset"], view, number)] = str(sequence)
        for group in unpaid_groups:
            updates[key("paid", group, *question)] = f"{sequence} {numbers.get(group, 0)}"
        if root is None:
            updates[key("question", *question)] = f"{sequence} {numbers['']}"
        if population.separate and body["account"] != KERNEL:
            updates[key("asked", population.name, body["account"])] = groups[0]
        if body["request_id"]:
            own = numbers[population.viewing_group(dataset, body["account"])]
            updates |= self._request_update(body["account"], body["request_id"], f"{sequence} {own} {body['digest']}")
        return updates

    def charges(self, dataset: str, view: str = "") -> int:
        """Return the number of charges of a dataset that a viewing group sees."""
        return int(self.get(key("charges", dataset, view)) or 0)

    def _request_update(self, account: str, request_id: str, charge: str) -> dict[str, str]:
        """Return the state that ties a request id to its charge; raise if the id was used."""
        name = key("request", account, request_id)
        if self.get(name) is not None:
            raise LedgerError("the request id was already used by this account")
        return {name: charge}

    def resolve_query(self, name: str, digest: str) -> tuple[Dataset, Population, tuple[str, str, str]]:
        """Return a dataset, its population, and the (dataset, version, digest) that identifies a query."""
        description = self.description(name)
        population = self.population(description.dataset.population)
        if population is None:
            raise LedgerError("the ledger has no population for the dataset")
        return description.dataset, population, (name, description.version, digest)

    def paid_charge(
        self, population: Population, groups: Sequence[str], question: tuple[str, str, str]
    ) -> tuple[int, int] | None:
        """Return the row and the number of the charge by which the groups paid for a query; None if one has not.

        Under a shared policy, the first charge pays for everyone.
        """
        if not population.separate or not groups:
            paid = [self.get(key("question", *question))]
        else:
            paid = [self.get(key("paid", group, *question)) for group in groups]
        charges = [tuple(map(int, each.split())) for each in paid if each is not None] if None not in paid else []
        return min(((sequence, number) for sequence, number in charges), default=None)

    def unpaid_groups(self, population: Population, groups: Sequence[str], question: tuple[str, str, str]) -> list[str]:
        """Return the groups that have not paid for a query; under a shared policy, all."""
        if not population.separate:
            return list(groups)
        return [group for group in groups if self.get(key("paid", group, *question)) is None]

    def shared_draw(self, question: tuple[str, str, str]) -> int | None:
        """Return the first charge for a query, whose draw later payers share; None if there is none or it is lost."""
        stored = self.get(key("question", *question))
        root = None if stored is None else int(stored.split()[0])
        return None if root is None or self.is_lost(root) else root

    def root_of(self, charge: int) -> int:
        """Return the first charge for the query of a charge."""
        return int(self.body(charge)["of"] or charge)

    def is_lost(self, root: int) -> bool:
        """Return True if a charge without a draw may have been answered in a part of the ledger that was lost."""
        return root < int(self.get(key("lost")) or 0) and self.get(key("draw", root)) is None

    def _check_losses(self, body: Mapping[str, Any], root: int | None) -> None:
        """Check that a later group pays the losses of the first charge `root`, and those of budgets added since."""
        first = {"losses": [], "windows": {}} if root is None else self.body(root)
        same_losses = all(loss in body["losses"] for loss in first["losses"])
        if not same_losses or not first["windows"].items() <= body["windows"].items():
            raise LedgerError("the charge for a recorded answer must state the losses and windows of the first charge")

    def _spend(
        self, population: Population, body: Mapping[str, Any], balances: Sequence[BudgetBalance]
    ) -> dict[str, str]:
        """Return the new totals; raise if one would exceed its limit."""
        costs = population.costs(body["losses"])
        if body["costs"] != [list(cost) for cost in costs]:
            raise LedgerError("the costs of the charge do not match its losses")
        cost_by_budget = dict(zip(map(budget_identity, population.budgets), costs, strict=True))
        self.fetch(balance.key for balance in balances)
        updates = {}
        for balance in balances:
            spent, more = self.spent(population, balance), cost_by_budget[budget_identity(balance.budget)]
            total = add_totals(spent, more)
            if balance.limit is not None and any(map(gt, total, balance.limit)):
                raise budget_exceeded(balance, spent, more)
            if balance.window:  # `spent` includes gaps, which are stored for all windows
                total = add_totals(self._total(balance.key, balance), more)
            updates[balance.key] = " ".join(map(str, total))
        return updates

    def spent(self, population: Population, balance: BudgetBalance) -> tuple[int, ...]:
        """Return the total spent of a balance; gaps that cover all windows count against each window."""
        stored = self._total(balance.key, balance)
        if not balance.window:
            return stored
        return add_totals(
            stored,
            self._total(population.balance_key(balance.budget, balance.level, balance.name, ALL_WINDOWS), balance),
        )

    def _total(self, name: str, balance: BudgetBalance, earlier: Mapping[str, str] | None = None) -> tuple[int, ...]:
        """Return the stored total of a balance, or zeros."""
        stored = (earlier or {}).get(name) or self.get(name)
        return tuple(map(int, stored.split())) if stored else (0,) * len(budget_limit(balance.budget))

    def _answer(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check an answer row: its charge has no answer yet, and it holds the query's draw if none was recorded."""
        if "losses" not in self.body(body["charge"]):
            raise LedgerError("an answer must refer to a charge")
        if self.get(key("answer", body["charge"])) is not None:
            raise LedgerError("the charge already has an answer")
        drawn = key("draw", self.root_of(body["charge"]))
        if bool(body["release"]) != (self.get(drawn) is None):
            raise LedgerError("the first answer to a query holds its draw, and later ones refer to it")
        return {key("answer", body["charge"]): str(sequence)} | ({drawn: str(sequence)} if body["release"] else {})

    def _clock(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check the record of a curator who set the ledger's time back to the clock. It changes no total."""
        if sorted(body) != ["by", "from"] or not all(isinstance(text, str) for text in body.values()):
            raise LedgerError("a clock row must hold the texts by and from, and nothing else")
        return {}

    def _act(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Check the record of a curator's action: who did what to which dataset or account. It changes no total."""
        if sorted(body) != ["act", "by", "of"] or not all(isinstance(text, str) for text in body.values()):
            raise LedgerError("an act row must hold the texts by, act and of, and nothing else")
        return {}

    def _restore(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Close the ledger until a gap is marked."""
        return {key("closed"): str(sequence), key("lost"): str(sequence)}

    def _gap(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """Count the loss of a lost ledger segment against every total that is capped now or will be later."""
        updates = {key("closed"): "", key("gap", body["head"]["sequence"], body["head"]["hash"]): str(sequence)}
        updates[key("lost")] = str(sequence)
        gaps = [*self.stored_list("gaps"), body["spent"]]
        for name in self.stored_list("populations"):
            population = self.population(name)
            if population is None:
                raise LedgerError(f"the ledger has no population {name!r}")
            updates |= self._totals_with_gaps(population, gaps, {})
        return updates | {key("gaps"): json.dumps(gaps, sort_keys=True)}

    def _totals_with_gaps(self, population: Population, gaps: list[Any], earlier: Mapping[str, str]) -> dict[str, str]:
        """Return the totals to which some gaps must still be added, with them added, and each one's number of gaps.

        `earlier` are totals that the same row starts with the cost of earlier charges.
        """
        updates: dict[str, str] = {}
        for balance in self._gap_balances(population) if gaps else ():
            total, gap_count_key = self._total(balance.key, balance, earlier), key("gaps", balance.key)
            for loss in gaps[int(self.get(gap_count_key) or 0) :]:
                limits = tuple(limit + 1 for limit in balance.limit or budget_limit(balance.budget))
                total = add_totals(total, limits if loss is None else budget_cost(balance.budget, from_json(loss)))
                updates |= {balance.key: " ".join(map(str, total)), gap_count_key: str(len(gaps))}
        return updates

    def _gap_balances(self, population: Population) -> Iterator[BudgetBalance]:
        """Yield the balances of the population, of each group and of each analyst."""
        units = population.datasets[0].units
        windows = {cap.unit: (ALL_WINDOWS,) for cap in population.budgets if units[cap.unit].kind == "window"}
        groups = sorted({group.name for dataset in population.datasets for group in dataset.groups})
        analysts = sorted({name for each in population.datasets for group in each.groups for name in group.analysts})
        yield from population.balances_for(groups, KERNEL, windows, fresh=True)
        for analyst in analysts:
            yield from population.balances_for((), analyst, windows, fresh=False)


def added_costs(added: Sequence[BudgetCap], losses: Sequence[Sequence[Any]]) -> dict[object, tuple[int, ...]]:
    """Return the cost of a charge to each added budget, from its JSON losses for them."""
    loss_by_unit = {(unit, kind): from_json(loss) for unit, kind, loss in losses}
    if {(cap.unit, cap.kind) for cap in added} != set(loss_by_unit):
        raise LedgerError("the losses of earlier charges must be those of the added budgets")
    return {budget_identity(cap): budget_cost(cap, loss_by_unit[cap.unit, cap.kind]) for cap in added}


def add_totals(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Add two totals component by component."""
    return tuple([one + other for one, other in zip(left, right, strict=True)])


def budget_exceeded(balance: BudgetBalance, spent: tuple[int, ...], cost: tuple[int, ...]) -> BudgetExceeded:
    """Return the error that states the remaining budget and the cost of the charge."""
    limits = balance.limit or ()
    names = filter_of(balance.budget).names
    worst = next(position for position, bound in enumerate(limits) if spent[position] + cost[position] > bound)
    whose = {"dataset": "the dataset", "group": f"group {balance.name}", "analyst": f"account {balance.name}"}[
        balance.level
    ]
    window = f" in window {balance.window}" if balance.window else ""
    left = max(0, limits[worst] - spent[worst])
    return BudgetExceeded(
        f"{whose} has {names[worst]} {left / FEMTO:.15g} left for unit {balance.budget.unit}{window};"
        f" this costs {cost[worst] / FEMTO:.15g}; nothing was read"
    )
