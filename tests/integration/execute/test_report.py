"""`shardwise.report` and `run --log`: every step beside its prediction, in a real TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.commands import shardwise as command

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

import shardwise  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(features), labels)


BATCH = (torch.ones(4, 8), torch.zeros(4, dtype=torch.long))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process."""
    file = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=file.as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def test_a_script_logs_every_step(alone: None, tmp_path: Path) -> None:
    graph = shardwise.capture(Net(), BATCH)
    plan = shardwise.plan(graph, "dgx-h100", gpus=1)
    model = shardwise.parallelize(Net(), BATCH, plan)
    shardwise.report(model, f"tensorboard:{tmp_path}")
    for _ in range(4):
        model(*BATCH).backward()
    logged = _scalars(tmp_path)
    predicted = plan.predicted
    assert set(logged) == {
        "shardwise/step_s/measured", "shardwise/step_s/predicted", "shardwise/peak_bytes/predicted"
    }  # fmt: skip
    # The fourth step has not ended.
    assert [step for step, _ in logged["shardwise/step_s/measured"]] == [1, 2, 3]
    assert all(0 < value < 60 for _, value in logged["shardwise/step_s/measured"])
    for _, value in logged["shardwise/step_s/predicted"]:
        assert value == pytest.approx(predicted.replayed_time_s)
    for _, value in logged["shardwise/peak_bytes/predicted"]:
        assert value == pytest.approx(predicted.peak_bytes)


def test_a_module_without_a_plan_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Net has no plan .expected what shardwise.parallelize"):
        shardwise.report(Net(), "tensorboard:runs")  # type: ignore[arg-type]


def test_run_logs_its_medians(tmp_path: Path) -> None:
    source = "zoo:mlp:layers=2,inputs=32,hidden=64,classes=8,batch=16"
    for words in (
        ("capture", source, "-o", "graph.json"),
        ("plan", "graph.json", "--hardware", "dgx-v100-16gb", "--gpus", "1", "-o", "plan.json"),
        ("run", "plan.json", "--graph", "graph.json", "--steps", "2", "--log", "tensorboard:runs",
         "-o", "measured.json"),
    ):  # fmt: skip
        done = command(*words, cwd=tmp_path, env={**os.environ})
        assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "measured.json").read_text())
    logged = _scalars(tmp_path / "runs")
    for name, value in (
        ("step_s/measured", document["iteration_s"]["median"]),
        ("step_s/predicted", document["predicted"]["replayed_time_s"]),
        ("peak_bytes/measured", document["peak_bytes"]["max"]),
        ("peak_bytes/predicted", document["predicted"]["peak_bytes"]),
    ):
        assert logged[f"shardwise/{name}"] == [(2, pytest.approx(value))]


def test_a_missing_tracker_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    done = command("run", "plan.json", "--log", "disk:runs", cwd=tmp_path, env={**os.environ})
    assert done.returncode == 2
