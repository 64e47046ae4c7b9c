"""Side notes, outside the hash chain: refusals, misses, retries, unlocks and latency resets."""

from __future__ import annotations

from dither.privacy.ledger.keys import canonical_json
from dither.privacy.ledger.log import AppendLog
from dither.privacy.ledger.store import SideNote


class NotedLog(AppendLog):
    """A log with side notes: refused queries, late answers and retries, and what the curator did about them."""

    def record_refusal(self, account: str, dataset: str, reason: str) -> None:
        """Record a refused query."""
        with self._lock:
            self._store.note("refusal", dataset, self._now(), canonical_json({"account": account, "reason": reason}))

    def refusals(self, dataset: str) -> list[SideNote]:
        """Return the recorded refusals of a dataset, oldest first."""
        with self._lock:
            return self._store.notes("refusal", dataset)

    def record_miss(self, dataset: str, time_class: str, group: str = "") -> None:
        """Record a miss: an answer that was late, was cut off or failed; `group` is the viewing group of its payer."""
        with self._lock:
            self._store.note("miss", dataset, self._now(), f"{time_class} {group}".rstrip())

    def record_retry(self, dataset: str, group: str = "") -> None:
        """Record durably that an answer is about to be computed again; `group` is the viewing group of its payer."""
        with self._lock:
            self._store.note("retry", dataset, self._now(), group)

    def misses(self, dataset: str, group: str = "") -> tuple[list[SideNote], int]:
        """Return the misses that a viewing group sees, and how many there are since the curator last unlocked."""
        with self._lock:
            seen, last = self._misses_of(dataset, group), self._last_note_number("unlock", dataset, group)
        return seen, sum(miss.number > last for miss in seen)

    def latency_step(self, dataset: str, time_class: str, group: str = "") -> int:
        """Return a viewing group's misses of a time class since the curator last reset the dataset's latency."""
        with self._lock:
            seen, last = self._misses_of(dataset, group), self._last_note_number("quicken", dataset)
        return sum(miss.body.partition(" ")[0] == time_class and miss.number > last for miss in seen)

    def _misses_of(self, dataset: str, group: str) -> list[SideNote]:
        """Return the misses that a viewing group sees: its own, and all for the whole dataset."""
        noted = self._store.notes("miss", dataset)
        return [miss for miss in noted if not group or miss.body.partition(" ")[2] in ("", group)]

    def _acts_on(self, act: str, dataset: str, group: str) -> list[SideNote]:
        """Return the notes of a kind on a viewing group or on everyone; for the whole dataset, all."""
        return [note for note in self._store.notes(act, dataset) if not group or note.body in ("", group)]

    def _last_note_number(self, act: str, dataset: str, group: str = "") -> int:
        """Return the number of the last act of a kind on a viewing group, or 0 if there is none."""
        return max((note.number for note in self._acts_on(act, dataset, group)), default=0)

    def unlock_count(self, dataset: str, group: str = "") -> int:
        """Return the number of times that a viewing group was unlocked."""
        with self._lock:
            return len(self._acts_on("unlock", dataset, group))

    def unlock(self, dataset: str, group: str = "") -> None:
        """Unlock a dataset for a viewing group that was locked by misses, or for everyone."""
        with self._lock:
            self._store.note("unlock", dataset, self._now(), group)

    def reset_latency(self, dataset: str) -> None:
        """Reset latency predictions; the miss cap and the leakage bound are unchanged."""
        with self._lock:
            self._store.note("quicken", dataset, self._now(), "")
