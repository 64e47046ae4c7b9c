"""A privacy statement as Markdown, HTML and YAML, with the levels of NIST SP 800-226 and the registry's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import yaml

from dither.loss import Loss
from dither.post.display import amount_text, html_table
from dither.post.interpretation import stated_epsilon
from dither.privacy.accounting.conversion import delta_of
from dither.views.meaning import Table, meaning_tables

FLAVOURS = {"pure": "Pure DP", "zcdp": "Zero-Concentrated DP", "renyi": "Renyi DP"}
UNKNOWN = "to be filled in by the curator"


def stated_text(loss: Loss) -> str:
    """Return the epsilon of a loss in words, with the delta at which it holds.

    >>> from fractions import Fraction
    >>> from dither.loss import ZCDP
    >>> stated_text(ZCDP(Fraction(1, 2)))
    'epsilon 5.22 at delta 1e-6'
    """
    delta, epsilon = stated_epsilon(loss)
    if not delta:
        return f"epsilon {amount_text(epsilon)}"
    own = delta_of(loss)
    halves = f" (the budget's own {amount_text(own)}, and as much for the conversion to epsilon)" if own else ""
    return f"epsilon {float(epsilon):.3g} at delta {amount_text(delta)}{halves}"


def is_converted(guarantee: Mapping[str, Any]) -> bool:
    """Return True if the epsilon of a guarantee says more than its cap, which may be that epsilon."""
    return bool(guarantee["stated"] != guarantee["cap"])


def statement_levels(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Answer the levels of the pyramid of NIST SP 800-226, from its top to its base."""
    caps = [f"for unit {each['unit']}: at most {each['cap']}, over all answers" for each in data["guarantees"]]
    return {
        "privacy parameters": caps,
        "unit of privacy": [f"unit {unit}" for unit in data["units"]],
        "trust model": [
            "central: the curator and the machine with the data are trusted; analysts are not, and may work together"
        ],
        "algorithms and correctness": [
            "noise is drawn exactly on integers; each mechanism has a written proof, bound to its code by a digest",
            "sensitivities follow from the public description and the plan of a query, never from the records",
            "a charge is written durably before the records are read, and is never refunded",
        ],
        "utility and bias": [
            "each answer states its noise, its interval, and what contribution bounds may have removed",
            "negative counts are shown unless they are asked not to be, since raising them would bias sums",
        ],
        "side channels": [
            timing_fact(data),
            "errors and shapes of answers follow from public facts alone",
        ],
        "access and security": [
            "queries need an account; the ledger is chained by hashes, and auditors can verify it",
            *data["assumptions"],
        ],
        "collection of data": ["outside of this system: the curator answers for it"],
    }


def timing_fact(data: Mapping[str, Any]) -> str:
    """Say what the time of answers reveals."""
    if any("not delayed" in assumption for assumption in data["assumptions"]):
        return "the time of answers is not protected here: this kernel trusts its user, and does not delay them"
    return f"answers leave on a public schedule; late ones tell at most {data['residual_bits_of_time']} bits in all"


