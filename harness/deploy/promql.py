"""What the dashboards and rules ask: their queries, and the selectors within an expression."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from harness.service.service_harness import ROOT

DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules"
WHERE_PRESENT = "DCGM_"
"""NVIDIA's exporter, which needs NVIDIA's GPUs: nothing of it is here."""

_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "offset", "bool"}


@dataclass(frozen=True)
class Asked:
    """A query of a panel."""

    dashboard: str
    panel: dict[str, Any]
    expr: str
    legend: str

    def sent(self, values: Mapping[str, list[str]]) -> list[str]:
        """Returns Grafana's queries: with all values of a variable that takes several, or
        with one after the other."""
        texts = [self.expr]
        for name, query in variables()[self.dashboard].items():
            if f"${name}" not in self.expr:
                continue
            given = values[name]
            if query["multi"]:
                several = "|".join(re.escape(value) for value in values[name])
                given = ["(" + several.replace("\\", "\\\\") + ")"]
            texts = [text.replace(f"${name}", value) for text in texts for value in given]
        assert not any("$" in text for text in texts), texts
        return texts


def dashboards() -> dict[str, dict[str, Any]]:
    """Returns the dashboards' documents by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.iterdir())}


def variables() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns, for each dashboard, the variables whose values come from a query."""
    return {
        name: {v["name"]: v for v in dashboard["templating"]["list"] if v["type"] == "query"}
        for name, dashboard in dashboards().items()
    }


def asked() -> Iterator[Asked]:
    """Yields every query of every panel, without those of exporters that are not ours."""
    for name, document in dashboards().items():
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                if WHERE_PRESENT not in target["expr"]:
                    yield Asked(name, panel, target["expr"], target.get("legendFormat", ""))


def rules(kind: str) -> dict[str, str]:
    """Returns the expressions of all rules of a kind (`record` or `alert`) by name."""
    groups = [g for path in RULES.iterdir() for g in yaml.safe_load(path.read_text())["groups"]]
    return {rule[kind]: rule["expr"] for group in groups for rule in group["rules"] if kind in rule}


def selectors(formatted: str) -> set[str]:
    """Returns the series that an expression reads, as instant selectors without offset or range.

    The expression is in the form that Prometheus gives it.
    """
    text = re.sub(r"\[[^\]]*\]|\boffset \w+", "", formatted)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right) ?\([^)]*\)", "", text)
    matches = re.finditer(r'(?<![\w:"])([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?!\w|\s*\()', text)
    outside = re.sub(r"\{[^}]*\}", lambda inner: " " * len(inner[0]), text)
    return {
        match[1] + (match[2] or "")
        for match in matches
        if outside[match.start()] != " " and match[1] not in _WORDS
    }


def unit_of(expression: str) -> str:
    """Returns Grafana's name of the unit that an expression's metrics carry in their names."""
    for pattern, unit in (
        (r"bytes_per_second", "Bps"),
        (r"_ratio\b|:ratio_", "percentunit"),
        (r"_seconds", "s"),
        (r"_bytes", "bytes"),
        (r"usd_per", "currencyUSD"),
        (r"requests:rate", "reqps"),
        (r":rate|\brate\(", "ops"),
    ):
        if re.search(pattern, expression):
            return unit
    return "none"
