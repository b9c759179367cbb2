"""The dashboards' files are the generator's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", GRAFANA / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    texts: dict[str, str] = module.all_dashboards()
    return texts


def test_the_files_are_what_the_generator_makes() -> None:
    texts = generated()
    assert {p.name for p in (GRAFANA / "dashboards").iterdir()} == texts.keys()
    for name, text in texts.items():
        assert (GRAFANA / "dashboards" / name).read_text() == text, (
            "python deploy/grafana/generate.py"
        )


@pytest.mark.parametrize("name", sorted(p.name for p in (GRAFANA / "dashboards").iterdir()))
def test_a_dashboard_holds_together(name: str) -> None:
    document = json.loads((GRAFANA / "dashboards" / name).read_text())
    panels = [p for p in document["panels"] if p["type"] != "row"]
    variables = {v["name"] for v in document["templating"]["list"]}
    assert panels and "datasource" in variables
    for panel in panels:
        assert panel["title"] and panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for target in panel["targets"]:
            used = {
                w.strip('"{}') for w in target["expr"].split("$")[1:] for w in [w.split('"')[0]]
            }
            assert used <= variables, target["expr"]
    places = [tuple(p["gridPos"].values()) for p in panels]
    assert len(set(places)) == len(places)


@pytest.mark.needs("prometheus")
def test_rules_pass_their_promtool_tests() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", str(PROMETHEUS / "tests" / "alerts.yml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_is_tested_and_has_a_runbook_line() -> None:
    tested = (PROMETHEUS / "tests" / "alerts.yml").read_text()
    runbook = (ROOT / "docs" / "runbook.md").read_text().lower()
    for rule in alerts():
        assert f"alertname: {rule['alert']}\n        exp_alerts" in tested, rule["alert"]
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert f"\n## {anchor}\n" in runbook, anchor
