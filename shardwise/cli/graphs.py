"""capture, inspect."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import click

from shardwise.cli.arguments import json_option, load_graph, quiet_option, sizes_options
from shardwise.cli.output import console, emit, note, progress, table
from shardwise.cost.options import Options
from shardwise.errors import BadInput
from shardwise.graph.step import loss_name, step_of
from shardwise.outfiles import check_output
from shardwise.tdl import registry
from shardwise.texts import gib

MOST_KINDS = 20


@click.command()
@click.argument("source")
@click.option("--batch", type=click.IntRange(1), help="Samples of one step.")
@click.option("--seq", type=click.IntRange(1), help="Sequence length.")
@click.option(
    "--dtype",
    help="float32, bf16, fp16, …: of a preset or config.json unless named what it says, else bf16 "
    "for language models; of others float32.",
)
@click.option("--name", help="The graph's name. [default: the preset's, else SOURCE]")
@click.option("-o", "--output", required=True, help="graph.json or graph.json.gz")
@click.option(
    "--fixed",
    is_flag=True,
    help="Write the graph of this batch and sequence length alone: without the captures by which "
    "those of others are known.",
)
@click.option(
    "--unfolded", is_flag=True, help="Write every layer, as releases before 0.2 read graphs."
)
@quiet_option
@json_option
def capture(
    source: str,
    batch: int | None,
    seq: int | None,
    dtype: str | None,
    name: str | None,
    output: str,
    fixed: bool,
    unfolded: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Capture a model: a preset (llama3-8b), hf:./config.json, hf:CONFIG_CLASS, diffusers:,
    timm:, zoo:, each with or without :key=value,…; package.module:callable, FILE.onnx."""
    from shardwise.capture import capture as take
    from shardwise.capture.symbol_points import symbolic_of_source
    from shardwise.errors import CaptureWarning
    from shardwise.graph import graph_id, write_graph
    from shardwise.graph.files import write_document

    check_output(output)
    with (
        progress(quiet or as_json, stoppable=False) as listener,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", CaptureWarning)
        graph = take(source, batch=batch, seq=seq, dtype=dtype, name=name, progress=listener)
        notes = [str(w.message) for w in caught if issubclass(w.category, CaptureWarning)]
        symbolic = None
        if not (fixed or unfolded):
            listener("capturing other sizes", 0.9)
            try:
                symbolic = symbolic_of_source(source, graph, batch, seq, dtype)
            except BadInput as reason:
                notes.append(f"the file has the graph of these sizes alone: {reason}")
        listener("writing", 0.95)
        if symbolic is None:
            write_graph(graph, output, folded=not unfolded)
        else:
            write_document(symbolic, output)
    step = step_of(graph)
    summary = {
        "schema": "shardwise.captured/1",
        "graph": graph_id(graph),
        "name": graph.name,
        "file": output,
        "operators": len(graph.operators),
        "parameters": graph.parameter_count,
        "batch_size": step.batch,
        "seq": step.seq,
        "dtype": step.dtype,
        "loss": step.loss,
        "notes": notes,
    }
    for text in notes:
        note(f"note: {text}")
    if as_json:
        emit(summary)
    else:
        note(
            f"wrote {output}: {graph.name}, {len(graph.operators):,} operators, "
            f"{graph.parameter_count:,} parameters"
        )
        note(f"step: {step_text(step.batch, step.seq, step.dtype, step.loss)}")
        note(f"optimizer: {_optimizer()}")


@click.command()
@click.argument("graph")
@click.option("--plot", help="A picture of the blocks: .html, .svg or .png.")
@json_option
@sizes_options
def inspect(graph: str, plot: str | None, as_json: bool) -> None:
    """Operators, parameters, activations, flops, and what could not be described."""
    from shardwise.graph.inspect import inspect_graph
    from shardwise.pictures.blocks import plot_blocks
    from shardwise.pictures.figure import check_suffix

    if plot is not None:
        check_suffix(plot)
        check_output(plot, "plot")
    loaded = load_graph(graph)
    document = inspect_graph(loaded, registry.analyse)
    if plot is not None:
        plot_blocks(loaded, plot)
        note(f"wrote {plot}")
    if as_json:
        emit(document)
        return
    _inspection(document)


def step_text(batch: int | None, seq: int | None, dtype: str | None, loss: str | None) -> str:
    """Returns `batch 64, sequence 1,024, bfloat16, cross entropy`, with what is not known."""
    return ", ".join(
        (
            "unknown batch" if batch is None else f"batch {batch:,}",
            *(() if seq is None else (f"sequence {seq:,}",)),
            "no parameters" if dtype is None else dtype,
            "no loss" if loss is None else loss_name(loss),
        )
    )


def _optimizer() -> str:
    """Returns what searches assume of the optimizer, which is not in a graph."""
    options = Options()
    usual = f"{options.optimizer} with {options.step.state} state"
    return f"not in the graph; searches assume {usual} (--optimizer, --state)"


def _inspection(document: dict[str, Any]) -> None:
    parameters, activations = document["parameters"], document["activations"]
    out = console()
    out.print(f"{document['name']} ({document['graph'][:19]}…)")
    step = step_text(*(document[key] for key in ("batch_size", "seq", "dtype", "loss")))
    out.print(
        f"step        {step}\n"
        f"optimizer   {_optimizer()}\n"
        f"parameters  {parameters['elements']:,} ({gib(parameters['total_bytes'])} GiB)\n"
        f"activations {gib(activations['total_bytes'])} GiB, "
        f"{gib(activations['kept_for_backward_bytes'])} GiB kept for backward\n"
        f"flops       {document['forward_flops']:.4g} forward, "
        f"{document['backward_flops']:.4g} backward"
    )
    kinds = document["operators"]["by_kind"]
    table(
        f"{document['operators']['count']:,} operators of {len(kinds)} kinds",
        ("kind", "count", "flops", "GiB out"),
        [
            (
                k["kind"],
                f"{k['count']:,}",
                f"{k['forward_flops'] + k['backward_flops']:.3g}",
                gib(k["output_bytes"]),
            )
            for k in kinds[:MOST_KINDS]
        ],
    )
    undescribed = Counter(op["kind"] for op in document["undescribed_operators"])
    for kind, count in undescribed.items():
        out.print(f"undescribed, will be replicated: {kind} ({count}×)")
