"""Debian's Prometheus on the repository's own configuration and rules, and its answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from harness.service.service_harness import ROOT, free_port, wait_until

OURS = ROOT / "deploy" / "prometheus"
LOADED_S = 300.0
"""How long a machine that does much else may take for what takes seconds."""

INTERVAL = "1s"


def adapted(targets: Mapping[str, str], key_file: Path) -> str:
    """Returns deploy/prometheus/prometheus.yml with what differs here, and nothing else:

    - addresses: compose's host names (asked of DNS there) become `targets`, one for each job;
    - the file with the key;
    - intervals, so that no test waits for 15 or 60 s.
    """
    document = yaml.safe_load((OURS / "prometheus.yml").read_text())
    document["global"] = dict.fromkeys(document["global"], INTERVAL)
    assert {job["job_name"] for job in document["scrape_configs"]} == targets.keys()
    for job in document["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(key_file)
        for name in ("scrape_interval", "scrape_timeout"):
            if name in job:
                job[name] = INTERVAL
    return str(yaml.safe_dump(document))


class Prometheus:
    """The server; `query` and similar methods ask its HTTP API."""

    def __init__(self, folder: Path, targets: Mapping[str, str], key_file: Path) -> None:
        program = shutil.which("prometheus")
        assert program, "tests that start it are marked needs('prometheus')"
        (folder / "prometheus.yml").write_text(adapted(targets, key_file))
        # The configuration finds its rules in its own folder.
        (folder / "rules").symlink_to(OURS / "rules")
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, f"--config.file={folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address={self.url.removeprefix('http://')}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._ready, "Prometheus is ready", LOADED_S)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def ask(self, path: str, **parameters: str | list[str]) -> Any:
        """Returns an answer's data. Raises AssertionError with Prometheus' own words."""
        text = urlencode(parameters, doseq=True)
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{text}", timeout=60) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise AssertionError(f"{path}?{text}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the vector of an expression as of now."""
        data = self.ask("query", query=expression)
        assert data["resultType"] == "vector", expression
        rows: list[dict[str, Any]] = data["result"]
        return rows

    def label_values(self, of: str) -> list[str]:
        """Returns what a dashboard's variable `label_values(METRIC, LABEL)` offers."""
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", of)
        assert match is not None, of
        values: list[str] = self.ask(f"label/{match[2]}/values", **{"match[]": match[1]})
        return values

    def rules(self) -> list[dict[str, Any]]:
        """Returns all rules with their health and, of alerts, whether they are active."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def formatted(self, expression: str) -> str:
        """Returns the expression as Prometheus itself writes it."""
        text: str = self.ask("format_query", query=expression)
        return text

    def health(self) -> dict[str, str]:
        """Returns the scraped jobs, and the last error of each that is not up."""
        return {
            target["labels"]["job"]: "" if target["health"] == "up" else target["lastError"] or "?"
            for target in self.ask("targets", state="active")["activeTargets"]
        }

    def _ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
