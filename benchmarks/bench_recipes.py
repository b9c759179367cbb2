"""Published recipes asked with their trainer's space: theirs and ours side by side.

Each recipe is priced as it is published, and the trainer's fastest plan that fits is asked for with
the same model, batch, GPUs and program. `python benchmarks/bench_recipes.py [WORD…]` prints a table
in Markdown (docs/trainers.md has it), of the recipes whose names have one of the words; with
`--priced` theirs alone. Some CPU minutes; models are captured, which needs the `models` extra, and
kept under out/recipes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwise.capture import capture
from shardwise.cost.options import Options
from shardwise.cost.program import assumed
from shardwise.documents.parallelism import Parallelism, text_of
from shardwise.documents.plan import Plan
from shardwise.errors import NotFound
from shardwise.graph import Graph, read_graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.trainers.changes import change_text
from shardwise.trainers.plan import plan_for
from shardwise.trainers.price import price
from shardwise.trainers.spaces import space_of
from shardwise.trainers.stated import with_stated

KEPT = Path("out/recipes")
GIB = 2**30
PRICED = "--priced"
SEARCH_S = 10.0
"""Seconds of the search of any kind, which is not compared here; the trainer's is whole."""


@dataclass(frozen=True)
class Recipe:
    """A published job: `source` is a repository or a run of the accuracy page; `model` is what
    `capture` takes. `measured_s` is its published step, 0 where there is none; `why` says where
    ours differs from it."""

    name: str
    source: str
    model: str
    batch: int
    hardware: str
    gpus: int
    trainer: str
    given: Parallelism
    seq: int | None = None
    dtype: str | None = "bfloat16"
    options: Options = field(default_factory=Options)
    measured_s: float = 0.0
    why: str = ""


H100 = "grand-teton-h100-96gb"
EAGER = Options(framework="eager")
FOUNDRY = (
    "hf:GPT2Config:n_embd=4096,n_head=32,n_layer=32,n_positions=2048,vocab_size=50368,"
    "activation_function=gelu,resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"
)

RECIPES = (
    Recipe(
        "Llama 3 8B, 8 H100", "torchtitan, Table 1", "llama3-8b", 16, H100, 8, "torchtitan",
        Parallelism(shards=8, zero=3, recompute="selective"),
        seq=8192, measured_s=16 * 8192 / (6667 * 8),
        why="half the micro-batch needs no recomputation; ZeRO-2 gathers nothing again in backward",
    ),
    Recipe(
        "Llama 3 8B, 64 H100", "torchtitan, asynchronous TP", "llama3-8b", 96, H100, 64,
        "torchtitan",
        Parallelism(shards=8, tensor=8, sequence=True, zero=3, recompute="selective"),
        seq=8192, measured_s=96 * 8192 / (4378 * 64),
        why="published for asynchronous TP, not as the fastest: tp 2 moves a seventh of tp 8",
    ),
    Recipe(
        "Llama 3 70B, 256 H100", "torchtitan, Table 4", "llama3-70b", 512, H100, 256, "torchtitan",
        Parallelism(shards=32, tensor=8, sequence=True, zero=3, recompute="full"),
        seq=8192, measured_s=512 * 8192 / (597.3 * 256),
        why="tp 2 moves a seventh of tp 8, and smaller micro-batches keep nearly everything",
    ),
    Recipe(
        "Llama 3 70B, 64 A100", "torchtitan, 64 A100", "llama3-70b", 64, "dgx-a100-80gb", 64,
        "torchtitan", Parallelism(shards=64, zero=3, recompute="full"),
        seq=8192, options=EAGER, measured_s=64 * 8192 / (331 * 64),
    ),
    Recipe(
        "Llama 3 405B, 128 H100", "torchtitan, llama3_405b (in bf16)", "llama3-405b", 32, H100, 128,
        "torchtitan", Parallelism(shards=16, tensor=8, sequence=True, zero=3, recompute="full"),
        seq=8192,
        why="tp 4 moves three sevenths of what tp 8 moves",
    ),
    Recipe(
        "Llama 2 7B, 128 A100", "fms-fsdp", "llama2-7b", 256, "dgx-a100-80gb", 128, "fsdp2",
        Parallelism(replicas=16, shards=8, zero=3),
        seq=4096, options=Options(framework="compiled"), measured_s=256 * 4096 / (4550 * 128),
    ),
    Recipe(
        "MPT 7B, 8 H100", "LLM Foundry", FOUNDRY, 48, "dgx-h100", 8, "fsdp2",
        Parallelism(shards=8, zero=3),
        seq=2048, options=EAGER, measured_s=48 * 2048 / (10643 * 8),
    ),
    Recipe(
        "GPT-2, 8 A100", "nanoGPT, config/train_gpt2.py", "gpt2", 480, "dgx-a100-40gb", 8, "fsdp2",
        Parallelism(replicas=8, micro_batches=5),
        seq=1024, options=Options(framework="compiled"),
        why="one micro-batch instead of five: the recipe leaves four fifths of the memory free",
    ),
    Recipe(
        "T5 220M, 8 A100", "Megatron-LM, examples/t5", "hf:T5Config:d_model=768,d_kv=64,d_ff=3072,"
        "num_layers=12,num_decoder_layers=12,num_heads=12,vocab_size=29056", 512, "dgx-a100-80gb",
        8, "megatron", Parallelism(replicas=8), seq=512,
    ),
    Recipe(
        "ViT-B/16, 16 V100", "DeiT, README", "timm:vit_base_patch16_224", 1024, "dgx1-v100-32gb",
        16, "fsdp2", Parallelism(replicas=16), dtype=None,
        options=Options(framework="eager", precision="fp16"),
        why="shards inside a node leave an eighth of the sums for the network",
    ),
    *(
        Recipe(
            f"Llama 3 8B, 8 H100, {precision}", "torchtitan, commit 7a04053", "llama3-8b", 8, H100,
            8, "torchtitan", Parallelism(shards=8, zero=3, recompute="selective"),
            seq=8192, options=Options(precision=precision), measured_s=8192 / tokens,
        )
        for precision, tokens in (("bf16", 5760), ("fp8:tensorwise", 7186), ("fp8:rowwise", 6424))
    ),
)  # fmt: skip


