"""Products in 8 and 4 bits in trainers' files: what is read, what is written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.trainer_plans import plan_of
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers import accelerate, megatron, torchtitan
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.read import read_configuration

TITAN = """[model]
name = "llama3"
flavor = "8B"
converters = {converters}
[training]
local_batch_size = 1
[parallelism]
data_parallel_shard_degree = -1
"""
MEGATRON = (
    "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 "
    "--global-batch-size 8 --bf16 "
)
BRIDGE = """
model: {tensor_model_parallel_size: 2, sequence_parallel: true, seq_length: 4096}
train: {micro_batch_size: 1, global_batch_size: 32}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""
ACCELERATE = "distributed_type: FSDP\nmixed_precision: fp8\nfsdp_config: {fsdp_version: 2}\n"
GATHER = "enable_fsdp_float8_all_gather = true\nfilter_fqns = ['output']\n"


def read(text: str, tmp_path: Path, gpus: int = 8) -> Configuration:
    (tmp_path / "file").write_text(text)
    return read_configuration(tmp_path / "file", gpus)


@pytest.mark.parametrize(
    ("text", "precision", "left_out"),
    [
        (TITAN.format(converters='["float8"]'), "fp8:tensorwise", []),
        (
            TITAN.format(converters='["quantize.linear.float8"]')
            + f"[quantize.linear.float8]\n{GATHER}",
            "fp8:tensorwise",
            ["quantize.linear.float8.enable_fsdp_float8_all_gather"],
        ),
        (
            TITAN.format(converters='["float8"]') + '[float8]\nrecipe_name = "rowwise_with_gw_hp"',
            "fp8:rowwise_with_gw_hp",
            [],
        ),
        (TITAN.format(converters='["quantize.linear.mx"]'), "fp8:mxfp8", []),
        (TITAN.format(converters='["other"]'), None, ["model.converters other"]),
        (TITAN.format(converters="[]") + "[float8]\nenable_float8_linear = true", "fp8:tensorwise",
         []),
        (MEGATRON + "--fp8-format hybrid", "fp8:delayed", []),
        (MEGATRON + "--fp8-format e4m3 --fp8-recipe blockwise", "fp8:blockwise", []),
        (
            MEGATRON + "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather",
            "fp8:mxfp8",
            [],
        ),
        (MEGATRON + "--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4", []),
        (MEGATRON, None, []),
        (ACCELERATE, "fp8:delayed", []),
        (ACCELERATE + "fp8_config: {backend: AO}\n", "fp8:tensorwise", []),
        (ACCELERATE.replace("fp8\n", "bf16\n", 1), None, []),
    ],
)  # fmt: skip
def test_what_files_say(
    tmp_path: Path, text: str, precision: str | None, left_out: list[str]
) -> None:
    found = read(text, tmp_path)
    assert found.stated.get("precision") == precision
    assert [line.partition(":")[0] for line in found.left_out] == left_out
    assert not any("fp8" in line or "float8" in line for line in found.unread)


def test_recipes_without_a_price_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--fp8-recipe.*'custom'.*delayed"):
        read(MEGATRON + "--fp8-format e4m3 --fp8-recipe custom", tmp_path)
    with pytest.raises(BadInput, match=r"recipe_name.*rowwise"):
        text = TITAN.format(converters='["float8"]')
        read(text + '[float8]\nrecipe_name = "columnwise"', tmp_path)


@pytest.mark.parametrize(
    ("trainer", "said", "unsaid"),
    [
        (torchtitan, ["tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8"],
         ["fp8:delayed", "fp8:blockwise", "nvfp4"]),
        (megatron, ["tensorwise", "delayed", "blockwise", "mxfp8", "nvfp4"], ["fp8:rowwise"]),
        (accelerate, ["tensorwise", "delayed"], ["fp8:mxfp8"]),
    ],
)  # fmt: skip
def test_plans_are_written_and_read_again(
    tmp_path: Path, trainer: object, said: list[str], unsaid: list[str]
) -> None:
    name = trainer.NAME  # type: ignore[attr-defined]
    parallelism = Parallelism(shards=8, zero=1 if name == "megatron" else 3)
    for recipe in said:
        precision = recipe if recipe == "nvfp4" else f"fp8:{recipe}"
        plan = plan_of(parallelism, trainer=name, precision=precision)
        written = trainer.write(plan)  # type: ignore[attr-defined]
        found = read(written.text, tmp_path)
        assert found.stated["precision"] == precision
        assert not any("recipe" in line.lower() for line in written.unsaid)
    for precision in unsaid:
        plan = plan_of(parallelism, trainer=name, precision=precision)
        written = trainer.write(plan)  # type: ignore[attr-defined]
        assert any(precision in line for line in written.unsaid)
        assert "precision" not in read(written.text, tmp_path).stated


def test_what_megatron_bridge_says_of_memory(tmp_path: Path) -> None:
    """Parts that run again, weights in 8 bits alone, moments in 16 bits, the loss in one pass."""
    text = BRIDGE.replace("bf16_mixed", "bf16_with_mxfp8_mixed").replace(
        "seq_length: 4096",
        "seq_length: 4096, recompute_granularity: selective, cross_entropy_loss_fusion: true, "
        "cross_entropy_fusion_impl: te, recompute_modules: [mla_up_proj, moe_act]",
    )
    text += (
        "optimizer: {optimizer: adam, use_precision_aware_optimizer: true, "
        "exp_avg_dtype: torch.bfloat16, exp_avg_sq_dtype: torch.bfloat16}\n"
    )
    found = read(text, tmp_path)
    assert found.parallelism.recompute == "selective"
    assert found.parallelism.recompute_modules == ("mla_up_proj", "moe_act")
    stated = {name: found.stated[name] for name in ("precision", "weights", "state", "loss")}
    assert stated == {
        "precision": "fp8:mxfp8", "weights": "rounded", "state": "32:16:16", "loss": "compiled",
    }  # fmt: skip
    members = "{bf16: true, fp8: hybrid, fp8_recipe: tensorwise, grad_reduce_in_fp32: false}"
    told = read(BRIDGE.replace("bf16_mixed", members), tmp_path).stated
    assert told["precision"] == "fp8:tensorwise"
    assert not {"weights", "gradients"} & told.keys()
