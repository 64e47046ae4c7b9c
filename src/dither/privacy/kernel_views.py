"""The free calls of a kernel: they charge nothing and read no records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import assert_never

from dither.plan.context import Context, PublicTableFacts, with_public_facts
from dither.privacy.kernel_datasets import KernelDatasets, code_version
from dither.privacy.ledger.descriptions import without_sources
from dither.privacy.plan_facts import windows_of
from dither.privacy.protocol import LAST_PAGE, Balance, HistoryEntry, LedgerRow, Page, PrivacyStatement
from dither.schema import Dataset, Unit


class KernelViews(KernelDatasets):
    """The calls of a kernel that charge nothing and read no records: public facts, budgets, history and latency."""

    # --- For every account ---

    def account_name(self, token: str) -> str:
        """Return the name of the account that a token belongs to."""
        return self._authenticate(token).name

    def account_role(self, token: str) -> str:
        """Return the role of the account that a token belongs to."""
        return self._authenticate(token).role

    def datasets(self, token: str) -> tuple[str, ...]:
        """Return the names of the datasets that the account may query or see."""
        account = self._authenticate(token)
        return tuple(name for name in sorted(self._datasets) if self._may_see(name, account))

    def schema(self, dataset: str, token: str) -> Dataset:
        """Return a dataset's schema without sources, with noisy row counts, the profile, and whether ranks are stored.

        Under separate budgets a profile is shown to the groups that paid for it.
        """
        account = self._authorize_view(dataset, token)
        registered = self._find_dataset(dataset)
        public, profile = without_sources(registered.context.dataset), registered.profile
        view = self.ledger.viewing_group(dataset, account.name if account.role == "analyst" else None)
        published = (profile.request, profile.release) if profile is not None and profile.is_paid_by(view) else None
        return with_public_facts(public, registered.prepared, registered.rows or {}, published)

    def facts(self, dataset: str, token: str) -> PublicTableFacts:
        """Return the facts counted in the dataset's public tables."""
        self._authorize_view(dataset, token)
        return self._find_dataset(dataset).context.facts

    def budget(self, dataset: str, token: str) -> tuple[Balance, ...]:
        """Return the budgets that the account's charges count against; for auditors and curators, all budgets."""
        account = self._authorize_view(dataset, token)
        analyst = account.name if account.role == "analyst" else None
        return self.ledger.balances(dataset, analyst, self._all_windows(self._find_dataset(dataset).context))

    def history(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[HistoryEntry, ...]:
        """Return a page of the charges that the account may see."""
        account = self._authorize_view(dataset, token)
        return self.ledger.history(dataset, account.name if account.role == "analyst" else None, page)

    def ledger_rows(self, dataset: str, token: str, page: Page = LAST_PAGE) -> tuple[LedgerRow, ...]:
        """Return a page of the ledger's rows, so that an auditor or a curator can check the hash chain."""
        self._authorize_view(dataset, token, "auditor", "curator")
        return tuple(LedgerRow(*row) for row in self.ledger.page(page))

    def statement(self, dataset: str, token: str) -> PrivacyStatement:
        """Return the facts of the dataset's privacy statement."""
        account = self._authorize_view(dataset, token)
        description = self._find_dataset(dataset).context.dataset
        analyst = account.name if description.policy == "separate" and account.role == "analyst" else None
        group = self.ledger.viewing_group(dataset, analyst)
        counts = self.ledger.attempts(dataset, analyst), self.ledger.unlock_count(dataset, group)
        bits = 0 if self._schedule is None else self._schedule.residual_bits(*counts)
        balances = self.ledger.balances(dataset, analyst, self._all_windows(self._find_dataset(dataset).context))
        return PrivacyStatement(
            dataset, description.population, description.policy, tuple(map(_describe_unit, description.units.values())),
            balances, tuple(self._assumptions(description)), bits, code_version(),
        )  # fmt: skip

    def _assumptions(self, dataset: Dataset) -> Iterator[str]:
        """Yield the assumptions behind the guarantee, each a sentence."""
        yield "the guarantee is the cap on each budget, whatever was spent so far; questions may follow from answers"
        yield "a changed record counts as one removed and one added: twice the loss, unless the statement says less"
        if dataset.policy == "separate":
            yield "each group's guarantee holds as long as the groups do not share answers with each other"
        for unit in dataset.units.values():
            fixed_tables = [name for name, table in dataset.tables.items() if table.private and name not in unit.keys]
            if fixed_tables:
                yield f"for unit {unit.name}, the tables {', '.join(fixed_tables)} are held fixed"
        if self._schedule is None:
            yield "this kernel runs in its user's own process and trusts that user; answers are not delayed"

    def _all_windows(self, ctx: Context) -> dict[str, tuple[str, ...]]:
        """Return every declared window of each window unit that has a budget."""
        units = {cap.unit: ctx.unit(cap.unit) for cap in ctx.dataset.budgets}
        return {name: windows_of(ctx, name) for name, unit in units.items() if unit.kind == "window"}

    # --- For the curator ---

    @property
    def registered(self) -> tuple[str, ...]:
        """The names of all registered datasets."""
        return tuple(sorted(self._datasets))

    def balances(self, dataset: str) -> tuple[Balance, ...]:
        """Return all budgets of a dataset."""
        return self.ledger.balances(dataset, None, self._all_windows(self._find_dataset(dataset).context))

    def locked(self, dataset: str) -> bool:
        """Return whether late answers have locked a dataset; under separate budgets, for one of its groups."""
        return bool(self._locked_groups(dataset))

    def _locked_groups(self, dataset: str) -> list[str]:
        """Return the viewing groups for which late answers have locked a dataset."""
        description = self._find_dataset(dataset).context.dataset
        groups = [group.name for group in description.groups] if description.policy == "separate" else []
        return [group for group in groups or [""] if self._misses_left(dataset, group) <= 0]

    def _misses_left(self, dataset: str, group: str) -> int:
        """Return how many more answers may be late before the dataset locks; without a schedule it never does."""
        if self._schedule is None:
            return self._slots
        return self._schedule.max_misses - self.ledger.misses(dataset, group)[1]

    def unlock(self, dataset: str) -> None:
        """Unlock a dataset for those groups for which late answers have locked it; the others notice nothing."""
        for group in self._locked_groups(dataset):
            self.ledger.unlock(dataset, group)

    def reset_latency(self, dataset: str) -> None:
        """Reset latency predictions to those before any late answer; the count of misses is unchanged."""
        self.ledger.reset_latency(dataset)

    def corrections(self, dataset: str) -> Mapping[str, int]:
        """Return how many values were corrected into their domains in answers so far; for the curator only."""
        totals = Counter[str]()
        for slot in self._find_dataset(dataset).slots:
            totals.update(slot.corrected + Counter(slot.engine.corrections()))
        return totals


def _describe_unit(unit: Unit) -> str:
    """Describe a privacy unit in words."""
    tables = ", ".join(unit.keys)
    match unit.kind:
        case "row":
            return f"{unit.name}: one row of {tables}"
        case "window":
            return f"{unit.name}: the rows of one key and one {unit.every} in {tables}"
        case "user":
            return f"{unit.name}: all rows of one {unit.name} in {tables}"
        case _:
            assert_never(unit.kind)