def run(only: Sequence[str] = (), *, priced: bool = False) -> dict[str, Any]:
    """Every recipe whose name has one of the words `only`; printed as a table, answered as data.

    `priced`: theirs alone.
    """
    print("| recipe | theirs | step (published) | peak GiB | ours | step | peak GiB | why |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for recipe in RECIPES:
        if not only or any(word in recipe.name for word in only):
            rows.append(compared(recipe, priced=priced))
            print(_line(recipe, rows[-1]), flush=True)
    return {"rows": rows}


def compared(recipe: Recipe, *, priced: bool = False) -> dict[str, Any]:
    """Returns a recipe's step and peak and those of the trainer's fastest plan that fits."""
    graph, hardware = graph_of(recipe), load_hardware(recipe.hardware)
    program = with_stated(recipe.options, space_of(recipe.trainer).implies, ())
    options = assumed(program, hardware)
    theirs = price(graph, hardware, recipe.gpus, recipe.given, options, trainer=recipe.trainer)
    row: dict[str, Any] = {"name": recipe.name, "theirs": _step(theirs.plan), "fits": theirs.fits}
    if priced:
        return {**row, "reason": "not asked"}
    try:
        limited = replace(options, time_limit_s=SEARCH_S, simplest="never")
        ours = plan_for(graph, hardware, recipe.gpus, recipe.trainer, options=limited)
    except NotFound as error:
        return {**row, "reason": str(error)}
    assert ours.trainer
    found = ours.trainer.parallelism
    return {
        **row,
        "ours": _step(ours),
        "strategy": text_of(found),
        "changes": change_text(theirs.parallelism, found),
    }


def graph_of(recipe: Recipe) -> Graph:
    """Returns the recipe's model on its batch, captured once."""
    key = repr((recipe.model, recipe.batch, recipe.seq, recipe.dtype))
    path = KEPT / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json.gz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        graph = capture(recipe.model, batch=recipe.batch, seq=recipe.seq, dtype=recipe.dtype)
        write_graph(graph, path)
    return read_graph(path)


def _step(plan: Plan) -> tuple[float, float]:
    """Returns the replayed step in seconds and the peak in GiB."""
    return plan.predicted.replayed_time_s, plan.predicted.peak_bytes / GIB


def _line(recipe: Recipe, row: dict[str, Any]) -> str:
    step_s, peak = row["theirs"]
    published = f" ({recipe.measured_s:.3g})" if recipe.measured_s else ""
    fits = "" if row["fits"] else ", does not fit"
    theirs = f"{recipe.trainer}: {text_of(recipe.given)} | {step_s:.3g} s{published}"
    begins = f"| {recipe.name} ({recipe.source}) | {theirs} | {peak:.1f}{fits}"
    if "ours" not in row:
        return f"{begins} | - | - | - | {row['reason']} |"
    own_s, own_peak = row["ours"]
    same = "the same" if not row["changes"] else row["strategy"]
    change = f"{own_s:.3g} s ({own_s / step_s - 1.0:+.1%})"
    return f"{begins} | {same} | {change} | {own_peak:.1f} | {recipe.why} |"


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != PRICED]
    run(words, priced=len(words) < len(sys.argv[1:]))
