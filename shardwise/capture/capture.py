"""Captures a model as its training graph, without its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from shardwise.capture.diffusers_models import build_diffusers
from shardwise.capture.diffusers_steady import on_meta
from shardwise.capture.huggingface import build_huggingface, training_form
from shardwise.capture.model import Model, arguments
from shardwise.capture.onnx import capture_onnx
from shardwise.capture.onnx.sizes import Sizes
from shardwise.capture.repeated import Stages, trace, trace_whole
from shardwise.capture.source import FROM_FILES, Source, parse_source
from shardwise.capture.timm_models import build_timm
from shardwise.capture.torch_extra import DTYPES, require
from shardwise.capture.usercode import build_callable
from shardwise.capture.zoo import build_zoo
from shardwise.cost.options import quiet
from shardwise.errors import BadInput, CaptureError
from shardwise.graph.graph import Graph
from shardwise.graph.validate import validate_graph
from shardwise.step_sizes import StepSizes, sized, split_sizes

DEFAULT_DTYPE = "float32"


def capture(
    source: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    name: str | None = None,
    progress: Stages = quiet,
) -> Graph:
    """Returns the training graph of a model: its forward operators, including the loss.

    `source` is a `torch.nn.Module` whose forward returns the loss, with `example_inputs` for it (a
    tensor, a sequence or a mapping of keyword arguments), or a string: a preset such as
    `llama3-8b[:key=value,…]`, `hf:CONFIG_CLASS[:key=value,…]`, `hf:./config.json[:key=value,…]`,
    the same with `diffusers:`, `timm:NAME[:key=value,…]`, `zoo:NAME[:key=value,…]`,
    `package.module:callable` or `FILE.onnx[:dimension=size,…]`. For a string `batch` counts
    samples, `seq` tokens, which may be options in it (not of ONNX, whose dimensions are); `dtype`
    is that of the parameters. Its default is float32; of a preset
    and of a config.json it is the configuration's, else bfloat16 for language and diffusion models;
    a callable's module and an ONNX file keep their own. The graph is named `name`, or after the
    preset or the source. Needs the torch extra (the onnx extra for ONNX files), no GPU and no
    weights. `progress` is told each stage and the share of the work done before it. Raises
    CaptureError saying what cannot be captured and what may help.
    """
    if not isinstance(source, str):
        return _of_module(source, example_inputs, name or type(source).__name__, progress)
    parsed = parse_source(source)
    _check_sizes(batch, seq, dtype)
    if parsed.kind != "onnx":
        plain, sizes = split_sizes(sized(source, StepSizes(batch, seq)))
        parsed, batch, seq = parse_source(plain), sizes.batch, sizes.seq
    if parsed.kind == "onnx":
        return capture_onnx(parsed.target, _onnx_sizes(parsed, batch, seq, dtype), name or source)
    require("torch", extra="models" if parsed.kind in (*FROM_FILES, "timm") else None)
    try:
        progress("building the model", 0.0)
        model = build(parsed, batch, seq, dtype)
        called = name or parsed.name
        traced = trace if parsed.kind in FROM_FILES else trace_whole
        with _form_of(parsed):
            return validate_graph(_traced(traced, model, source, called, progress))
    except CaptureError as error:
        raise error if parsed.origin == "file" else error.in_file(source) from None
    except BadInput as error:
        raise CaptureError(
            f"the captured graph is malformed: {error.problem}",
            file=source,
            field=error.field,
            expected=error.expected,
        ) from None


def _form_of(source: Source) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which a source's package computes as in training."""
    if source.kind == "hf":
        return training_form(source)
    return on_meta() if source.kind == "diffusers" else contextlib.nullcontext()


def _traced(
    trace_it: Callable[[Model, str, str, Stages], Graph],
    model: Model,
    source: str,
    name: str,
    progress: Stages,
) -> Graph:
    """Returns the graph of a model; an error says what to capture instead, where that is known."""
    try:
        return trace_it(model, source, name, progress)
    except CaptureError as error:
        if error.expected is not None or model.otherwise is None:
            raise
        raise type(error)(
            error.problem, file=error.file, field=error.field, expected=model.otherwise
        ) from None


def _of_module(module: Any, example_inputs: Any, name: str, progress: Stages) -> Graph:
    require("torch")
    import torch

    if not isinstance(module, torch.nn.Module):
        raise CaptureError(
            f"{type(module).__name__} is not a model", expected="a torch.nn.Module, or a string"
        )
    args, kwargs = arguments(example_inputs)
    try:
        model = Model(module, args, kwargs)
        return validate_graph(trace_whole(model, name, name, progress))
    except BadInput as error:
        raise CaptureError(
            f"the captured graph is malformed: {error.problem}",
            file=name,
            field=error.field,
            expected=error.expected,
        ) from None


def build(source: Source, batch: int | None, seq: int | None, dtype: str | None) -> Model:
    """Returns the module of a source with its inputs, ready to be exported."""
    if source.kind == "hf":
        return build_huggingface(source, batch=batch, seq=seq, dtype=dtype)
    if source.kind == "diffusers":
        return build_diffusers(source, batch=batch, seq=seq, dtype=dtype)
    if source.kind == "timm":
        return build_timm(source, batch=batch, seq=seq, dtype=dtype or DEFAULT_DTYPE)
    if source.kind == "zoo":
        return build_zoo(source, batch=batch, seq=seq, dtype=dtype or DEFAULT_DTYPE)
    return build_callable(source, batch=batch, seq=seq, dtype=dtype)


def _onnx_sizes(source: Source, batch: int | None, seq: int | None, dtype: str | None) -> Sizes:
    if dtype is not None:
        raise CaptureError(
            "an ONNX file keeps the data types it was exported with",
            file=source.target,
            field="dtype",
            expected="a file exported with that type",
        )
    for key, value in source.options.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**32:
            raise CaptureError(
                f"{value!r} is not a size", file=source.target, field=key, expected="at least 1"
            )
    return Sizes(batch, seq, {k: v for k, v in source.options.items() if isinstance(v, int)})


def _check_sizes(batch: int | None, seq: int | None, dtype: str | None) -> None:
    for field, value in (("batch", batch), ("seq", seq)):
        if value is not None and not 1 <= value <= 2**32:
            raise CaptureError(f"{value} is not a size", field=field, expected="at least 1")
    if dtype is not None and dtype not in DTYPES:
        raise CaptureError(f"unknown dtype {dtype!r}", field="dtype", expected=", ".join(DTYPES))
