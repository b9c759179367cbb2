"""The figures that say whether Shardwise got better or worse: a quarter of an hour at most.

Each measure runs in processes of its own, within its limit, as often as `repeats` says; the median
counts. A measure that takes longer than its limit has the figure "over N s", which is a result too.

    python benchmarks/headline.py NAME      # one measure, as JSON
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
SHARDWISE = str(Path(sys.executable).with_name("shardwise"))
Figures = dict[str, float]


@dataclass(frozen=True)
class Measure:
    """One measure: its function, seconds for all its repeats, and how often it runs."""

    figures: Callable[[], Figures]
    limit_s: int
    repeats: int = 3


def _command(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Returns the seconds that a command took, and its JSON."""
    started = time.perf_counter()
    done = subprocess.run([SHARDWISE, *arguments], capture_output=True, text=True, check=True)
    took = time.perf_counter() - started
    return took, json.loads(done.stdout) if "--json" in arguments else {}


def start() -> Figures:
    seconds, _ = _command("--version")
    inspected, _ = _command("inspect", "shipped:llama-8b", "--json")
    return {"s of --version": seconds, "s of inspect, Llama 8B": inspected}


def frontier() -> Figures:
    asked = ("shipped:vgg16", "--hardware", "dgx-v100-16gb", "--gpus", "16")
    seconds, document = _command("frontier", *asked, "--json", "--quiet")
    return {"s": seconds, "points": len(document["points"])}


def plan() -> Figures:
    asked = ("shipped:llama-8b", "--hardware", "dgx-h100", "--gpus", "8")
    seconds, document = _command("plan", *asked, "--json", "--quiet")
    predicted = document["predicted"]
    named = {one["name"]: one.get("replayed_time_s") for one in document["neighbours"]}
    fsdp = named.get("pure FSDP")
    ratios = (
        {"ratio of pure FSDP's step to ours": fsdp / predicted["replayed_time_s"]} if fsdp else {}
    )
    return {**ratios, "ratio proven (1 + gap)": 1 + predicted["gap"], "s": seconds}


def curve(graph: str, hardware: str, gpus: int) -> Figures:
    asked = (graph, "--hardware", hardware, "--max-gpus", str(gpus))
    return {"s": _command("curve", *asked, "--json", "--quiet")[0]}


def published() -> Figures:
    from benchmarks.published.reading import read_published
    from benchmarks.published.stored import included, read_stored, results

    shown = included(results(read_published(), read_stored()))
    errors = [abs(one.time_error) for one in shown]
    return {"ratio of |predicted - published| to published": median(errors), "runs": len(errors)}


def service() -> Figures:
    from http_load import load

    from harness.service.service_harness import System

    path = "/v1/curves?graph=shipped:vgg16&hardware=dgx-v100-16gb&max_gpus=2&micro_batches=1"
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        system = System(Path(folder), "embedded", {"rate_per_s": "0"})
        up = time.perf_counter() - started
        try:
            while system.client.get(path).status_code != 200:
                time.sleep(0.2)
            port = int(system.service.url.rpartition(":")[2])
            known = load(port, path, connections=8, seconds=3.0)
            health = load(port, "/healthz", connections=8, seconds=3.0)
        finally:
            system.stop()
    return {
        "ratio of known curves to /healthz": known.requests_per_s / health.requests_per_s,
        "known curves a second": known.requests_per_s,
        "p99 ms of a known curve": known.p99_ms,
        "s until it answers": up,
    }


def run_small() -> Figures:
    """Two gloo ranks of this machine: measured, planned for, run."""
    source = "zoo:mlp:layers=3,inputs=256,hidden=512,classes=16,batch=64"
    with tempfile.TemporaryDirectory() as name:
        graph, profile, chosen = (str(Path(name) / f"{n}.json") for n in ("graph", "here", "plan"))
        result = str(Path(name) / "measurement.json")
        _command("capture", source, "-o", graph)
        small = ("--max-size", "4MiB", "--time-limit", "20", "--quiet")
        _command("measure", "--ranks", "2", *small, "-o", profile)
        more = ("--hardware", profile, "--gpus", "2", "--time-limit", "20", "--quiet")
        _command("measure", "--operators", graph, *more, "-o", profile)
        _command("plan", graph, "--hardware", profile, "--gpus", "2", "--quiet", "-o", chosen)
        _command("run", chosen, "--source", source, "--steps", "20", "-o", result)
        errors = json.loads(Path(result).read_text("utf-8"))["errors"]
    return {f"ratio of measured to predicted {n}": 1 + errors[n] for n in ("iteration", "peak")}


MEASURES: dict[str, Measure] = {
    "published": Measure(published, 60, 1),
    "start": Measure(start, 60, 5),
    "frontier, VGG-16 on 16 V100": Measure(frontier, 120, 1),
    "plan, Llama 8B on 8 H100": Measure(plan, 120),
    "curve, GPT-2 to 8 A100": Measure(partial(curve, "shipped:gpt2", "dgx-a100-80gb", 8), 120, 1),
    "curve, Llama 8B to 64 H100": Measure(
        partial(curve, "shipped:llama-8b", "dgx-h100", 64), 180, 1
    ),
    "service": Measure(service, 90),
    "run of an MLP on 2 ranks": Measure(run_small, 150, 1),
}


@dataclass(frozen=True)
class Figure:
    """One figure of a measure; `value` is text if there is no number, such as `failed`."""

    measure: str
    name: str
    value: float | str

    @property
    def is_ratio(self) -> bool:
        return self.name.startswith("ratio")


def measured(name: str, measure: Measure) -> list[Figure]:
    """Returns the medians of a measure's figures."""
    until = time.monotonic() + measure.limit_s
    runs: list[Figures] = []
    for _ in range(measure.repeats):
        left = until - time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, __file__, name],
                capture_output=True, text=True, check=False, timeout=max(left, 1),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            break
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            return [Figure(name, "failed", last[0][:200])]
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    if not runs:
        return [Figure(name, "s", f"over {measure.limit_s} s")]
    return [Figure(name, one, median(run[one] for run in runs)) for one in runs[0]]


def headline() -> list[dict[str, Any]]:
    """Returns all figures, ratios first."""
    figures: list[Figure] = []
    for name, measure in MEASURES.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        figures += measured(name, measure)
    return [asdict(one) for one in sorted(figures, key=lambda one: not one.is_ratio)]


def table(now: list[dict[str, Any]], kept: list[dict[str, Any]]) -> str:
    """Returns figures beside those that were kept, and their quotient."""
    before = {(one["measure"], one["name"]): one["value"] for one in kept}
    lines = [f"{'':66} {'kept':>10} {'now':>10} {'now/kept':>9}"]
    for one in now:
        was, value = before.get((one["measure"], one["name"])), one["value"]
        quotient = ""
        with contextlib.suppress(TypeError, ZeroDivisionError):
            quotient = f"{value / was:.2f}"
        lines.append(
            f"{one['measure'] + ': ' + one['name']:66.66} {shown(was):>10} {shown(value):>10} "
            f"{quotient:>9}"
        )
    return "\n".join(lines)


def shown(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]].figures()))
