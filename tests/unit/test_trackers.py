"""Logs in TensorBoard, W&B and MLflow, written by the libraries and read back."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from shardwise.errors import BadInput
from shardwise.measure.trackers import open_tracker, parse_tracker, tracker_of

VALUES = {"shardwise/step_s/measured": 0.25, "shardwise/step_s/predicted": 0.2}


def _log(text: str) -> None:
    tracker = open_tracker(text, "a model")
    tracker.note({"shardwise/plan": "plan-1"})
    for step in (1, 2):
        tracker.log({name: value * step for name, value in VALUES.items()}, step)
    tracker.close()


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _log(f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name, value in VALUES.items():
        read = [(event.step, event.value) for event in events.Scalars(name)]
        assert read == [(step, pytest.approx(value * step)) for step in (1, 2)]
    (text,) = events.Tensors("shardwise/plan/text_summary")
    assert text.tensor_proto.string_val == [b"plan-1"]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "mlruns").as_uri()
    _log(f"mlflow:{store}")
    (run,) = mlflow.MlflowClient(store).search_runs(["0"])
    assert run.info.run_name == "a model"
    assert run.data.tags["shardwise/plan"] == "plan-1"
    name = "shardwise/step_s/measured"
    history = mlflow.MlflowClient(store).get_metric_history(run.info.run_id, name)
    assert [(entry.step, entry.value) for entry in history] == [(1, 0.25), (2, 0.5)]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    _log("wandb:shardwise")
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for word in (*VALUES, "plan-1", "a model"):
        assert word.encode() in content


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("tensorboard", "tensorboard:", "disk:here"):
        with pytest.raises(BadInput, match=r"is not a tracker .expected tensorboard:DIR"):
            parse_tracker(text)
    with pytest.raises(BadInput, match=r"writer: .*int is not a tracker"):
        tracker_of(3)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name)
    )
    with pytest.raises(BadInput, match=r"log: wandb is not installed .expected pip install wandb"):
        parse_tracker("wandb:shardwise")


def test_what_a_library_refuses_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="tensorboard refuses"):
        open_tracker(f"tensorboard:{tmp_path}/file", "a model")
