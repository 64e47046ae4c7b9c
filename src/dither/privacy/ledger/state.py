"""The rules by which a row may follow, and what it makes of the state.

The ledger asks `Book` before it writes, and the verifier asks it again for every row that was written: what is checked
offline is what was enforced. All amounts are integers of 1e-15.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from operator import gt
from typing import Any, Literal

from dither.errors import BudgetExceeded, InvalidParameter, InvalidSchema, LedgerError, NotAllowed, NotFound
from dither.loss import Loss, from_json
from dither.plan.context import Context, PublicTableFacts
from dither.privacy.accounting.filters import filter_of
from dither.privacy.accounting.units import FEMTO
from dither.privacy.codec import RESPONSE, decode, encode
from dither.privacy.ledger.store import Row
from dither.schema import BudgetCap, Dataset, Group, Source

KERNEL = "kernel"  # the account under which a kernel charges for itself; no token opens it
Level = Literal["dataset", "group", "analyst"]
ROLES = ("analyst", "auditor", "curator")
REMEMBERED = 256  # an entry may hold as many totals as there are windows
EVERY = "*"  # stands for every window of a unit, past and to come


@lru_cache(maxsize=1 << 10)
def key(*parts: str | int | None) -> str:
    """The name of a piece of state."""
    return json.dumps(parts, separators=(",", ":"))


@lru_cache(maxsize=1 << 10)
def members_of(listed: str) -> tuple[str, ...]:
    """The names in a list that is kept as state."""
    return tuple(json.loads(listed))


def canonical(body: Mapping[str, Any]) -> str:
    """A row's body as text: equal bodies give equal texts."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class BudgetBalance:
    """A running total against one budget; `limit` is None where it is counted but not capped."""

    level: Level
    name: str
    budget: BudgetCap
    window: str
    limit: tuple[int, ...] | None
    key: str


def budget_identity(cap: BudgetCap) -> tuple[object, ...]:
    """What makes two caps limits on the same total."""
    return cap.unit, cap.kind, cap.order


@cache
def budget_limit(cap: BudgetCap) -> tuple[int, ...]:
    """A cap in integers of 1e-15."""
    return filter_of(cap).cap


@lru_cache(maxsize=1 << 10)
def budget_cost(cap: BudgetCap, loss: Loss) -> tuple[int, ...]:
    """What a loss costs a budget, in integers of 1e-15 rounded up."""
    return filter_of(cap).spend(loss)