def registry_entry(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the OpenDP deployments registry; a curator fills in what only people know."""
    kinds = sorted({balance["kind"] for balance in data["balances"]})
    flavour = ", ".join(FLAVOURS.get(kind, kind) for kind in kinds)
    caps = {each["unit"]: each["cap"] for each in data["guarantees"]}
    return {
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": data["dataset"],
                "data_curators": [UNKNOWN],
                "intended_use": UNKNOWN,
                "data_product_type": "Query interface",
                "data_product_region": UNKNOWN,
                "description": f"statistical answers about {data['population']}",
                "publication_date": UNKNOWN,
                "data_product_sector": UNKNOWN,
            },
            "dp_flavor": {
                "name": flavour,
                "bound_on_input_distance": "one unit, with all of its rows, is added or removed",
                "output_measure": flavour,
                "bound_on_output_distance": "; ".join(f"{unit}: {cap}" for unit, cap in caps.items()),
                "data_domain": "the tables and domains of the public description",
                "unprotected_quantities": "the description, public tables, and tables that no budget's unit covers",
            },
            "privacy_loss": {
                "privacy_unit": ", ".join(caps),
                "privacy_unit_description": "; ".join(data["units"]),
                "privacy_parameters": caps,
                "privacy_parameters_description": "limits on the sum of all charges, enforced before each answer",
            },
            "model": {
                "model_name": "Central",
                "model_name_description": "a curator holds the records; a kernel adds noise",
                "actors": "curator, analysts, auditors",
                "release_type": "Multiple releases",
                "release_type_description": f"budgets are {data['policy']} among analysts",
                "data_source_type": "Static",
                "data_source_type_description": "each version of the data is registered; budgets span versions",
                "access_type": "Interactive",
                "access_type_description": "SQL queries and statistics of an account, charged one by one",
            },
            "accounting": {
                "post_processing": "estimates, intervals, consistency and models are computed from releases alone",
                "composition": "a filter adds up the losses of queries chosen adaptively, and refuses to exceed a cap",
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": "contribution bounds are chosen privately when asked",
                "mechanisms": "those of docs/mechanisms.md, each named in its release",
                "justification": UNKNOWN,
            },
            "resources": {"sources": "", "notes": f"made by Dither {data['code']}", "registry_authors": [UNKNOWN]},
        },
    }


def statement_yaml(data: Mapping[str, Any]) -> str:
    """Write a statement as YAML: the registry's entry, the levels, and all facts."""
    whole = {**registry_entry(data), "levels_of_sp_800_226": statement_levels(data), "statement": dict(data)}
    return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=110))


def statement_markdown(data: Mapping[str, Any]) -> str:
    """Write a statement as Markdown."""
    lines = [f"# Privacy statement of {data['dataset']}", "", f"Population: {data['population']}.", ""]
    for guarantee in data["guarantees"]:
        lines += [f"## Unit {guarantee['unit']}: {guarantee['cap']}", ""]
        lines += [f"That is {guarantee['stated']}.", ""] if is_converted(guarantee) else []
        for table in guarantee_tables(guarantee):
            lines += [*markdown_table(*table), ""]
    lines += ["## Levels of NIST SP 800-226", ""]
    for level, facts in statement_levels(data).items():
        lines += [f"- **{level}**: {'; '.join(facts)}"]
    lines += ["", "## Limits of the guarantee", "", *(f"- {text}" for text in data["not_promised"])]
    return "\n".join(lines) + "\n"


def guarantee_tables(guarantee: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of one guarantee: tests, groups, and epsilon for several deltas."""
    yield from meaning_tables(guarantee)
    if guarantee["curve"]:
        yield ("delta", "epsilon"), [(row["delta"], row["epsilon"]) for row in guarantee["curve"]]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table as lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def statement_html(data: Mapping[str, Any]) -> str:
    """Write a statement as a page of HTML; all texts are escaped."""
    parts = [f"<h1>Privacy statement of {escape(str(data['dataset']))}</h1>"]
    parts.append(f"<p>Population: {escape(str(data['population']))}.</p>")
    for guarantee in data["guarantees"]:
        parts.append(f"<h2>Unit {escape(guarantee['unit'])}: {escape(guarantee['cap'])}</h2>")
        parts += [f"<p>That is {escape(guarantee['stated'])}.</p>"] if is_converted(guarantee) else []
        parts += [html_table(*table) for table in guarantee_tables(guarantee)]
    parts.append("<h2>Levels of NIST SP 800-226</h2><dl>")
    for level, facts in statement_levels(data).items():
        parts.append(f"<dt>{escape(level)}</dt>" + "".join(f"<dd>{escape(fact)}</dd>" for fact in facts))
    limits = "".join(f"<li>{escape(text)}</li>" for text in data["not_promised"])
    parts.append(f"</dl><h2>Limits of the guarantee</h2><ul>{limits}</ul>")
    title = escape(str(data["dataset"]))
    return f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{''.join(parts)}</html>\n"
