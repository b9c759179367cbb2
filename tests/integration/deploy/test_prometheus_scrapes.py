"""A real Prometheus scrapes what runs; every query of every dashboard and rule has an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("service.routes.agents", reason="needs shardwise[service] with agents")

from harness.deploy import promql
from harness.deploy.prometheus_server import LOADED_S, Prometheus
from harness.deploy.promql import Asked
from harness.deploy.scraped_system import ScrapedSystem
from harness.service.service_harness import new_database, wait_until

pytestmark = [pytest.mark.full, pytest.mark.torch, pytest.mark.needs("prometheus")]

ASKED = list(promql.asked())
RECORDED = promql.rules("record")
ALERTS = promql.rules("alert")
RANGES = {
    "s": (0, 3600), "bytes": (1e4, 1e12), "Bps": (1e3, 1e12), "currencyUSD": (1e-6, 1e6),
    "percentunit": (0, 1e3), "reqps": (0, 1e4), "ops": (0, 1e4), "none": (0, 1e6),
}  # fmt: skip
"""What a number of a unit can be in what runs here; a factor of 1000 too many is outside."""


def panel_of(asked: Asked) -> str:
    return f"{asked.dashboard}: {asked.panel['title']}"


@dataclass
class Scraped:
    """The system, its Prometheus, and the values that each dashboard's variables have."""

    system: ScrapedSystem
    prometheus: Prometheus
    values: dict[str, dict[str, list[str]]]

    def data(self, expression: str) -> list[dict[str, Any]]:
        """Returns an expression's rows once one has a number; the service is asked meanwhile."""

        def filled_rows() -> list[dict[str, Any]] | None:
            self.system.read_curve()
            rows = self.prometheus.query(expression)
            return rows if any(not math.isnan(number_of(row)) for row in rows) else None

        rows: list[dict[str, Any]] = wait_until(filled_rows, f"data of {expression}", LOADED_S)
        return rows

    def of(self, asked: Asked) -> list[dict[str, Any]]:
        """What a panel's query gives, with every value of the variables."""
        return [row for text in asked.sent(self.values[asked.dashboard]) for row in self.data(text)]


def number_of(row: dict[str, Any]) -> float:
    return float(row["value"][1])


@pytest.fixture(scope="module")
def scraped(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, redis_url: str
) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    with new_database(postgres_url) as database_url:
        system = ScrapedSystem(folder, database_url, redis_url)
        prometheus = None
        try:
            system.fail_once()
            system.start_worker()
            prometheus = Prometheus(folder, system.targets, system.key_file)
            wait_up(prometheus)
            system.enrol_agent()
            system.measure()
            system.run_plan()
            system.hold_gpus()
            system.watch()
            system.ask()
            wait_scraped(prometheus)
            values = {
                dashboard: {
                    name: values_of(prometheus, variable["query"])
                    for name, variable in by_name.items()
                }
                for dashboard, by_name in promql.variables().items()
            }
            yield Scraped(system, prometheus, values)
        finally:
            if prometheus is not None:
                prometheus.stop()
            system.stop()


def wait_up(prometheus: Prometheus) -> None:
    def up() -> bool:
        return not any(prometheus.health().values())

    try:
        wait_until(up, "all targets are up", LOADED_S)
    except AssertionError:
        raise AssertionError(prometheus.health()) from None


def wait_scraped(prometheus: Prometheus) -> None:
    """Waits until what has happened before the call is scraped, of every target."""
    now = datetime.now(UTC)

    def scraped() -> bool:
        targets = prometheus.ask("targets", state="active")["activeTargets"]
        return all(
            target["health"] == "up" and datetime.fromisoformat(target["lastScrape"]) > now
            for target in targets
        )

    wait_until(scraped, "all targets are scraped", LOADED_S)


def values_of(prometheus: Prometheus, query: str) -> list[str]:
    values: list[str] = wait_until(lambda: prometheus.label_values(query), query, LOADED_S)
    return values


def test_all_targets_are_up_and_all_rules_work(scraped: Scraped) -> None:
    assert set(scraped.prometheus.health()) == {
        "shardwise",
        "shardwise-worker",
        "shardwise-curves",
    }
    wait_up(scraped.prometheus)
    evaluated = scraped.prometheus.rules()
    assert {rule["name"] for rule in evaluated} == RECORDED.keys() | ALERTS.keys()
    assert {(rule["name"], rule["health"]) for rule in evaluated} == {
        (rule["name"], "ok") for rule in evaluated
    }, [rule.get("lastError") for rule in evaluated]


def test_variables_offer_what_is_there(scraped: Scraped) -> None:
    assert scraped.values["cluster-advice"] == {"watch": ["mlp.here", "vgg"]}
    assert scraped.values["hardware"]["hardware"] == ["measured-here"]
    assert "all_reduce" in scraped.values["hardware"]["operation"]


@pytest.mark.parametrize("asked", ASKED, ids=panel_of)
def test_every_panel_has_data(scraped: Scraped, asked: Asked) -> None:
    for expression in asked.sent(scraped.values[asked.dashboard]):
        fits_the_panel(asked, scraped.data(expression))


def fits_the_panel(asked: Asked, rows: list[dict[str, Any]]) -> None:
    """Labels of axes and legends are there, and no two lines have one legend."""
    for option in (step["options"] for step in asked.panel.get("transformations", ())):
        for name in {option.get("rowField"), option.get("columnField")} - {None}:
            assert all(row["metric"].get(name) for row in rows), f"no {name}, which is an axis"
    names = re.findall(r"\{\{(\w+)\}\}", asked.legend)
    for row in rows:
        missing = [name for name in names if not row["metric"].get(name)]
        assert not missing, f"the legend {asked.legend!r} has no {missing}: {row['metric']}"
    legends = [tuple(row["metric"].get(name) for name in names) for row in rows]
    if asked.legend:
        assert len(set(legends)) == len(rows), f"lines of one legend: {legends}"


@pytest.mark.parametrize("asked", ASKED, ids=panel_of)
def test_units_are_those_of_the_numbers(scraped: Scraped, asked: Asked) -> None:
    """By the names of the metrics, which carry their units, and by what such a number can be."""
    unit = asked.panel["fieldConfig"]["defaults"]["unit"]
    assert unit == promql.unit_of(asked.expr), asked.expr
    numbers = [number_of(row) for row in scraped.of(asked)]
    low, high = RANGES[unit]
    assert all(low <= number <= high for number in numbers if not math.isnan(number)), numbers


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_series_has_data(scraped: Scraped, name: str) -> None:
    assert scraped.data(name)
    assert scraped.data(RECORDED[name])


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_reads_series_that_are_there(scraped: Scraped, name: str) -> None:
    """Nothing is wrong, so it is silent; each of the series that it looks at is there."""
    read = promql.selectors(scraped.prometheus.formatted(ALERTS[name]))
    assert read
    for selector in read:
        assert scraped.data(selector)

    def is_silent() -> bool:
        # A scrape has a second here: on a busy machine one may be missed.
        return scraped.prometheus.query(ALERTS[name]) == []

    wait_until(is_silent, f"{name} is silent", LOADED_S)


def test_an_alert_awakes(scraped: Scraped) -> None:
    """The last of these tests: without a worker the alert waits for its two minutes."""
    assert scraped.system.worker is not None
    scraped.system.worker.stop(within_s=90)

    def active() -> bool:
        states = {rule["name"]: rule.get("state") for rule in scraped.prometheus.rules()}
        return states["ShardwiseWorkersDown"] in ("pending", "firing")

    wait_until(active, "ShardwiseWorkersDown is seen", LOADED_S)