@dataclass(frozen=True)
class Population:
    """Everyone whose records several datasets share, and the budgets on them: of equal caps, the tightest counts."""

    name: str
    datasets: tuple[Dataset, ...]
    _pools: dict[tuple[object, ...], tuple[BudgetBalance, ...]] = field(default_factory=dict, compare=False, repr=False)
    _costs: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def budgets(self) -> tuple[BudgetCap, ...]:
        """The budgets that every release is charged against."""
        return self.datasets[0].budgets

    @property
    def separate(self) -> bool:
        """Whether each group has budgets of its own."""
        return self.datasets[0].policy == "separate"

    def costs(self, losses: str) -> tuple[tuple[int, ...], ...]:
        """What a charge of these losses, as JSON, costs each budget, in their order."""
        if losses not in self._costs:
            if len(self._costs) > REMEMBERED:
                self._costs.clear()
            self._costs[losses] = self._priced(losses)
        return self._costs[losses]

    def _priced(self, losses: str) -> tuple[tuple[int, ...], ...]:
        given = {(unit, kind): from_json(loss) for unit, kind, loss in json.loads(losses)}
        missing = [f"{cap.unit} ({cap.kind})" for cap in self.budgets if (cap.unit, cap.kind) not in given]
        if missing:
            raise LedgerError(f"the charge states no loss for: {', '.join(missing)}")
        return tuple(budget_cost(cap, given[cap.unit, cap.kind]) for cap in self.budgets)

    def groups_of(self, dataset: Dataset, account: str) -> tuple[str, ...]:
        """The groups that pay for an account's questions: its own, or all of them for the kernel's."""
        if account == KERNEL:
            return tuple(group.name for group in dataset.groups) if self.separate else ()
        mine = tuple(group.name for group in dataset.groups if account in group.analysts)
        if not mine and (self.separate or dataset.groups):
            raise NotAllowed("this account belongs to no group of the dataset")
        return mine

    def balances_for(
        self, groups: Sequence[str], account: str, windows: Mapping[str, Iterable[str]], fresh: bool
    ) -> tuple[BudgetBalance, ...]:
        """Every total that a charge counts against: the population's own only where something fresh is drawn."""
        which = (*groups, "", account, fresh, *((unit, *names) for unit, names in windows.items()))
        if which not in self._pools:
            if len(self._pools) > REMEMBERED:
                self._pools.clear()
            self._pools[which] = tuple(self._made(groups, account, windows, fresh))
        return self._pools[which]

    def _made(
        self, groups: Sequence[str], account: str, windows: Mapping[str, Iterable[str]], fresh: bool
    ) -> Iterator[BudgetBalance]:
        names: list[tuple[Level, str]] = [("dataset", "")] if fresh else []
        names += [("group", group) for group in groups]
        names += [("analyst", account)] if account != KERNEL else []
        for budget in self.budgets:
            for level, name in names:
                limit = self._tightest(budget, level, name, account)
                for window in windows.get(budget.unit, ("",)):
                    yield BudgetBalance(
                        level, name, budget, window, limit, self.balance_key(budget, level, name, window)
                    )

    def balance_key(self, budget: BudgetCap, level: Level, name: str, window: str) -> str:
        """Where the total of a budget at a level is kept."""
        order = None if budget.order is None else str(budget.order)
        return key("spent", self.name, level, name, budget.unit, budget.kind, order, window)

    def _tightest(self, budget: BudgetCap, level: str, name: str, account: str) -> tuple[int, ...] | None:
        """The tightest cap on a total among the population's datasets, or None."""
        caps = [cap for dataset in self.datasets for cap in self._caps(dataset, level, name, account)]
        found = [budget_limit(cap) for cap in caps if budget_identity(cap) == budget_identity(budget)]
        return tuple(min(limits) for limits in zip(*found, strict=True)) if found else None

    def _caps(self, dataset: Dataset, level: str, name: str, account: str) -> tuple[BudgetCap, ...]:
        if level == "dataset":
            return () if self.separate else dataset.budgets
        if level == "group":
            return self._group_caps(dataset, [group for group in dataset.groups if group.name == name])
        return tuple(cap for group in dataset.groups if account in group.analysts for cap in group.analyst_caps)

    def _group_caps(self, dataset: Dataset, groups: list[Group]) -> tuple[BudgetCap, ...]:
        """A group's own caps; under separate budgets, the dataset's for what it does not name."""
        own = tuple(cap for group in groups for cap in group.caps)
        if not self.separate:
            return own
        named = {budget_identity(cap) for cap in own}
        return own + tuple(cap for cap in dataset.budgets if budget_identity(cap) not in named)


def without_sources(dataset: Dataset) -> Dataset:
    """The description without where the records are."""
    tables = {name: replace(table, source=Source(table.source.kind)) for name, table in dataset.tables.items()}
    return replace(dataset, tables=tables)


def source_fingerprints(dataset: Dataset) -> list[str]:
    """One for each private table's source, so that another population cannot claim the same records."""
    sources = [table.source for table in dataset.tables.values() if table.private]
    named = [[source.kind, sorted(source.options.items())] for source in sources if source.options]
    return sorted({hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in named})


@dataclass(frozen=True)
class DatasetVersion:
    """A registered description with the facts about its public tables, and the version that answers to it carry."""

    dataset: Dataset
    facts: PublicTableFacts
    version: str

    @classmethod
    def of(cls, body: Mapping[str, str]) -> DatasetVersion:
        """What a dataset's row says."""
        dataset = decode(body["schema"].encode(), Dataset, RESPONSE)
        facts = decode(body["facts"].encode(), PublicTableFacts, RESPONSE)
        described = encode(replace(dataset, budgets=(), groups=(), policy="shared")) + encode(facts)
        return cls(dataset, facts, f"{dataset.data_version}@{hashlib.sha256(described).hexdigest()[:16]}")

    @property
    def context(self) -> Context:
        """Where plans over the dataset are read."""
        return Context(self.dataset, self.facts)


