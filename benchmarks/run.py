"""Benchmarks: `make bench` prints the headline beside the figures that are kept, ratios first.

`--all` runs every `bench_*.py` instead, for hours. JSON with the machine is under out/bench/;
`--keep` writes the headline to benchmarks/kept.json. Figures are medians; compare ratios within one
run, these machines are noisy.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import headline

HERE = Path(__file__).parent
KEPT = HERE / "kept.json"


def machine() -> dict[str, Any]:
    """Returns what the figures were measured on."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def heading(kind: str) -> dict[str, Any]:
    """Returns the head of every file of figures: schema, time and machine."""
    return {
        "schema": f"shardwise.{kind}/1",
        "when": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def store(figures: dict[str, Any], target: Path) -> None:
    """Writes a run's figures as JSON and says where."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"wrote {target}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="The headline's figures beside those kept.")
    parser.add_argument("--all", action="store_true", help="every benchmark, for hours")
    parser.add_argument("--keep", action="store_true", help=f"write them to {KEPT.name}")
    asked = parser.parse_args()
    if asked.all:
        everything()
        return
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {"figures": []}
    results = {**heading("headline"), "figures": headline.headline()}
    print(headline.table(results["figures"], kept["figures"]))
    if kept["figures"]:
        print(f"kept: {kept['when']}, {kept['machine']['cpu']}")
    print(f"now: {results['machine']['cpu']}, {results['machine']['cores']} cores")
    store(results, Path("out/bench/headline.json"))
    if asked.keep:
        store(results, KEPT)


def everything() -> None:
    """Runs every benchmark."""
    results = heading("bench")
    for path in sorted(HERE.glob("bench_*.py")):
        print(f"\n{path.stem}")
        results[path.stem] = importlib.import_module(path.stem).run()
    print(f"machine: {results['machine']['cpu']}, {results['machine']['cores']} cores")
    store(results, Path("out/bench/bench.json"))


if __name__ == "__main__":
    main()
