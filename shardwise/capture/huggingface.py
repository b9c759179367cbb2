"""transformers models from their configurations: offline, without weights.

Sequences are full, without padding and packing (hf_masks), unless `attention_mask=true` gives the
model a padding mask. Experts, scans and attention with sinks are one operator each (fused,
scans).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shardwise.capture.fused import whole_experts, whole_sinks, whole_windows
from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.hf_config import (
    IMPLEMENTATION_KEYS,
    asks_for_mask,
    has_fused_scans,
    make_config,
)
from shardwise.capture.hf_inputs import Sizes
from shardwise.capture.hf_masks import full_sequences
from shardwise.capture.hf_origin import Origin, find_origin
from shardwise.capture.hf_steady import decided
from shardwise.capture.hf_tasks import Task, find_task, text_alone, trained
from shardwise.capture.model import Model
from shardwise.capture.scans import whole_scans
from shardwise.capture.source import Source
from shardwise.capture.torch_extra import require, torch_dtype
from shardwise.errors import CaptureError

DEFAULT_BATCH = 8


def build_huggingface(
    source: Source, *, batch: int | None, seq: int | None, dtype: str | None
) -> Model:
    """Returns the model of a configuration on the meta device, and its inputs.

    `batch` defaults to the preset's, else to 8 samples; `seq` to the preset's, else to the
    configuration's longest sequence, at most 1024; `dtype` as `default_dtype` says. Raises
    CaptureError for a class, a file or an option that transformers does not know.
    """
    require("torch")
    require("transformers")
    import torch

    origin = find_origin(source)
    config = make_config(source, origin)
    task = find_task(config, source, origin.architectures)
    kind = torch_dtype(dtype or default_dtype(source, origin, task))
    implementations: dict[str, Any] = {
        k: v for k, v in source.options.items() if k in IMPLEMENTATION_KEYS
    }
    implementations.setdefault("attn_implementation", "sdpa")
    doing = f"{source.target} cannot be built"
    with foreign_code(doing, source=source.text), quiet(), torch.device("meta"):
        try:
            model = task.auto.from_config(config, dtype=kind, **implementations)
        except ValueError:
            if "attn_implementation" in source.options:
                raise
            # The architecture has no sdpa; use its own default.
            implementations["attn_implementation"] = "eager"
            model = task.auto.from_config(config, dtype=kind, **implementations)
    # XLNet makes parameters by `torch.FloatTensor`, which knows no default device.
    model.to("meta")
    if "experts_implementation" not in source.options:
        whole_experts(model)
    if "attn_implementation" not in source.options and not asks_for_mask(source):
        whole_sinks(model)
        whole_windows(model)
    model.train()
    samples = batch or origin.batch or DEFAULT_BATCH
    sizes = Sizes(samples, seq or origin.seq, kind, asks_for_mask(source))
    inputs = task.inputs(model, config, sizes, source)
    if sizes.mask and "attention_mask" not in inputs:
        raise CaptureError(
            f"{source.target} takes no attention mask",
            file=source.text,
            field="attention_mask",
            expected="a model that takes tokens",
        )
    module, values, names = trained(model, config, task, inputs)
    return Model(
        module,
        values,
        prefix="model.",
        input_names=names,
        otherwise=text_alone(config, task),
    )


def default_dtype(source: Source, origin: Origin, task: Task) -> str:
    """Returns the dtype of parameters that a source has unless a user gives one.

    It is the configuration's; where it has none, bfloat16 for language models, else float32. A
    bare configuration class is a model without history, and has float32.
    """
    if source.origin == "class":
        return "float32"
    return origin.dtype or ("bfloat16" if task.predicts_tokens else "float32")


@contextlib.contextmanager
def training_form(source: Source | None = None) -> Iterator[None]:
    """Makes transformers compute as in training on full sequences, within this context.

    Nothing is left to chance or to data (hf_steady). Scans are fused unless the source says not.
    """
    fused = source is None or has_fused_scans(source)
    scans = whole_scans() if fused else contextlib.nullcontext()
    with full_sequences(), scans, decided():
        yield
