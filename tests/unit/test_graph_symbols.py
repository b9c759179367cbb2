"""Graphs of any batch and sequence length: what they hold for is exact, all else is refused."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.commands import shardwise
from harness.graph_builder import layers, mlp
from harness.tiers import some
from shardwise import validation
from shardwise.capture import load_graph
from shardwise.capture.presets import presets
from shardwise.capture.shipped import shipped_graph, shipped_names, shipped_presets
from shardwise.capture.symbol_points import LARGE_BATCHES, LEAST_SEQ, MOST, symbols_of
from shardwise.capture.symbolic import Sample, symbolic_json
from shardwise.documents import PlanRequest, request_body
from shardwise.errors import BadInput
from shardwise.graph import Graph, graph_id, read_graph
from shardwise.graph.document import canonical_json, graph_from_document, graph_from_json
from shardwise.graph.files import write_document
from shardwise.graph.step import step_of
from shardwise.graph.symbols import is_expression, value_of, written
from shardwise.mcp.arguments import ExplainArguments, PlanArguments
from shardwise.notebook import plan
from shardwise.step_sizes import StepSizes, sized, sized_source, split_sizes

POINTS = [(8, 32), (1, 64), (64, 16), (7, 31), (13, 53)]
MONOMIALS = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]


def chain(batch: int, seq: int | None) -> Graph:
    """Six layers whose every size depends on the batch or the length."""
    return layers(6, batch, seq or 32)


def symbolic(points: list[tuple[int, int]] = POINTS) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        symbolic_json([Sample(b, s, chain(b, s)) for b, s in points])
    )
    return document


@given(
    st.dictionaries(
        st.sampled_from(MONOMIALS), st.integers(-(10**6), 10**6).filter(bool), min_size=1
    ),
    st.integers(1, 10**4),
    st.integers(1, 10**4),
)
def test_an_expression_is_its_polynomial(
    terms: dict[tuple[int, int], int], batch: int, seq: int
) -> None:
    text = written(terms)
    assert is_expression(text)
    wanted = sum(factor * batch**b * seq**s for (b, s), factor in terms.items())
    assert value_of(text, {"B": batch, "S": seq}) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "{}", "{k}", "{B", "B", "{B}x", "{B**2}", "{B^9}", "{B*S*B}", "{1.5*B}", "{B/2}", "{--B}",
     "{0+1k}", "{" + "+".join("B" for _ in range(9)) + "}", "{9999999999999999999}"],
)  # fmt: skip
def test_other_texts_are_no_expressions(text: str) -> None:
    assert not is_expression(text)


def test_a_document_holds_for_every_size_between() -> None:
    document = symbolic()
    assert document["symbols"] == {
        "batch": {"captured": 8, "least": 1, "most": 64},
        "seq": {"captured": 32, "least": 16, "most": 64},
    }
    assert graph_id(graph_from_document(document)) == graph_id(chain(8, 32))
    for batch, seq in ((2, 17), (64, 64), (31, 40), (8, 16)):
        for sizes in (StepSizes(batch, seq), StepSizes(batch), StepSizes(seq=seq)):
            there = graph_from_document(document, sizes=sizes)
            wanted = chain(sizes.batch or 8, sizes.seq or 32)
            assert canonical_json(there) == canonical_json(wanted)


def test_layers_with_symbols_are_written_once() -> None:
    deep = symbolic_json([Sample(b, s, layers(200, b, s)) for b, s in POINTS])
    assert len(deep) < len(symbolic_json([Sample(b, s, layers(100, b, s)) for b, s in POINTS])) + 40


@pytest.mark.parametrize("sizes", [StepSizes(65), StepSizes(seq=15), StepSizes(8, 65)])
def test_sizes_that_were_not_seen_are_refused(sizes: StepSizes) -> None:
    with pytest.raises(BadInput, match="captured with batch 8, seq 32") as caught:
        graph_from_document(symbolic(), sizes=sizes)
    assert "which needs torch" in str(caught.value)


def test_what_is_no_polynomial_has_no_symbols() -> None:
    def halves(batch: int, seq: int) -> Sample:
        return Sample(batch, seq, layers(3, batch, seq // 2))

    with pytest.raises(BadInput, match="shape"):
        symbolic_json([halves(b, s) for b, s in POINTS])
    several = [Sample(b, s, layers(3 + (s > 40), b, s)) for b, s in POINTS]
    with pytest.raises(BadInput, match="tensors"):
        symbolic_json(several)


def test_a_polynomial_is_checked_by_captures_that_it_was_not_made_of() -> None:
    """Two captures more than the terms: three of five points decide, the others refute."""
    points = [*POINTS[:4], (13, 54)]
    samples = [Sample(b, s, chain(b, s)) for b, s in points]
    samples[-1] = replace(samples[-1], seq=53)
    with pytest.raises(BadInput):
        symbolic_json(samples)


def test_a_text_that_looks_like_an_expression_has_no_symbols() -> None:
    graphs = [mlp(batch) for batch in (8, 1, 64, 7)]
    named = [
        Sample(
            graph.batch_size or 0,
            0,
            Graph(
                graph.name,
                graph.tensors,
                tuple(replace(op, attributes={"text": "{B}"}) for op in graph.operators),
            ),
        )
        for graph in graphs
    ]
    with pytest.raises(BadInput, match="text"):
        symbolic_json(named)
    # In a file without symbols it is a text.
    assert graph_from_json(canonical_json(named[0].graph)).operators[0].attributes["text"] == "{B}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"symbols": {"batch": {"captured": 8, "least": 1, "most": 64}}}, "symbols"),
        ({"symbols": {"batch": {"captured": "8", "least": 1, "most": 64}}}, "symbols.batch"),
        ({"symbols": 3}, "symbols"),
        ({"tensors": [{"repeat": 1, "rows": [{"deep": [[[[[[[["x"] * 9]]]]]]]}]}]}, "tensors"),
    ],
)
def test_a_document_that_is_wrong_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        graph_from_document({**symbolic(), **change})
    assert field in str(caught.value)


def test_a_row_may_not_be_nested_deeply() -> None:
    row: Any = "x"
    for _ in range(400):
        row = [row]
    with pytest.raises(BadInput, match="nested too deeply"):
        graph_from_document({**symbolic(), "tensors": [row]})


def test_values_have_63_bits() -> None:
    document = json.loads(json.dumps(symbolic()).replace("{B}", "{999999999999999999*B}"))
    with pytest.raises(BadInput, match="more than 2\\^63"):
        graph_from_document(document, sizes=StepSizes(64))


def test_points_of_a_model_with_a_window() -> None:
    """Below 100 tokens and with a batch of 1 it has one layer fewer; above 5,000 it is refused."""

    def capture_at(batch: int, seq: int | None) -> Graph:
        tokens = 1000 if seq is None else seq
        if tokens > 5000:
            raise BadInput("too many positions")
        return layers(6 - (tokens < 100) - (batch == 1), batch, tokens)

    document = json.loads(symbols_of(capture_at(4, 1000), 4, 1000, capture_at))
    assert document["symbols"] == {
        "batch": {"captured": 4, "least": 2, "most": MOST},
        "seq": {"captured": 1000, "least": 513, "most": 4096},
    }


def test_points_of_a_model_that_pads() -> None:
    """Lengths that are no multiple of 8 give one more layer: only the captured one is known."""

    def capture_at(batch: int, seq: int | None) -> Graph:
        tokens = seq or 64
        return layers(6 + (tokens % 8 > 0), batch, tokens)

    document = json.loads(symbols_of(capture_at(4, 64), 4, 64, capture_at))
    assert document["symbols"]["seq"] == {"captured": 64, "least": 64, "most": 64}
    assert document["symbols"]["batch"] == {"captured": 4, "least": 1, "most": MOST}
    with pytest.raises(BadInput, match="only 64"):
        graph_from_document(document, sizes=StepSizes(seq=128))


def test_names_with_sizes() -> None:
    assert split_sizes("llama3-8b:batch=128,seq=4096") == ("llama3-8b", StepSizes(128, 4096))
    assert split_sizes("gpt2:n_layer=4,batch=2") == ("gpt2:n_layer=4", StepSizes(2))
    assert split_sizes("./a:b/graph.json") == ("./a:b/graph.json", StepSizes())
    assert split_sizes("preset:gpt2:seq=8") == ("preset:gpt2", StepSizes(seq=8))
    assert sized("gpt2", StepSizes()) == "gpt2"
    assert sized("preset:gpt2:n_layer=4", StepSizes(2, 8)) == "preset:gpt2:n_layer=4,batch=2,seq=8"
    for text in ("gpt2:batch=0", "gpt2:batch=x", "gpt2:batch=-1", "gpt2:batch=1,batch=2"):
        with pytest.raises(BadInput):
            split_sizes(text)
    with pytest.raises(BadInput, match="given twice"):
        sized("gpt2:batch=2", StepSizes(3))


@given(
    st.sampled_from(["gpt2", "preset:llama3-8b", "gpt2:n_layer=4", "./graph.json.gz"]),
    st.none() | st.integers(1, 2**32),
    st.none() | st.integers(1, 2**32),
)
def test_a_name_gives_back_its_sizes(name: str, batch: int | None, seq: int | None) -> None:
    assert split_sizes(sized(name, StepSizes(batch, seq))) == (name, StepSizes(batch, seq))


def test_a_file_of_one_size_is_refused_for_others(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    write_document(canonical_json(mlp(8)), path)
    assert load_graph(f"{path}:batch=8").batch_size == 8
    with pytest.raises(BadInput, match="has the graph of batch 8"):
        load_graph(path, batch=16)


def test_a_file_with_symbols_is_read_at_any_size(tmp_path: Path) -> None:
    path = tmp_path / "graph.json.gz"
    write_document(symbolic_json([Sample(b, s, chain(b, s)) for b, s in POINTS]), path)
    assert graph_id(load_graph(path)) == graph_id(chain(8, 32))
    assert graph_id(load_graph(path, batch=9, seq=40)) == graph_id(chain(9, 40))
    assert graph_id(load_graph(f"{path}:batch=9,seq=40")) == graph_id(chain(9, 40))


FILES = {**shipped_presets(), **{name: shipped_graph(name) for name in shipped_names()}}


@pytest.mark.parametrize("name", some(FILES, lambda name: name in ("llama3-8b", "vit-b", "vgg16")))
def test_a_shipped_graph_has_symbols(name: str) -> None:
    """Each holds for batches from 1 or 2 on, and at the ends of its ranges it is a valid graph;
    what has no symbols yet says so."""
    symbols = json.loads(gzip.decompress(FILES[name].read_bytes())).get("symbols")
    if symbols is None:
        with pytest.raises(BadInput, match=r"has the graph of batch .* alone"):
            read_graph(FILES[name], StepSizes(7))
        return
    batch, seq = symbols["batch"], symbols.get("seq")
    assert batch["least"] <= 2
    assert batch["most"] in LARGE_BATCHES
    ends = [(batch["least"], seq and seq["most"]), (batch["most"], seq and seq["least"])]
    captured = step_of(read_graph(FILES[name])).seq
    for batch_size, length in ends:
        step = step_of(read_graph(FILES[name], StepSizes(batch_size, length)))
        assert step.batch == batch_size
        if seq is not None and captured == seq["captured"]:
            assert step.seq == length
    if name == "llama3-8b":
        assert seq["least"] == LEAST_SEQ


def test_the_page_says_what_every_preset_holds_for() -> None:
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text("utf-8")
    said = {}
    for line in page.splitlines():
        match = re.fullmatch(r"- batch ([\d,]+(?: to [\d,]+)?)(?:, sequence (.+))?: (`.*`)", line)
        if match is not None:
            names = match[3].replace("`", "").split(", ")
            said |= dict.fromkeys(names, (match[1], match[2] or ""))
    assert said
    for name, path in shipped_presets().items():
        symbols = json.loads(gzip.decompress(path.read_bytes())).get("symbols", {})
        held = [
            ""
            if one is None
            else " to ".join(f"{n:,}" for n in sorted({one["least"], one["most"]}))
            for one in (symbols.get("batch"), symbols.get("seq"))
        ]
        if not symbols:
            held = [f"{n:,}" if n else "" for n in (presets()[name].batch, presets()[name].seq)]
        assert said.get(name, ("1 to 1,048,576", "16 to 1,048,576")) == tuple(held), name


def test_a_preset_at_other_sizes_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "from shardwise.capture import load_graph\n"
        "graph = load_graph('llama3-8b', batch=128, seq=4096)\n"
        "assert graph.batch_size == 128, graph.batch_size\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


QUICK = ("--hardware", "dgx-v100-16gb", "--objective", "sum", "--micro-batches", "1", "--quiet")


def test_commands_take_batch_and_sequence() -> None:
    """`inspect` says the step, `curve --batches` answers with a curve for each batch."""
    done = shardwise("inspect", "gpt2", "--batch", "9", "--seq", "100", "--json")
    assert done.returncode == 0, done.stderr
    inspected = json.loads(done.stdout)
    assert (inspected["batch_size"], inspected["seq"]) == (9, 100)
    assert inspected["graph"] == graph_id(load_graph("gpt2", batch=9, seq=100))
    done = shardwise("curve", "gpt2", "--batches", "9,4", "--counts", "1", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "shardwise.curves/1"
    curves = [item["result"] for item in document["items"]]
    assert [curve["batch_size"] for curve in curves] == [4, 9]
    assert [curve["graph"] for curve in curves] == [
        graph_id(load_graph("gpt2", batch=batch)) for batch in (4, 9)
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("plan", "gpt2", "--seq", "2048", "--gpus", "1", *QUICK), "expected 16 to 1024"),
        (("plan", "gpt2:batch=8", "--batch", "9", "--gpus", "1", *QUICK), "given twice"),
        (("curve", "gpt2", "--batches", "x", "--counts", "1", *QUICK), "names no batches"),
        (
            ("curve", "gpt2", "--batches", "4", "--counts", "1", *QUICK, "--format", "csv"),
            "show one curve",
        ),
        (("explain", "plan.json", "--batch", "4"), "apply only with --like"),
        (("explain", "--like", "job.json", "--batch", "4"), "the file has its own"),
    ],
)
def test_commands_refuse_what_does_not_hold(command: tuple[str, ...], said: str) -> None:
    done = shardwise(*command)
    assert done.returncode == 2
    assert said in done.stderr


def test_functions_and_tools_take_batch_and_sequence() -> None:
    named = "gpt2:batch=9,seq=100"
    ask = validation.convert(
        {"graph": "gpt2", "batch": 9, "seq": 100, "hardware": "dgx-h100", "gpus": 1},
        PlanArguments,
    )
    assert (ask.graph, ask.batch, ask.seq) == (named, None, None)
    request = PlanRequest("gpt2", "dgx-h100", 1, batch=9, seq=100)
    assert request_body(request) == {"graph": named, "hardware": "dgx-h100", "gpus": 1}
    sums = {"overlap": False, "micro_batches": (1,)}
    answer = plan("gpt2", "dgx-v100-16gb", 1, batch=9, seq=100, **sums)
    assert answer.graph == graph_id(load_graph(named))
    with pytest.raises(BadInput, match="read and has its own"):
        plan(load_graph("gpt2"), "dgx-v100-16gb", 1, batch=9)
    assert sized_source("gpt2", 9, 100) == named
    with pytest.raises(BadInput, match="a graph beside it"):
        validation.convert({"plan": "x.json", "batch": 9}, ExplainArguments)