@dataclass(frozen=True)
class DescriptionCache:
    """What was worked out from rows that never change: descriptions by their hash, and populations of them."""

    schemas: dict[str, DatasetVersion] = field(default_factory=dict)
    populations: dict[tuple[str | None, ...], Population] = field(default_factory=dict)


class LedgerState:
    """The rules: what each kind of row needs of the state, and what it makes of it."""

    def __init__(
        self,
        read: Callable[[list[str]], dict[str, str]],
        row: Callable[[int], Row | None],
        memory: DescriptionCache | None = None,
        known: Mapping[str, str | None] | None = None,
    ) -> None:
        self._read, self._row, self._memory, self._known = read, row, memory or DescriptionCache(), known or {}
        self._seen: dict[str, str | None] = {}
        self._bodies: dict[int, Any] = {}
        self.updates: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """A piece of state as it is after the rows so far."""
        for held in (self.updates, self._known, self._seen):
            if name in held:
                return held[name]
        self.fetch([name])
        return self._seen[name]

    def fetch(self, names: Iterable[str], absent: Iterable[str] = ()) -> None:
        """Reads several pieces of state at once, but for those that are known, or known to be absent."""
        self._seen.update(dict.fromkeys(absent))
        wanted = [name for name in dict.fromkeys(names) if name not in self._seen and name not in self._known]
        found = self._read(wanted) if wanted else {}
        self._seen.update({name: found.get(name) for name in wanted})

    def body(self, sequence: int) -> Any:
        """The body of an earlier row."""
        if sequence not in self._bodies:
            row = self._row(sequence)
            if row is None:
                raise LedgerError(f"there is no row {sequence}")
            self._bodies[sequence] = json.loads(row.body)
        return self._bodies[sequence]

    def described(self, name: str) -> DatasetVersion:
        """A dataset as last registered."""
        at = self.get(key("dataset", name))
        if at is None:
            raise NotFound(f"there is no dataset {name!r}")
        sequence, digest = at.split()
        known = self._memory.schemas
        if digest not in known:
            known[digest] = DatasetVersion.of(self.body(int(sequence)))
        return known[digest]

    def dataset(self, name: str) -> Dataset:
        """The description of a dataset as last registered."""
        return self.described(name).dataset

    def population(self, name: str) -> Population | None:
        """The datasets over one source, or None before the first is registered."""
        listed = self.get(key("population", name))
        if listed is None:
            return None
        members = members_of(listed)
        which, known = (name, *[self.get(key("dataset", each)) for each in members]), self._memory.populations
        if which not in known:
            known[which] = Population(name, tuple(self.dataset(each) for each in members))
        return known[which]

    def listed(self, name: Literal["populations", "gaps"]) -> list[Any]:
        """The names of all populations; or what each gap may have spent, as JSON, None where it may have been all."""
        found: list[Any] = json.loads(self.get(key(name)) or "[]")
        return found

    def apply(self, kind: str, body: Mapping[str, Any], sequence: int) -> None:
        """Checks a row against the rules and takes its effects in; raises, and takes nothing in, if it breaks one."""
        rules = {
            "dataset": self._dataset, "account": self._account, "charge": self._charge,
            "answer": self._answer, "restore": self._restore, "gap": self._gap, "act": self._act,
        }  # fmt: skip
        if kind not in rules:
            raise LedgerError(f"there is no kind of row called {kind!r}")
        self.updates.update(rules[kind](body, sequence))
        self._bodies[sequence] = body

    def _dataset(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        dataset = decode(body["schema"].encode(), Dataset, RESPONSE)
        known = self.population(dataset.population)
        others = [each for each in known.datasets if each.name != dataset.name] if known else []
        check_dataset(dataset, others)
        if self.get(key("dataset", dataset.name)) and self.dataset(dataset.name).population != dataset.population:
            raise InvalidSchema(f"dataset {dataset.name!r} belongs to another population; budgets do not move")
        self._check_kept(known, dataset)
        for source in body["sources"]:
            if self.get(key("source", source)) not in (None, dataset.population):
                raise InvalidSchema("another population holds these records; give both datasets its name")
        names = sorted({dataset.name, *(each.name for each in others)})
        return {
            key("dataset", dataset.name): f"{sequence} {hashlib.sha256(canonical(body).encode()).hexdigest()}",
            key("population", dataset.population): json.dumps(names),
            key("populations"): json.dumps(sorted({*self.listed("populations"), dataset.population})),
            **{key("source", source): dataset.population for source in body["sources"]},
            **self._lost(Population(dataset.population, (*others, dataset)), self.listed("gaps")),
        }

    def _check_kept(self, known: Population | None, dataset: Dataset) -> None:
        """Refuses a description under which what was spent would no longer count."""
        before = [each for each in known.datasets if each.name == dataset.name] if known else []
        if known is None or not before or not self._has_spent(known):
            return
        lost = [f"{cap.unit} ({cap.kind})" for cap in known.budgets if not _kept(cap, before[0], dataset)]
        if lost or before[0].policy != dataset.policy:
            raise NotAllowed(
                f"population {known.name!r} has spent of its budgets: {', '.join(lost) or 'its policy'} must stay as"
                " declared (unit, kind, order, windows, time zone); caps may change and budgets may be added"
            )

    def _has_spent(self, population: Population) -> bool:
        """Whether anything was charged to a population, or marked as spent by a gap."""
        places = [
            population.balance_key(cap, "dataset", "", window) for cap in population.budgets for window in ("", EVERY)
        ]
        return any(self.charges(each.name) for each in population.datasets) or any(map(self.get, places))

    def _account(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        if body["role"] not in ROLES or body["name"] == KERNEL:
            raise InvalidParameter(f"an account has a name of its own and a role: {', '.join(ROLES)}")
        updates = {key("account", body["name"]): str(sequence)}
        if body["token"] is not None:
            updates[key("token", body["token"])] = body["name"]
        return updates

    def _charge(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        dataset, population, question = self.question(body["dataset"], body["digest"])
        if body["version"] != question[1]:
            raise LedgerError("the charge names another version of the data")
        if self.get(key("closed")):
            raise LedgerError("the ledger is closed after a restore until its curator marks the gap as spent")
        root, unpaid = self.unpaid(population, dataset, body["account"], question)
        if not unpaid and root is not None:
            raise LedgerError("the question was paid for already")
        if body["of"] != root or body["groups"] != unpaid:
            raise LedgerError("the charge names other payers than the rules do")
        self._check_losses(body, root)
        if any(dataset.units[cap.unit].kind == "window" and cap.unit not in body["windows"] for cap in dataset.budgets):
            raise LedgerError("the charge must name the windows that it touches")
        updates = self._spend(
            population, body, population.balances_for(unpaid, body["account"], body["windows"], root is None)
        )
        updates |= {key("paid", group, *question): str(sequence) for group in unpaid}
        updates |= {key("question", *question): str(sequence)} if root is None else {}
        updates[key("charges", body["dataset"])] = str(self.charges(body["dataset"]) + 1)
        if body["request_id"]:
            updates |= self._request(body["account"], body["request_id"], body["digest"], root or sequence)
        return updates

    def charges(self, dataset: str) -> int:
        """How many charges a dataset has had."""
        return int(self.get(key("charges", dataset)) or 0)

    def _request(self, account: str, request_id: str, digest: str, root: int) -> dict[str, str]:
        name = key("request", account, request_id)
        if self.get(name) is not None:
            raise LedgerError("the request id was used before")
        return {name: f"{root} {digest}"}

    def question(self, name: str, digest: str) -> tuple[Dataset, Population, tuple[str, str, str]]:
        """A dataset, its population, and what names a question to it."""
        described = self.described(name)
        population = self.population(described.dataset.population)
        if population is None:
            raise LedgerError("the dataset's population is missing")
        return described.dataset, population, (name, described.version, digest)

    def unpaid(
        self, population: Population, dataset: Dataset, account: str, question: tuple[str, str, str]
    ) -> tuple[int | None, list[str]]:
        """The charge that first paid for a question, and the groups that still have to."""
        root, groups = self.get(key("question", *question)), list(population.groups_of(dataset, account))
        first = None if root is None else int(root)
        if not population.separate:
            return first, groups if root is None else []
        return first, [group for group in groups if self.get(key("paid", group, *question)) is None]

    def _check_losses(self, body: Mapping[str, Any], root: int | None) -> None:
        """A recorded answer costs a second group what it cost the first."""
        if root is not None and any(body[name] != self.body(root)[name] for name in ("losses", "windows")):
            raise LedgerError("a recorded answer costs the same whoever pays for it")

    def _spend(self, population: Population, body: Mapping[str, Any], pools: Sequence[BudgetBalance]) -> dict[str, str]:
        """The new totals; raises if one of them would pass its limit."""
        costs = population.costs(json.dumps(body["losses"]))
        if body["costs"] != [list(cost) for cost in costs]:
            raise LedgerError("the charge's costs do not follow from its losses")
        by_budget = dict(zip(map(budget_identity, population.budgets), costs, strict=True))
        self.fetch(pool.key for pool in pools)
        updates = {}
        for pool in pools:
            spent, more = self.spent(population, pool), by_budget[budget_identity(pool.budget)]
            if pool.limit is not None and any(map(gt, plus(spent, more), pool.limit)):
                raise budget_exceeded(pool, spent, more)
            updates[pool.key] = " ".join(map(str, plus(self._held(pool.key, pool), more)))
        return updates

    def spent(self, population: Population, pool: BudgetBalance) -> tuple[int, ...]:
        """What was spent of a pool so far; what a gap spent of every window counts for each."""
        held = self._held(pool.key, pool)
        if not pool.window:
            return held
        return plus(held, self._held(population.balance_key(pool.budget, pool.level, pool.name, EVERY), pool))

    def _held(self, name: str, pool: BudgetBalance) -> tuple[int, ...]:
        held = self.get(name)
        return tuple(map(int, held.split())) if held else (0,) * len(budget_limit(pool.budget))

    def _answer(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        charge = self.body(body["charge"])
        if "losses" not in charge or charge["of"] is not None:
            raise LedgerError("an answer belongs to the charge that first paid for it")
        if self.get(key("answer", body["charge"])) is not None:
            raise LedgerError("the charge was answered already")
        return {key("answer", body["charge"]): str(sequence)}

    def _act(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """What a curator did that changes no total: who, what, and to which dataset or account."""
        if sorted(body) != ["act", "by", "of"] or not all(isinstance(text, str) for text in body.values()):
            raise LedgerError("an act says who did what to which")
        return {}

    def _restore(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        return {key("closed"): str(sequence)}

    def _gap(self, body: Mapping[str, Any], sequence: int) -> dict[str, str]:
        """What a lost stretch of the ledger may have spent, for every total that can be capped, now or later."""
        updates = {key("closed"): "", key("gap", body["head"]["sequence"], body["head"]["hash"]): str(sequence)}
        gaps = [*self.listed("gaps"), body["spent"]]
        for name in body.get("populations", self.listed("populations")):
            population = self.population(name)
            if population is None:
                raise LedgerError(f"there is no population {name!r}")
            updates |= self._lost(population, gaps)
        if "populations" in body:  # written before gaps were kept: it counts for these alone
            return {name: value for name, value in updates.items() if not name.startswith('["gaps"')}
        return updates | {key("gaps"): json.dumps(gaps, sort_keys=True)}

    def _lost(self, population: Population, gaps: list[Any]) -> dict[str, str]:
        """The totals of everyone who could have spent, and how many gaps they hold, where they did not hold all."""
        updates: dict[str, str] = {}
        for pool in self._gap_pools(population) if gaps else ():
            total, counted = self._held(pool.key, pool), key("gaps", pool.key)
            for loss in gaps[int(self.get(counted) or 0) :]:
                most = tuple(limit + 1 for limit in pool.limit or budget_limit(pool.budget))
                total = plus(total, most if loss is None else budget_cost(pool.budget, from_json(loss)))
                updates |= {pool.key: " ".join(map(str, total)), counted: str(len(gaps))}
        return updates

    def _gap_pools(self, population: Population) -> Iterator[BudgetBalance]:
        """The totals of everyone who could have spent."""
        units = population.datasets[0].units
        windows = {cap.unit: (EVERY,) for cap in population.budgets if units[cap.unit].kind == "window"}
        groups = sorted({group.name for dataset in population.datasets for group in dataset.groups})
        analysts = sorted({name for each in population.datasets for group in each.groups for name in group.analysts})
        yield from population.balances_for(groups, KERNEL, windows, fresh=True)
        for analyst in analysts:
            yield from population.balances_for((), analyst, windows, fresh=False)


def plus(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The sum, component by component."""
    return tuple(one + other for one, other in zip(left, right, strict=True))


def budget_exceeded(pool: BudgetBalance, spent: tuple[int, ...], cost: tuple[int, ...]) -> BudgetExceeded:
    """The refusal, with what is left and what was asked for."""
    most = pool.limit or ()
    names = filter_of(pool.budget).names
    worst = next(at for at, most_ in enumerate(most) if spent[at] + cost[at] > most_)
    whose = {"dataset": "the dataset", "group": f"group {pool.name}", "analyst": f"account {pool.name}"}[pool.level]
    window = f" in window {pool.window}" if pool.window else ""
    left = max(0, most[worst] - spent[worst])
    return BudgetExceeded(
        f"{whose} has {names[worst]} {left / FEMTO:.15g} left for unit {pool.budget.unit}{window};"
        f" this costs {cost[worst] / FEMTO:.15g}; nothing was read"
    )


def check_dataset(dataset: Dataset, others: Iterable[Dataset]) -> None:
    """Refuses a description whose budgets could be passed by, or that does not fit its population's."""
    keys = [budget_identity(cap) for cap in dataset.budgets]
    if not keys or len(set(keys)) != len(keys):
        raise InvalidSchema("a dataset needs at least one budget, and one of each kind for a unit")
    for cap in dataset.budgets:
        budget_limit(cap)
        if cap.unit not in dataset.units:
            raise InvalidSchema(f"there is a budget for unit {cap.unit!r}, which is not declared")
    for group in dataset.groups:
        if any(budget_identity(cap) not in keys for cap in (*group.caps, *group.analyst_caps)):
            raise InvalidSchema(f"group {group.name!r} caps a kind of loss that the dataset has no budget for")
    names = [name for group in dataset.groups for name in group.analysts]
    if len(set(names)) != len(names) or KERNEL in names:
        raise InvalidSchema("an account may be in one group of a dataset only, and none may be called kernel")
    for other in others:
        _check_pair(dataset, other)


def _kept(cap: BudgetCap, before: Dataset, after: Dataset) -> bool:
    """Whether what was spent of a budget still counts against the same total under a new description."""
    if budget_identity(cap) not in map(budget_identity, after.budgets):
        return False
    old, new = before.units[cap.unit], after.units[cap.unit]
    same_clock = old.kind != "window" or before.timezone == after.timezone
    return (old.kind, old.every) == (new.kind, new.every) and same_clock


def _check_pair(dataset: Dataset, other: Dataset) -> None:
    """Two datasets of one population need the same policy, the same budgets (caps may differ) and the same units."""
    if other.policy != dataset.policy or {*map(budget_identity, other.budgets)} != {
        *map(budget_identity, dataset.budgets)
    }:
        raise InvalidSchema(f"population {dataset.population!r} has other budgets or another policy; declare the same")
    for cap in dataset.budgets:
        mine, theirs = dataset.units[cap.unit], other.units[cap.unit]
        if (mine.kind, mine.every) != (theirs.kind, theirs.every):
            raise InvalidSchema(f"unit {cap.unit!r} means something else in dataset {other.name!r}")
        if mine.kind == "window" and dataset.timezone != other.timezone:
            raise InvalidSchema(f"the windows of unit {cap.unit!r} begin at other times in dataset {other.name!r}")
