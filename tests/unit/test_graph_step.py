"""What graphs say of their step, and the note about language models in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise import notebook
from shardwise.answers.precision_note import float32_note
from shardwise.capture import load_graph
from shardwise.graph import Graph, Operator, Tensor
from shardwise.graph.step import Step, loss_name, step_of
from shardwise.hardware import load_hardware

ENTROPY = "aten.cross_entropy_loss.default"


def model(
    dtype: str = "float32",
    targets: tuple[int, ...] = (4, 8),
    kind: str = ENTROPY,
    ids: str = "int64",
) -> Graph:
    """Samples of 8 numbers, looked up and compared with `targets`; half of the loss is returned."""
    batch = targets[0]
    tensors = [
        Tensor("ids", (batch, 8), ids, "input", 0),
        Tensor("labels", targets, "int64", "input", 0),
        Tensor("table", (16, 16), dtype, "parameter"),
        Tensor("scale", (3,), "float64", "parameter"),
        Tensor("logits", (*targets[:1], 16, *targets[1:]), dtype, "activation", 0),
        Tensor("entropy", (), "float32", "activation"),
        Tensor("loss", (), "float32", "output"),
    ]
    operators = (
        Operator("look", "aten.embedding.default", ("table", "ids"), ("logits",)),
        Operator("compare", kind, ("logits", "labels"), ("entropy",)),
        Operator("halve", "aten.div.Tensor", ("entropy",), ("loss",)),
    )
    return Graph("words", {t.name: t for t in tensors}, operators)


def test_a_language_model() -> None:
    assert step_of(model("bfloat16")) == Step(4, 8, "bfloat16", ENTROPY, predicts_tokens=True)


@pytest.mark.parametrize(
    ("graph", "changed"),
    [
        # One class for every sample.
        (model(targets=(4,)), {"predicts_tokens": False}),
        (model(kind="aten.mse_loss.default"), {"loss": "aten.mse_loss.default"}),
        (model(kind="my.odd"), {"loss": None}),
        # Pixels, not tokens: the targets alone are whole numbers in two dimensions.
        (model(ids="float32"), {"predicts_tokens": True}),
        (model(ids="float32", targets=(4, 3, 5)), {"seq": None}),
    ],
)
def test_what_is_no_language_model(graph: Graph, changed: dict[str, object]) -> None:
    like = Step(4, 8, "float32", ENTROPY, predicts_tokens=False)
    assert step_of(graph) == replace(like, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("gpt2", Step(64, 1024, "bfloat16", ENTROPY, predicts_tokens=True)),
        ("llama-8b", Step(64, 4096, "bfloat16", ENTROPY, predicts_tokens=True)),
        ("transformer", Step(256, 64, "float32", ENTROPY, predicts_tokens=True)),
        ("vgg16", Step(256, None, "float32", ENTROPY, predicts_tokens=False)),
    ],
)
def test_shipped_graphs(name: str, step: Step) -> None:
    assert step_of(load_graph(f"shipped:{name}")) == step


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ENTROPY, "cross entropy"),
        ("aten.binary_cross_entropy_with_logits.default", "binary cross entropy"),
        ("aten.mse_loss.default", "mse"),
        ("odd", "odd"),
    ],
)
def test_losses_have_names(kind: str, name: str) -> None:
    assert loss_name(kind) == name


@pytest.mark.parametrize(
    ("dtype", "hardware", "precision", "wanted"),
    [
        ("float32", "dgx-h100", "captured", "--dtype bf16 or ask with --precision bf16"),
        ("float32", "dgx-v100-16gb", "captured", "--dtype fp16 or ask with --precision fp16"),
        ("float32", "dgx-h100", "bf16", None),
        ("bfloat16", "dgx-h100", "captured", None),
    ],
)
def test_language_models_in_float32_are_noted(
    dtype: str, hardware: str, precision: str, wanted: str | None
) -> None:
    note = float32_note(model(dtype), load_hardware(hardware), precision)
    assert note is None if wanted is None else str(note).endswith(wanted)


def test_the_note_needs_a_language_model_and_devices_for_it() -> None:
    hardware = load_hardware("dgx-h100")
    assert float32_note(model(targets=(4,)), hardware, "captured") is None
    (device,) = hardware.devices
    slow = replace(device, peak_flops_per_s={"float32": 1e12})
    assert float32_note(model(), replace(hardware, devices=(slow,)), "captured") is None


def test_a_plan_has_the_note() -> None:
    graph = load_graph("shipped:transformer")
    few = {"micro_batches": (1,), "zero": (0,), "recompute": "never", "overlap": False}
    notes = [
        [
            w
            for w in notebook.plan(graph, "dgx-a100-80gb", 2, **few, **more).warnings
            if "float32" in w
        ]
        for more in ({}, {"precision": "bf16"})
    ]
    assert [len(found) for found in notes] == [1, 0]
