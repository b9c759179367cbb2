"""A plan computes what one device computes: random strategies of every family of models.

The default is a subset by seeds; `python benchmarks/bench_equality.py` runs all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from families import TOYS  # noqa: E402

HERE = Path(__file__).parent
TOLERANCE = 1e-5
SEEDS = {4: "0:2", 8: "2:3"}
"""Per number of ranks the strategies that are run by default."""

LARGE = ("Swin", "EfficientNet", "Whisper", "ConvNeXt", "VGG", "ResNet")
"""Families whose cases take longest: fewer steps."""


class Results:
    """What the sweeps found, started once per number of ranks."""

    def __init__(self) -> None:
        self._found: dict[int, dict[str, list[dict[str, Any]]]] = {}

    def of(self, ranks: int, family: str) -> list[dict[str, Any]]:
        """The results of a family; the first call runs the sweep of all."""
        if ranks not in self._found:
            small = [name for name in TOYS if name not in LARGE]
            self._found[ranks] = defaultdict(list)
            for names, steps in ((small, 5), (list(LARGE), 2)):
                for result in run(ranks, SEEDS[ranks], steps, names):
                    self._found[ranks][result["family"]].append(result)
        return self._found[ranks][family]


def run(ranks: int, seeds: str, steps: int, names: list[str]) -> list[dict[str, Any]]:
    """A sweep in a process of its own."""
    command = [sys.executable, str(HERE / "sweep.py"), "--trace", "--ranks", str(ranks)]
    command += ["--seeds", seeds, "--steps", str(steps), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def results() -> Results:
    return Results()


@pytest.mark.parametrize("ranks", sorted(SEEDS))
@pytest.mark.parametrize("family", TOYS)
def test_random_strategies_compute_what_one_device_computes(
    results: Results, family: str, ranks: int
) -> None:
    found = results.of(ranks, family)
    first, last = map(int, SEEDS[ranks].split(":"))
    assert [result["seed"] for result in found] == list(range(first, last))
    for result in found:
        assert "failed" not in result, result
        for kind in ("loss", "gradient", "parameter", "buffer"):
            assert result[kind] <= TOLERANCE, result
