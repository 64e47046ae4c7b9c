"""The list of all attacks, and `dither audit service URL`, which runs them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

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
    url: Annotated[str, typer.Argument(help="URL of the gateway")],
    neighbour: Annotated[
        str | None, typer.Option(help="URL of a second instance whose data lack one person; its replies must be equal")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="number of noisy counts to compare with the neighbour's, at least 1000")
    ] = 0,
    dataset: Annotated[str | None, typer.Option(help="name of the dataset to attack, if there are several")] = None,
    family: Annotated[list[str] | None, typer.Option(help="run only attacks of this family; may be repeated")] = None,
    epsilon: Annotated[str, typer.Option(help="privacy loss of each query of an attack")] = "1/1000",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> list[Finding]:
    """Attack a running service with the analyst's token from the environment variable DITHER_TOKEN.

    DITHER_OTHER_TOKEN and DITHER_AUDITOR_TOKEN add attacks that need these accounts. The neighbour's tokens are in
    DITHER_NEIGHBOUR_TOKEN, DITHER_NEIGHBOUR_OTHER_TOKEN and DITHER_NEIGHBOUR_AUDITOR_TOKEN.
    """
    if samples and neighbour is None:
        raise InvalidParameter("--samples compares two instances: give --neighbour URL as well")
    families = {attack.family for attack in ATTACKS}
    if unknown := set(family or ()) - families:
        raise InvalidParameter(f"no family {', '.join(sorted(unknown))}; there are: {', '.join(sorted(families))}")
    chosen = [attack for attack in ATTACKS if not family or attack.family in family]
    targets = [ServiceTarget.of(url, _tokens_from_environment("DITHER_"), dataset, epsilon)]
    if neighbour is not None:
        targets.append(ServiceTarget.of(neighbour, _tokens_from_environment("DITHER_NEIGHBOUR_"), dataset, epsilon))
    findings = run(targets, chosen) + ([audit_noisy_counts(targets, samples)] if samples else [])
    if as_json:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        typer.echo(format_findings(findings))
    return findings


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
