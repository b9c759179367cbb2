"""What others measured of a model, beside a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.graph_builder import mlp
from shardwise.answers.published import nearest_step, published_steps, published_text
from shardwise.capture import load_graph, shipped_graph
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from tools.published_steps import table

H100 = load_hardware("dgx-h100")


@pytest.fixture(scope="module")
def llama() -> Graph:
    return load_graph("llama2-7b")


def test_the_table_is_made_of_the_published_runs() -> None:
    from shardwise.answers.published import TABLE

    assert table() == TABLE.read_text(encoding="utf-8")


def test_the_nearest_step_is_of_the_model_and_the_gpu(llama: Graph) -> None:
    one = nearest_step(llama, H100, 64)
    assert one is not None and one.gpu == H100.devices[0].kind
    assert abs(one.parameters / llama.parameter_count - 1) < 0.03
    alike = [
        other
        for other in published_steps()
        if (other.parameters, other.gpu, other.gpus, other.seq, other.bits)
        == (one.parameters, one.gpu, one.gpus, one.seq, 16)
    ]
    assert one.rate == max(other.rate for other in alike)


def test_its_rate_stands_beside_the_plans(llama: Graph) -> None:
    one = nearest_step(llama, H100, 64)
    assert one is not None
    of_batch = (llama.batch_size or 0) * 4096
    text = published_text(llama, H100, 64, 2.0)
    assert text.startswith(f"{one.rate:,.0f} tokens/s a GPU on {one.gpus} of these GPUs")
    assert text.endswith(f"({one.project}); here {of_batch / 128:,.0f}")


def test_plans_in_8_bits_stand_beside_steps_in_8_bits() -> None:
    llama = load_graph("llama3-70b")
    text = published_text(llama, H100, 64, 10.0, "fp8:tensorwise")
    assert "with sequences of 8,192 and products in 8 bits (megatron-bridge)" in text
    assert published_text(llama, H100, 64, 10.0) == "", "none was published in 16 bits"
    other = replace(H100, devices=(replace(H100.devices[0], kind="GB200-186GB"),))
    assert nearest_step(llama, other, 64, "nvfp4") is not None
    assert {one.bits for one in published_steps()} == {4, 8, 16}


def test_nothing_is_near_other_models_gpus_or_numbers(llama: Graph) -> None:
    assert published_text(mlp(), H100, 8, 1.0) == ""
    assert published_text(read_graph(shipped_graph("vgg16")), H100, 8, 1.0) == ""
    assert nearest_step(llama, H100, 10_000_000) is None
    other = replace(H100, devices=(replace(H100.devices[0], kind="another"),))
    assert nearest_step(llama, other, 64) is None
