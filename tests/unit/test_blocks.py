"""The blocks of a graph: what is folded, what belongs where, and that pictures can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.graph_builder import GraphBuilder
from shardwise.capture import shipped_graph
from shardwise.errors import BadInput
from shardwise.graph import Graph, Operator, read_graph
from shardwise.graph.blocks import Block, Flow, fold, kinds_line
from shardwise.graph.inspect import inspect_graph, kept_tensors
from shardwise.pictures.blocks import plot_blocks
from shardwise.tdl import registry


def blocks_of(graph: Graph) -> tuple[list[Block], list[Flow]]:
    semantics = {op.name: registry.analyse(op, graph.tensors) for op in graph.operators}
    return fold(graph, semantics, kept_tensors(graph, semantics))


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return read_graph(shipped_graph("gpt2"))


def test_the_layers_of_a_transformer_are_one_block(gpt2: Graph) -> None:
    blocks, flows = blocks_of(gpt2)
    assert [(b.title, b.count) for b in blocks] == [
        ("transformer.wte", 1),
        ("transformer.wpe", 1),
        ("transformer.h.0 … 11", 12),
        ("transformer.ln_f", 1),
        ("lm_head", 1),
        ("cross_entropy_loss", 1),
    ]
    layer = blocks[2]
    assert [part.name for part in layer.parts] == ["ln_1", "attn", "own", "ln_2", "mlp"]
    assert layer.sums.parameters == 12 * 7_087_872
    assert layer.parts[1].kinds.startswith("2 addmm, scaled_dot_product_attention")
    assert [(f.source, f.target) for f in flows] == [(i, i + 1) for i in range(5)]
    assert flows[-1].label == "[64, 50257, 1024] float32"


@pytest.mark.parametrize("name", ["gpt2", "vgg16", "transformer", "llama-8b"])
def test_every_operator_is_in_one_block_and_the_sums_are_those_of_inspect(name: str) -> None:
    graph = read_graph(shipped_graph(name))
    blocks, _ = blocks_of(graph)
    assert sorted(op.name for b in blocks for op in b.operators) == sorted(
        op.name for op in graph.operators
    )
    inspected = inspect_graph(graph, registry.analyse)
    assert sum(b.sums.parameters for b in blocks) == inspected["parameters"]["elements"]
    assert (
        sum(b.sums.kept_bytes for b in blocks)
        == inspected["activations"]["kept_for_backward_bytes"]
    )
    flops = inspected["forward_flops"] + inspected["backward_flops"]
    assert sum(b.sums.flops for b in blocks) == pytest.approx(flops)


def test_activations_and_pooling_belong_to_their_convolution() -> None:
    blocks, _ = blocks_of(read_graph(shipped_graph("vgg16")))
    assert [b.title for b in blocks][:3] == ["features.0", "features.2", "features.5"]
    assert blocks[1].kinds == "conv2d, max_pool2d, relu"


def _graph(widths: list[int], scopes: list[str], skip: int | None = None) -> Graph:
    builder = GraphBuilder("hand-made")
    names = [builder.input("x", 8, widths[0])]
    for i, scope in enumerate(scopes):
        weight = builder.parameter(f"w{i}", widths[i + 1], widths[i])
        names.append(builder.linear(f"l{i}", names[-1], weight, f"y{i}", scope))
    if skip is not None:
        last = builder.operators[-1]
        data, weight = last.inputs
        arguments = {"input": data, "weight": weight, "bias": names[skip]}
        del builder.operators[-1]
        builder.operator(last.name, last.kind, arguments, names[-1], (8, widths[-1]), last.scope)
    return builder.graph()


def test_pairs_that_repeat_are_folded_as_pairs() -> None:
    scopes = [f"m.{i}.{part}" for i in range(3) for part in ("up", "down")]
    blocks, _ = blocks_of(
        _graph([16, 32, 16, 32, 16, 32, 16], [s.replace(".", "_") for s in scopes])
    )
    assert [(b.title, b.count) for b in blocks] == [("m_0_up + m_0_down … m_2_down", 3)]
    assert [part.name for part in blocks[0].parts] == ["m_0_up", "m_0_down"]


def test_other_shapes_are_folded_only_in_long_pictures() -> None:
    few, _ = blocks_of(_graph([16, 32, 48, 64], ["a", "b", "c"]))
    assert [b.count for b in few] == [1, 1, 1]
    widths = list(range(16, 16 + 41))
    (block,), _ = blocks_of(_graph(widths, [f"layers.{i}" for i in range(40)]))
    assert (block.title, block.count, block.alike) == ("layers.0 … 39", 40, False)


def test_a_flow_that_passes_other_blocks_is_listed() -> None:
    _, flows = blocks_of(_graph([16, 32, 48, 64], ["a", "b", "c"], skip=1))
    assert (0, 2) in [(f.source, f.target) for f in flows]


def test_kinds_name_products_first() -> None:
    ops = [
        Operator(f"o{i}", kind, (), ())
        for i, kind in enumerate(["aten.add.Tensor", "aten.add.Tensor", "aten.linear.default"])
    ]
    assert kinds_line(ops) == "linear, 2 add"


@pytest.mark.parametrize("suffix", ["svg", "png", "html"])
def test_pictures_are_drawn(gpt2: Graph, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"gpt2.{suffix}"
    plot_blocks(gpt2, str(path))
    data = path.read_bytes()
    assert len(data) > 10_000
    if suffix == "html":
        assert b"transformer.h.0" in data
    if suffix == "svg":
        again = tmp_path / "again.svg"
        plot_blocks(gpt2, str(again))
        assert again.read_bytes() == data


def test_another_kind_of_picture_is_refused(gpt2: Graph, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a picture format"):
        plot_blocks(gpt2, str(tmp_path / "gpt2.pdf"))


def test_nothing_in_a_picture_overlaps(gpt2: Graph) -> None:
    from shardwise.pictures.blocks import GAP, _lay_out

    for graph in (gpt2, read_graph(shipped_graph("vgg16"))):
        layout = _lay_out(graph, *blocks_of(graph))
        for above, below in zip(layout.boxes, layout.boxes[1:], strict=False):
            assert below.top - (above.top + above.height) == pytest.approx(GAP)
        assert all(lane.x < layout.left for lane in layout.lanes)
        assert all(len(text) <= 100 for box in layout.boxes for text, _ in box.lines)


def test_the_command_draws_and_refuses_before_the_work(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from shardwise.cli.graphs import inspect

    path = tmp_path / "gpt2.png"
    done = CliRunner().invoke(inspect, ["shipped:gpt2", "--plot", str(path)])
    assert done.exit_code == 0, done.output
    assert path.stat().st_size > 10_000
    refused = CliRunner().invoke(inspect, ["shipped:gpt2", "--plot", str(tmp_path / "a.pdf")])
    assert isinstance(refused.exception, BadInput)
