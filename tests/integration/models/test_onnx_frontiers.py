"""Real ONNX exports give the frontier of the PyTorch capture of the same model, within 1 %."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from harness.models import onnx_models  # noqa: E402
from harness.tiers import WHOLE, some  # noqa: E402
from shardwise.capture import capture  # noqa: E402
from shardwise.capture.hf_masks import full_sequences  # noqa: E402
from shardwise.cost.options import Options  # noqa: E402
from shardwise.graph import Graph  # noqa: E402
from shardwise.graph.inspect import inspect_graph  # noqa: E402
from shardwise.hardware import load_hardware  # noqa: E402
from shardwise.search.search import Search, Subject, search  # noqa: E402
from shardwise.tdl import registry  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = 0.01
GPUS = (4, 8) if WHOLE else (4,)

# Model, options of the export, whether sequences count as full (as for hf: sources).
CASES = {
    "mlp": ("mlp", {}, False),
    "vgg": ("vgg", {}, False),
    "resnet18": ("resnet18", {"optimize": False}, False),
    "gpt2": ("gpt2", {}, True),
    "gpt2-plain": ("gpt2", {"optimize": False}, True),
    "bert": ("bert", {}, False),
    "bert-opset-23": ("bert", {"opset_version": 23}, False),
    "llama": ("llama", {"optimize": False}, True),
    "lstm": ("lstm", {}, False),
    "gru": ("gru", {}, False),
    "unrolled-lstm": ("unrolled_lstm", {}, False),
}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def both(case: str, folder: Path) -> tuple[Graph, Graph]:
    """(graph of the exported file, graph of the module itself)."""
    model, options, full = CASES[case]
    path = folder / f"{case}.onnx"
    with quietly(), full_sequences() if full else contextlib.nullcontext():
        module, inputs = getattr(onnx_models, model)()
        torch.onnx.export(module, inputs, dynamo=True, verbose=False, **options).save(path)
        return capture(str(path)), capture(f"harness.models.onnx_models:{model}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def gpt2(folder: Path) -> Graph:
    """GPT-2 as it is exported."""
    return both("gpt2", folder)[0]


def gap(ours: Search, wanted: Search) -> float:
    """The least e such that each frontier covers the other within e.

    Every point (m, t) of either has a point of the other with memory ≤ m·(1+e) and time ≤ t·(1+e).
    """

    def uncovered(a: Search, b: Search) -> float:
        memory = b.memory_bytes[None, :] / a.memory_bytes[:, None] - 1
        time = b.time_s[None, :] / a.time_s[:, None] - 1
        return float(np.maximum(memory, time).min(axis=1).max())

    return max(uncovered(ours, wanted), uncovered(wanted, ours), 0.0)


@pytest.mark.parametrize("case", some(CASES, lambda case: case in ("mlp", "gpt2")))
def test_an_exported_file_has_the_frontier_of_its_model(case: str, folder: Path) -> None:
    exported, captured = both(case, folder)
    assert exported.parameter_count == captured.parameter_count
    assert exported.batch_size == captured.batch_size
    inspected = inspect_graph(exported, registry.analyse)
    wanted = inspect_graph(captured, registry.analyse)
    for field in ("forward_flops", "backward_flops"):
        assert inspected[field] == pytest.approx(wanted[field], rel=TOLERANCE), field
    kept = [d["activations"]["kept_for_backward_bytes"] for d in (inspected, wanted)]
    assert kept[0] == pytest.approx(kept[1], rel=TOLERANCE)
    assert not [op for op in inspected["undescribed_operators"] if op["kind"].startswith("onnx.")]
    hardware = load_hardware("dgx-v100-16gb")
    subjects = [Subject.of(graph) for graph in (exported, captured)]
    assert len(subjects[0].coarsened.groups) == len(subjects[1].coarsened.groups)
    for gpus in GPUS:
        searches = [search(subject, hardware, gpus, Options(overlap=False)) for subject in subjects]
        assert gap(*searches) <= TOLERANCE, f"{gpus} GPUs"


@pytest.mark.full
def test_the_gap_sees_a_point_that_is_missing(folder: Path) -> None:
    exported, _ = both("mlp", folder)
    hardware = load_hardware("dgx-v100-16gb")
    one, other = (search(Subject.of(exported), hardware, n, Options(overlap=False)) for n in (4, 8))
    assert gap(one, one) == 0.0
    assert gap(one, other) > TOLERANCE


@pytest.mark.full
def test_a_dynamic_batch_is_bound(tmp_path: Path) -> None:
    module, inputs = onnx_models.gpt2(batch=4, seq=32)
    sizes = {"inputs": tuple({0: torch.export.Dim("samples", min=2)} for _ in inputs)}
    path = tmp_path / "dynamic.onnx"
    with quietly():
        torch.onnx.export(module, inputs, dynamo=True, verbose=False, dynamic_shapes=sizes).save(
            path
        )
        graph = capture(str(path), batch=64)
    assert graph.batch_size == 64
    attention = [op for op in graph.operators if "scaled_dot_product" in op.kind]
    assert [graph.tensors[op.inputs[0]].shape for op in attention] == [(64, 4, 32, 64)] * 2


@pytest.mark.full
def test_half_precision_is_the_files_own(tmp_path: Path) -> None:
    module, inputs = onnx_models.gpt2(batch=4, seq=32)
    path = tmp_path / "half.onnx"
    with quietly():
        program = torch.onnx.export(
            module.bfloat16(), inputs, dynamo=True, verbose=False, optimize=False
        )
        program.save(path)
        graph = capture(str(path))
    assert {t.dtype for t in graph.tensors.values() if t.role == "parameter"} == {"bfloat16"}
    assert sum("scaled_dot_product" in op.kind for op in graph.operators) == 2


@pytest.mark.full
@pytest.mark.parametrize("model", ["vgg", "resnet18"])
def test_files_of_the_older_exporter(model: str, tmp_path: Path) -> None:
    module, inputs = getattr(onnx_models, model)()
    path = tmp_path / "older.onnx"
    training = torch.onnx.TrainingMode.TRAINING
    with quietly():
        torch.onnx.export(
            module, inputs, str(path), dynamo=False, opset_version=17, training=training,
            do_constant_folding=False,
        )  # fmt: skip
        subjects = [
            Subject.of(capture(s)) for s in (str(path), f"harness.models.onnx_models:{model}")
        ]
    hardware = load_hardware("dgx-v100-16gb")
    searches = [search(subject, hardware, 4, Options(overlap=False)) for subject in subjects]
    assert subjects[0].graph.parameter_count == subjects[1].graph.parameter_count
    assert gap(*searches) <= TOLERANCE


def test_weights_that_are_tied_stay_one(gpt2: Graph) -> None:
    table = next(op for op in gpt2.operators if op.kind == "aten.embedding.default").inputs[0]
    head = [op for op in gpt2.operators if op.kind == "aten.linear.default"][-1]
    assert head.inputs[1] == table
    assert gpt2.tensors[table].shape == (4096, 256)


def test_attention_keeps_no_scores(gpt2: Graph) -> None:
    fused = [op for op in gpt2.operators if "scaled_dot_product" in op.kind]
    assert len(fused) == 2
    assert fused[0].attributes["is_causal"] is True
    assert fused[0].attributes["tensor_arguments"] == ["query", "key", "value"]
