"""Every attack in one list, and `dither audit service URL`, which runs it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from dither.audit.attacks import oracles, requests, spending
from dither.audit.attacks.counting import end_to_end
from dither.audit.attacks.model import Attack, Finding, ServiceTarget
from dither.errors import InvalidParameter

ATTACKS: tuple[Attack, ...] = (*oracles.attacks(), *requests.attacks(), *spending.attacks())


def run(targets: Sequence[ServiceTarget], attacks: Iterable[Attack] = ATTACKS) -> list[Finding]:
    """Tries attacks on one target, or on two that differ by one person."""
    known = set(targets[0].tokens)
    return [attack.run(targets) for attack in attacks if set(attack.needs) <= known]


def service(
    url: Annotated[str, typer.Argument(help="the gateway's address")],
    neighbour: Annotated[
        str | None, typer.Option(help="a second instance whose data lack one person: its replies must be alike")
    ] = None,
    samples: Annotated[int, typer.Option(help="with a neighbour: noisy counts to compare, from 1000 on")] = 0,
    dataset: Annotated[str | None, typer.Option(help="which dataset, if there are several")] = None,
    family: Annotated[list[str] | None, typer.Option(help="only attacks of this family; may be repeated")] = None,
    epsilon: Annotated[str, typer.Option(help="what each question of the attack may spend")] = "1/1000",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> list[Finding]:
    """Attack a running service; tokens in DITHER_TOKEN and, to try more, DITHER_OTHER_TOKEN, DITHER_AUDITOR_TOKEN.

    The neighbour's tokens are in DITHER_NEIGHBOUR_TOKEN, DITHER_NEIGHBOUR_OTHER_TOKEN, DITHER_NEIGHBOUR_AUDITOR_TOKEN.
    """
    if samples and neighbour is None:
        raise InvalidParameter("samples are compared with those of a neighbour: give --neighbour URL as well")
    families = {attack.family for attack in ATTACKS}
    if unknown := set(family or ()) - families:
        raise InvalidParameter(f"no family {', '.join(sorted(unknown))}; there are: {', '.join(sorted(families))}")
    chosen = [attack for attack in ATTACKS if not family or attack.family in family]
    targets = [ServiceTarget.of(url, _tokens("DITHER_"), dataset, epsilon)]
    if neighbour is not None:
        targets.append(ServiceTarget.of(neighbour, _tokens("DITHER_NEIGHBOUR_"), dataset, epsilon))
    findings = run(targets, chosen) + ([end_to_end(targets, samples)] if samples else [])
    if as_json:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        typer.echo(report(findings))
    return findings


def _tokens(prefix: str) -> dict[str, str]:
    """The accounts' tokens, from the environment."""
    names = {"analyst": "TOKEN", "other": "OTHER_TOKEN", "auditor": "AUDITOR_TOKEN"}
    tokens = {name: os.environ[prefix + word] for name, word in names.items() if os.environ.get(prefix + word)}
    if "analyst" not in tokens:
        raise InvalidParameter(f"put an analyst's token into the environment as {prefix}TOKEN")
    return tokens


def report(findings: Sequence[Finding]) -> str:
    """How many attacks of each family were tried, and what succeeded."""
    families = Counter(finding.family for finding in findings)
    lines = [f"{family}: {count} attacks" for family, count in families.items()]
    lines += [f"{len(findings)} attacks in {sum(finding.requests for finding in findings)} requests"]
    lines += [f"LEARNED by {each.attack}: {each.secret}: {each.evidence}" for each in findings if each.learned]
    return "\n".join(lines)
