"""The written parallelize.py, run on four gloo ranks: a step equals that of one device."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402

import shardwise  # noqa: E402
from harness.execute.ranks import Ranks  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.cost.pins import parse_pin  # noqa: E402
from shardwise.documents.parallelism import Parallelism, PlannedTrainer  # noqa: E402
from shardwise.documents.plan import Plan  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.trainers.formats import write_for  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, SEQ, GPUS = 8, 16, 4
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**SIZES, "tie_word_embeddings": False}),
    "tied": ("LlamaConfig", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**SIZES, "tie_word_embeddings": False}),
    "gpt2": (
        "GPT2Config",
        {
            "n_layer": 2,
            "n_embd": 32,
            "n_head": 4,
            "vocab_size": 64,
            "n_positions": 32,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
}
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")

CASES = [
    ("llama", Parallelism(shards=2, tensor=2, sequence=True, zero=3, recompute="full",
                          micro_batches=2)),
    ("gpt2", Parallelism(replicas=2, shards=2, zero=2, recompute="selective", micro_batches=2)),
    ("llama", Parallelism(shards=4, zero=3, recompute="full", micro_batches=2)),
    ("llama", Parallelism(shards=4, zero=3, recompute="full", recompute_layers=1)),
    ("qwen3", Parallelism(shards=4, zero=2, recompute="full", recompute_every=2)),
    ("llama", Parallelism(replicas=4, micro_batches=2)),
    ("llama", Parallelism(replicas=2, tensor=2, recompute="selective")),
    ("llama", Parallelism(tensor=4, sequence=True, micro_batches=4)),
    ("tied", Parallelism(shards=2, tensor=2, zero=2)),
    ("tied", Parallelism(shards=2, tensor=2, sequence=True, zero=3)),
    ("qwen3", Parallelism(shards=2, tensor=2, zero=3, recompute="selective")),
    ("qwen3", Parallelism(shards=2, tensor=2, sequence=True, zero=3)),
]  # fmt: skip
"""The first is the quick one: every kind of module is split, gathered, checkpointed and sharded."""


def a_model(name: str) -> Any:
    import transformers

    kind, fields = CONFIGS[name]
    torch.manual_seed(1)
    config = getattr(transformers, kind)(**fields, attn_implementation="sdpa")
    return transformers.AutoModelForCausalLM.from_config(config).float()


def tokens() -> Any:
    random = torch.Generator().manual_seed(2)
    return torch.randint(0, 64, (BATCH, SEQ), generator=random)


@cache
def planned(name: str, tensor: int) -> Plan:
    """A plan whose innermost axes split columns, rows and the vocabulary, as tensor parallelism."""
    kind, fields = CONFIGS[name]
    said = ",".join(f"{key}={str(value).lower()}" for key, value in fields.items())
    graph = shardwise.capture(f"hf:{kind}:{said}", batch=BATCH, seq=SEQ, dtype="fp32")
    axes = ("m0", "m1")[2 - tensor.bit_length() + 1 :]
    pins = [f"{axis}=batch" for axis in ("m0", "m1") if axis not in axes]
    for axis in axes:
        pins += [f"*.{layer}.linear:{axis}=out" for layer in COLUMNS]
        pins += [f"*.{layer}.linear:{axis}=in" for layer in ROWS]
        pins.append(f"lm_head.linear:{axis}=out")
        if name != "tied":  # else it is in the group of lm_head
            pins.append(f"model.embed_tokens.embedding:{axis}=vocab")
    rules = tuple(parse_pin(pin) for pin in pins)
    return shardwise.plan(graph, "dgx-h100", gpus=GPUS, pins=rules, overlap=False, zero=(0,))


def written(name: str, parallelism: Parallelism, folder: Path, **members: Any) -> Path:
    plan = replace(
        planned(name, parallelism.tensor),
        trainer=PlannedTrainer("fsdp2", parallelism, SEQ, None, None, "float32"),
        **members,
    )
    file = folder / "parallelize.py"
    file.write_text(write_for(plan, "fsdp2").text)
    return file


def loss_of(model: Any, ids: Any) -> Any:
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
    )


def imported(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("parallelize", file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _errors(rank: int, name: str, file: str) -> tuple[float, float, float, int]:
    """The largest errors of the loss, of gradients and of parameters after a step; and how many
    parameters this rank holds less than all of."""
    made = imported(file)
    one, model, ids = a_model(name), a_model(name), tokens()
    loss = loss_of(one, ids)
    loss.backward()
    mesh = made.device_mesh("cpu")
    model = made.parallelize(model, mesh)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, model)]
    local = made.accumulate(model, {"ids": made.share(ids, mesh)}, loss_of)
    torch.distributed.all_reduce(local)
    off = abs(float(local) / GPUS - float(loss))
    parameters = {
        key.replace("_checkpoint_wrapped_module.", ""): p for key, p in model.named_parameters()
    }
    known = dict(one.named_parameters())
    assert parameters.keys() == known.keys()
    gradient = max(
        float((p.grad.full_tensor() - known[key].grad).abs().max()) for key, p in parameters.items()
    )
    for optimizer in optimizers:
        optimizer.step()
    value = max(
        float((p.full_tensor() - known[key]).abs().max().detach()) for key, p in parameters.items()
    )
    split = sum(p.to_local().numel() < known[key].numel() for key, p in parameters.items())
    return off, gradient, value, split


def _mixed(rank: int, name: str, file: str) -> tuple[set[Any], float]:
    """The dtypes of parameters and gradients of a model in 16 bits, and the error of the loss."""
    made = imported(file)
    ids = tokens()
    loss = float(loss_of(a_model(name), ids))
    mesh = made.device_mesh("cpu")
    model = made.parallelize(a_model(name).bfloat16(), mesh)
    local = made.accumulate(model, {"ids": made.share(ids, mesh)}, loss_of).float()
    torch.distributed.all_reduce(local)
    dtypes = {t.dtype for p in model.parameters() for t in (p, p.grad)}
    return dtypes, abs(float(local) / GPUS - loss)


@pytest.fixture(scope="module")
def ranks() -> Any:
    started = Ranks(GPUS)
    yield started
    started.stop()


@pytest.mark.parametrize(("name", "parallelism"), some(CASES, lambda case: case == CASES[0]))
def test_a_step_equals_that_of_one_device(
    name: str, parallelism: Parallelism, tmp_path: Path, ranks: Any
) -> None:
    file = written(name, parallelism, tmp_path)
    for off, gradient, value, split in ranks(_errors, name, str(file)):
        assert off < 1e-5 and gradient < 1e-5 and value < 1e-6
        assert (split > 0) == (parallelism.tensor > 1 or parallelism.shards > 1)


@pytest.mark.parametrize("kernels", some(("eager", "compiled"), lambda kernels: kernels == "eager"))
def test_parameters_are_float32_where_16_bits_compute(
    kernels: str, tmp_path: Path, ranks: Any
) -> None:
    given = Parallelism(shards=4, zero=3, recompute="full", micro_batches=2)
    file = written("llama", given, tmp_path, precision="bf16", kernels=kernels)
    assert f"COMPILE = {kernels == 'compiled'}" in file.read_text()
    for dtypes, off in ranks(_mixed, "llama", str(file)):
        assert dtypes == {torch.float32} and off < 0.05


def test_products_that_are_no_linear_modules_cannot_be_split() -> None:
    plan = planned("gpt2", 1)
    trainer = PlannedTrainer("fsdp2", Parallelism(replicas=2, tensor=2), SEQ, None, None)
    with pytest.raises(BadInput, match="no weight is split"):
        write_for(replace(plan, trainer=trainer), "fsdp2")
