"""The list of all attacks, and `audit.service(url)`, which runs them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dither.audit.attacks import oracles, requests, spending
from dither.audit.attacks.counting import audit_noisy_counts
from dither.audit.attacks.model import Attack, Finding, ServiceTarget
from dither.errors import InvalidParameter

ATTACKS: tuple[Attack, ...] = (*oracles.attacks(), *requests.attacks(), *spending.attacks())


def run(targets: Sequence[ServiceTarget], attacks: Iterable[Attack] = ATTACKS) -> list[Finding]:
    """Run attacks on one target, or on two whose data differ by one person; skip those that lack an account's token."""
    accounts = set(targets[0].tokens)
    return [attack.run(targets) for attack in attacks if set(attack.needed_accounts) <= accounts]


def service(
    url: str,
    neighbour: str | None = None,
    *,
    samples: int = 0,
    dataset: str | None = None,
    families: Sequence[str] = (),
    epsilon: str = "1/1000",
    tokens: Mapping[str, str] | None = None,
    neighbour_tokens: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Attack the service at `url`; with `neighbour`, an instance whose data lack one person, compare their replies.

    `samples` noisy counts are compared as well. `families` restricts the attacks, and `epsilon` is the loss of each
    query. `tokens` are by account: analyst, and other and auditor for attacks that need them; without it they come from
    DITHER_TOKEN, DITHER_OTHER_TOKEN and DITHER_AUDITOR_TOKEN, the neighbour's from DITHER_NEIGHBOUR_TOKEN and so on.
    """
    if samples and neighbour is None:
        raise InvalidParameter("samples are compared between two instances: name a neighbour (--neighbour URL)")
    known = {attack.family for attack in ATTACKS}
    if unknown := set(families) - known:
        raise InvalidParameter(f"no family {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    chosen = [attack for attack in ATTACKS if not families or attack.family in families]
    targets = [ServiceTarget.of(url, tokens or _tokens_from_environment("DITHER_"), dataset, epsilon)]
    if neighbour is not None:
        others = neighbour_tokens or _tokens_from_environment("DITHER_NEIGHBOUR_")
        targets.append(ServiceTarget.of(neighbour, others, dataset, epsilon))
    return run(targets, chosen) + ([audit_noisy_counts(targets, samples)] if samples else [])


def _tokens_from_environment(prefix: str) -> dict[str, str]:
    """Return the tokens of accounts from environment variables that start with the prefix."""
    variables = {"analyst": "TOKEN", "other": "OTHER_TOKEN", "auditor": "AUDITOR_TOKEN"}
    tokens = {name: os.environ[prefix + word] for name, word in variables.items() if os.environ.get(prefix + word)}
    if "analyst" not in tokens:
        raise InvalidParameter(f"no analyst's token: set the environment variable {prefix}TOKEN")
    return tokens


def format_findings(findings: Sequence[Finding]) -> str:
    """Return a text with the number of attacks of each family, and every attack that succeeded."""
    families = Counter(finding.family for finding in findings)
    lines = [f"{family}: {count} attacks" for family, count in families.items()]
    lines += [f"{len(findings)} attacks in {sum(finding.requests for finding in findings)} requests"]
    succeeded = [finding for finding in findings if finding.learned]
    lines += [f"LEARNED by {finding.attack}: {finding.secret}: {finding.evidence}" for finding in succeeded]
    return "\n".join(lines)
