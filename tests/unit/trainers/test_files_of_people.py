"""Files as people publish them: which trainer they are for, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import MOST_UNREAD, Configuration
from shardwise.trainers.read import read_configuration

TESTS = Path(__file__).parents[2]


def read(text: str, gpus: int, tmp_path: Path) -> Configuration:
    file = tmp_path / "given"
    file.write_text(text)
    return read_configuration(file, gpus)


REPORTED = {
    "degrees of torchtitan under [training] and [experimental]": "FILES::test_what_a_file_says",
    "pipelines and contexts of that layout": "FILES::test_what_is_not_priced_is_refused_by_name",
    "NeMo taken for torchtitan": "FILES::test_what_a_file_says",
    "accelerate's FSDP offloads": "FILES::test_what_changes_memory_is_stated_or_named",
    "accelerate's DeepSpeed offloads": "FILES::test_what_changes_memory_is_stated_or_named",
    "DeepSpeed's own names of fields": "FILES::test_what_a_file_says",
    "MiCS and quantised weights": "FILES::test_what_changes_memory_is_stated_or_named",
    "branches of a script that are not taken": "unit/trainers/test_shell.py::test_flags_of_scripts",
    "variables with defaults": "unit/trainers/test_shell.py::test_flags_of_scripts",
    "the last of repeated flags": "unit/trainers/test_shell.py::test_flags_of_scripts",
    "old flags of recomputation": "unit/trainers/test_shell.py::test_flags_of_scripts",
    "a script of another model":
        "unit/trainers/test_prices.py::test_a_configuration_is_of_the_graphs_model",
    "a script of FSDP taken for Megatron": "FILES::test_what_is_not_priced_is_refused_by_name",
    "float32 gradients of Megatron": "RECIPES::test_a_megatron_file_is_told_what_production_takes",
    "float32 gradients of nanotron": "FILES::test_what_changes_memory_is_stated_or_named",
    "DeepSpeed's optimizers": "FILES::test_what_changes_memory_is_stated_or_named",
    "accelerate's MEGATRON_LM": "FILES::test_what_a_file_says",
    "Phi-3's slices of nothing": "MODELS::test_operators_without_elements_are_left_out",
    "Kimi K2's type": "MODELS::test_a_type_of_its_own_is_read_by_its_architecture",
    "experts of gpt-oss left whole": "RECIPES::test_gpt_oss_as_axolotl_trains_it",
    "Gemma 4's text": "MODELS::test_layers_may_differ_in_their_fields",
    "Llama 4 with images": "MODELS::test_what_else_to_capture_is_said",
    "Megatron's host time": "RECIPES::test_a_megatron_file_is_told_what_production_takes",
    "torchtitan's batch_size of 2025": "FILES::test_samples_have_had_two_names",
}  # fmt: skip
"""What was reported with files and models of people, and the test that would fail."""

MODULES = {
    "FILES": "unit/trainers/test_files_of_people.py",
    "RECIPES": "unit/trainers/test_published_recipes.py",
    "MODELS": "integration/models/test_capture_published.py",
}

TITAN_2024 = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
batch_size = 2
seq_len = 8192
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[experimental]
context_parallel_degree = 1
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
TITAN_2025 = "[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\n"
NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  context_parallel_size: 1
  sequence_parallel: true
  encoder_seq_length: 8192
  num_layers: 32
  activations_checkpoint_granularity: null
  optim: {name: distributed_fused_adam, lr: 1e-4}
"""
BRIDGE = """
model: {tensor_model_parallel_size: 2, sequence_parallel: true, seq_length: 4096}
train: {micro_batch_size: 1, global_batch_size: 32}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""
PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    overrides: {micro_batch_size: 2, global_batch_size: 32, tensor_model_parallel_size: 1,
                use_distributed_optimizer: true, seq_length: 8192}
"""
RECIPE = """
ENV_VARS: {NCCL_ALGO: Ring}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --use-distributed-optimizer: false
  --micro-batch-size: 4
  --global-batch-size: 32
  --bf16: true
"""
AXOLOTL = """
base_model: meta-llama/Llama-3.1-8B
datasets: [{path: x, type: alpaca}]
micro_batch_size: 2
gradient_accumulation_steps: 4
sequence_len: 4096
optimizer: adamw_torch_fused
gradient_checkpointing: true
fsdp_config: {fsdp_version: 2, offload_params: true}
learning_rate: 0.0002
wandb_project: mine
"""
LIGER = (
    AXOLOTL.partition("fsdp_config")[0]
    + """
plugins: [axolotl.integrations.liger.LigerPlugin]
liger_rope: true
liger_rms_norm: true
liger_glu_activation: true
"""
)
CUT = AXOLOTL + "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
FACTORY = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: full
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
cutoff_len: 2048
optim: adamw_8bit
"""
ZERO3 = """{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3, "overlap_comm": true, "max_live_parameters": 1000000000,
  "gather_16bit_weights_on_model_save": true, "stage3_prefetch_bucket_size": 50000000}}"""
NEOX = """{"pipe_parallel_size": 1, "model_parallel_size": 2, "num_layers": 24,
 "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}"""
MICS = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
 "zero_optimization": {"stage": 3, "mics_shard_size": 8, "zero_quantized_weights": true}}"""
SGD = """{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2,
 "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
 "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 1
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: true
  fsdp_of_tomorrow: 3
"""
PLUGIN = """
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 1
  offload_optimizer_device: cpu
  offload_param_device: nvme
  zero3_init_flag: true
"""
MEGATRON_LM = """
distributed_type: MEGATRON_LM
mixed_precision: bf16
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_pp_degree: 1
  megatron_lm_num_micro_batches: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_use_distributed_optimizer: true
"""
PRECISE = """torchrun pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --seq-length 8192 --use-distributed-optimizer --use-precision-aware-optimizer \\
  --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8
"""
MAXTEXT = """
base_config: base.yml
model_name: llama3-8b
hardware: gpu
per_device_batch_size: 0.5
max_target_length: 8192
remat_policy: minimal_flash
dcn_data_parallelism: 2
dcn_fsdp_parallelism: -1
ici_fsdp_parallelism: 4
ici_tensor_parallelism: 2
steps: 30
"""
NANOTRON = """
parallelism: {dp: 4, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}
tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 2}
model: {dtype: bfloat16, model_config: {num_hidden_layers: 2, hidden_size: 16}}
"""


@pytest.mark.parametrize(
    ("text", "gpus", "trainer", "parallelism", "batch", "length", "stages"),
    [
        (TITAN_2024, 64, "torchtitan",
         Parallelism(shards=8, tensor=8, sequence=True, zero=3, recompute="full"), 16, 8192, 1),
        (NEMO, 16, "megatron",
         Parallelism(shards=2, tensor=4, sequence=True, zero=1, micro_batches=64), 128, 8192, 2),
        (NEMO.replace("granularity: null", "granularity: selective\n  activations_checkpoint_"
                      "method: block\n  activations_checkpoint_num_layers: 0"), 16, "megatron",
         Parallelism(shards=2, tensor=4, sequence=True, zero=1, recompute="selective",
                     recompute_modules=("core_attn",), micro_batches=64), 128, 8192, 2),
        (NEMO.replace("granularity: null", "granularity: full\n  activations_checkpoint_method: "
                      "uniform\n  activations_checkpoint_num_layers: 1"), 16, "megatron",
         Parallelism(shards=2, tensor=4, sequence=True, zero=1, recompute="full",
                     micro_batches=64), 128, 8192, 2),
        (BRIDGE, 8, "megatron",
         Parallelism(shards=4, tensor=2, sequence=True, zero=1, micro_batches=8), 32, 4096, 1),
        (PRIMUS, 8, "megatron", Parallelism(shards=8, zero=1, micro_batches=2), 32, 8192, 1),
        (PRIMUS.partition("overrides")[0] + "overrides: {tensor_model_parallel_size: 2}\n", 8,
         "megatron", Parallelism(shards=4, tensor=2, sequence=True, zero=1, micro_batches=2),
         16, 1024, 1),
        ("modules: {pre_trainer: {framework: maxtext, overrides: {ici_fsdp_parallelism: 8,"
         " per_device_batch_size: 4}}}\n", 8, "maxtext",
         Parallelism(shards=8, zero=3, recompute="full"), 32, 2048, 1),
        (RECIPE, 8, "megatron",
         Parallelism(replicas=4, tensor=2, sequence=True, micro_batches=2), 32, None, 1),
        (AXOLOTL, 8, "accelerate",
         Parallelism(shards=8, zero=3, recompute="full", micro_batches=4), 64, 4096, 1),
        (FACTORY, 8, "accelerate",
         Parallelism(replicas=8, recompute="full", micro_batches=2), 16, 2048, 1),
        (ZERO3, 8, "deepspeed", Parallelism(shards=8, zero=3), 8, None, 1),
        (MICS, 64, "deepspeed", Parallelism(replicas=8, shards=8, zero=3), 64, None, 1),
        (MAXTEXT, 64, "maxtext",
         Parallelism(replicas=2, shards=16, tensor=2, zero=3, recompute="selective"), 32, 8192, 1),
        (MAXTEXT.partition("dcn_data")[0].replace("0.5", "1"), 64, "maxtext",
         Parallelism(replicas=8, shards=8, zero=3, recompute="selective"), 64, 8192, 1),
        (MAXTEXT.replace("minimal_flash", "none"), 64, "maxtext",
         Parallelism(replicas=2, shards=16, tensor=2, zero=3), 32, 8192, 1),
        ("base_config: base.yml\nper_device_batch_size: 2\nici_fsdp_parallelism: 1\n"
         "ici_data_parallelism: -1\nshard_optimizer_over_data: true\n", 8, "maxtext",
         Parallelism(shards=8, zero=1, recompute="full"), 16, 2048, 1),
        (MEGATRON_LM, 8, "megatron",
         Parallelism(shards=4, tensor=2, sequence=True, zero=1, recompute="selective",
                     recompute_modules=("core_attn",), micro_batches=2), None, None, 1),
    ],
)  # fmt: skip
def test_what_a_file_says(
    tmp_path: Path,
    text: str,
    gpus: int,
    trainer: str,
    parallelism: Parallelism,
    batch: int | None,
    length: int | None,
    stages: int,
) -> None:
    found = read(text, gpus, tmp_path)
    assert (found.trainer, found.parallelism) == (trainer, parallelism)
    assert (found.batch, found.sequence_length, found.stages) == (batch, length, stages)


def test_truths_in_quotes_are_truths(tmp_path: Path) -> None:
    for word, is_so in (("true", True), ('"True"', True), ('"false"', False), ("no", False)):
        text = BRIDGE.replace("sequence_parallel: true", f"sequence_parallel: {word}")
        assert read(text, 8, tmp_path).parallelism.sequence is is_so, word


def test_what_was_reported_has_its_test() -> None:
    for what, test in REPORTED.items():
        module, _, name = test.partition("::")
        text = (TESTS / MODULES.get(module, module)).read_text("utf-8")
        assert f"def {name}" in text, what


def test_samples_have_had_two_names(tmp_path: Path) -> None:
    former = (
        "[training]\nbatch_size = 1\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 1\n"
    )
    assert read(former, 64, tmp_path).batch == 64
    assert read(former.replace("batch_size", "local_batch_size"), 64, tmp_path).batch == 64
    with pytest.raises(BadInput, match="one of the two"):
        read(former.replace("batch_size", "local_batch_size = 1\nbatch_size"), 64, tmp_path)


@pytest.mark.parametrize(
    ("text", "gpus", "stated", "left_out"),
    [
        (TITAN_2024 + "[compile]\nenable = true\n", 64,
         {"framework": "compiled", "optimizer": "adam"}, []),
        (TITAN_2024 + '[compile]\nenable = true\ncomponents = ["model"]\n', 64,
         {"framework": "compiled", "loss": "eager", "optimizer": "adam"}, []),
        (TITAN_2024.replace("batch_size = 2", "batch_size = 2\nenable_cpu_offload = true"), 64,
         {"optimizer": "adam"}, ["training.enable_cpu_offload"]),
        (TITAN_2024.replace('"AdamW"', '"AdamW"\nfused = true\nearly_step_in_backward = true'), 64,
         {"optimizer": "adam", "update": "fused"}, ["optimizer.early_step_in_backward"]),
        (TITAN_2025, 8, {"optimizer": "adam", "update": "fused"}, []),
        (TITAN_2025 + "enable_async_tensor_parallel = true\n", 8,
         {"optimizer": "adam", "update": "fused"}, ["parallelism.enable_async_tensor_parallel"]),
        (TITAN_2025 + '[optimizer]\nimplementation = "foreach"\n', 8,
         {"optimizer": "adam", "update": "foreach"}, []),
        (TITAN_2025.replace("seq_len", 'dtype = "bfloat16"\nseq_len'), 8,
         {"optimizer": "adam", "update": "fused", "state": "captured"}, []),
        (NEMO, 16,
         {"framework": "megatron-core", "gradients": "float32", "optimizer": "adam"}, []),
        (NEMO.replace("distributed_fused_adam", "mcore_distributed_optim, grad_sync_dtype: bf16"),
         16, {"framework": "megatron-core", "optimizer": "adam"}, []),
        (AXOLOTL, 8, {"optimizer": "adam", "update": "fused"}, ["fsdp offloading"]),
        (LIGER, 1,
         {"optimizer": "adam", "update": "fused", "kernels": "fused", "loss": "eager"}, []),
        (LIGER + "liger_fused_linear_cross_entropy: true\n", 1,
         {"optimizer": "adam", "update": "fused", "kernels": "fused", "loss": "chunked"}, []),
        (LIGER.replace("liger_glu_activation", "liger_cross_entropy"), 1,
         {"optimizer": "adam", "update": "fused", "loss": "in-place"}, []),
        (CUT, 8, {"optimizer": "adam", "update": "fused", "loss": "chunked"}, ["fsdp offloading"]),
        (CUT + "cut_cross_entropy: false\n", 8, {"optimizer": "adam", "update": "fused"},
         ["fsdp offloading"]),
        (FACTORY, 8, {"optimizer": "adam", "state": "8bit"}, []),
        (FACTORY + "enable_liger_kernel: true\n", 8,
         {"optimizer": "adam", "state": "8bit", "kernels": "fused", "loss": "chunked"}, []),
        (FACTORY.replace("adamw_8bit", "adamw_torch\npure_bf16: true"), 8,
         {"optimizer": "adam", "state": "captured"}, []),
        (FACTORY.replace("optim: adamw_8bit", "use_muon: true"), 8, {"optimizer": "momentum"}, []),
        (AXOLOTL.partition("fsdp_config")[0] + "bf16: auto\n", 8,
         {"optimizer": "adam", "update": "fused", "state": "captured"}, []),
        (SGD.replace('"SGD"', '"AdamW"').replace(' "data_types"', ' "bf16": {"enabled": true,'
         ' "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}, "data_types"'),
         8, {"gradients": "float32", "state": "16:16:16", "optimizer": "adam"}, []),
        (SGD.replace('"SGD"', '"Adam"').replace(' "data_types"', ' "fp16": {"enabled": true,'
         ' "fp16_master_weights_and_grads": true}, "data_types"'),
         8, {"gradients": "float32", "state": "16:32:32", "optimizer": "adam"}, []),
        (MICS, 64, {}, ["zero_optimization.zero_quantized_weights"]),
        (SGD, 8, {"gradients": "float32", "optimizer": "sgd"}, []),
        (FSDP, 2, {}, ["fsdp_config.fsdp_offload_params"]),
        (PLUGIN, 2, {"offload": "states"}, ["deepspeed_config.offload_param_device"]),
        (MEGATRON_LM, 8, {"framework": "megatron-core", "gradients": "float32"}, []),
        (MAXTEXT + "quantization: fp8\nweight_dtype: bfloat16\n", 64,
         {"framework": "compiled", "optimizer": "adam", "state": "captured",
          "precision": "fp8:delayed"}, []),
        (MAXTEXT + "mu_dtype: bfloat16\n", 64,
         {"framework": "compiled", "optimizer": "adam", "state": "32:16:32"}, []),
        (NANOTRON, 8, {"gradients": "float32", "optimizer": "adam"}, []),
        (PRECISE, 8, {"framework": "megatron-core", "optimizer": "adam", "state": "16:16:8"}, []),
        (PRECISE.replace("--bf16", "--fp16").replace("--main-grads-dtype bf16", ""), 8,
         {"framework": "megatron-core", "optimizer": "adam", "state": "32:16:8"}, []),
    ],
)  # fmt: skip
def test_what_changes_memory_is_stated_or_named(
    tmp_path: Path, text: str, gpus: int, stated: dict[str, str], left_out: list[str]
) -> None:
    found = read(text, gpus, tmp_path)
    assert found.stated == stated
    assert [line.partition(":")[0] for line in found.left_out] == left_out


def test_what_bears_on_memory_is_listed_by_name(tmp_path: Path) -> None:
    more = AXOLOTL + "unfrozen_parameters: [lm_head]\ntiled_mlp: true\n"
    assert {"unfrozen_parameters", "tiled_mlp"} <= set(read(more, 8, tmp_path).unread)
    inner = (
        FACTORY + "deepspeed: {zero_optimization: {stage: 3}, torch_autocast: {enabled: true}}\n"
    )
    found = read(inner, 8, tmp_path)
    assert found.parallelism.zero == 3
    assert "deepspeed.torch_autocast.enabled" in found.unread


def test_kernels_of_liger_alone_are_named(tmp_path: Path) -> None:
    unread = read(LIGER.replace("liger_glu_activation: true", ""), 1, tmp_path).unread
    assert "liger_rms_norm: priced as eager operators" in unread and "liger_rope" in unread


def test_a_file_without_a_strategy_says_that_it_is_data_parallelism(tmp_path: Path) -> None:
    assert read(FACTORY, 8, tmp_path).unread[0].startswith("no fsdp and no deepspeed: read as data")
    assert not any("no fsdp" in line for line in read(FACTORY, 1, tmp_path).unread)


def test_float32_products_of_torchtitan_are_named(tmp_path: Path) -> None:
    wide = TITAN_2025.replace("seq_len", 'mixed_precision_param = "float32"\nseq_len')
    assert any("mixed_precision_param float32" in line for line in read(wide, 8, tmp_path).unread)
    assert not read(TITAN_2025, 8, tmp_path).unread


def test_unknown_keys_of_inner_mappings_are_listed(tmp_path: Path) -> None:
    assert "fsdp_config.fsdp_of_tomorrow" in read(FSDP, 2, tmp_path).unread
    many = FSDP + "".join(f"  key_{number}: 1\n" for number in range(100))
    unread = read(many, 2, tmp_path).unread
    assert len(unread) == MOST_UNREAD and unread[-1].startswith("and 6") and "more" in unread[-1]


@pytest.mark.parametrize(
    ("text", "gpus", "match"),
    [
        (TITAN_2024.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 3"), 64,
         "training.tensor_parallel_degree"),
        (TITAN_2024.replace("context_parallel_degree = 1", "context_parallel_degree = 3"), 64,
         "experimental.context_parallel_degree: 64 GPUs do not divide by 3"),
        (NEMO.replace("context_parallel_size: 1", "context_parallel_size: 3"), 16,
         "model.context_parallel_size: 2 GPUs do not divide by 3"),
        (NEMO, 8, "trainer.devices"),
        (AXOLOTL + "adapter: llama-adapter\n", 8, "adapter: got .llama-adapter.* other adapters"),
        (AXOLOTL + "adapter: qlora\nlora_r: 8\n", 8, "lora_target_modules: not given"),
        (AXOLOTL + "adapter: lora\nlora_target_linear: true\n", 8, "lora_r: not given"),
        (AXOLOTL + "adapter: lora\nlora_r: 0\nlora_target_linear: true\n", 8, "lora_r"),
        (AXOLOTL + "adapter: lora\nlora_r: 8\nlora_target_modules: '(a|b)$'\n", 8,
         "lora_target_modules: got"),
        (AXOLOTL + "load_in_4bit: true\n", 8, "load_in_4bit: weights in few bits"),
        (AXOLOTL.replace("fsdp_config", "deepspeed: ds/zero3.json\nfsdp_config"), 8,
         "deepspeed: names another file"),
        (FACTORY.replace("full", "freeze"), 8, "finetuning_type: got 'freeze'.*frozen parts"),
        (FACTORY.replace("full", "lora") + "quantization_bit: 3\n", 8, "quantization_bit: got 3"),
        (FACTORY.replace("sft", "dpo"), 8, "stage: got 'dpo' .*a second model"),
        (AXOLOTL + "rl: kto\n", 8, "rl: got 'kto' .*a second model"),
        (FACTORY + "sequence_parallel_size: 2\n", 8, "sequence_parallel_size: got 2"),
        (NEOX, 8, "it looks like GPT-NeoX's"),
        ("#!/bin/sh\nC=job.toml\ntorchrun -m torchtitan.train --job.config_file $C --a.b 2\n", 8,
         "a launch with --job.config_file .C .expected that file"),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json --bf16\n", 8,
         "a launch with --deepspeed ds.json"),
        (FACTORY + "use_galore: true\n", 8, "use_galore: how much state it keeps"),
        ("model: x\nmodel_class: llm\ndist_config: {name: fsdp2}\n", 8, "LLaMA-Factory v1's"),
        (SGD.replace('"SGD"', '"OneBitAdam"'), 8, "optimizer.type.*state"),
        (PRECISE.replace("--use-precision-aware-optimizer", ""), 8,
         "--exp-avg-dtype: got 'bf16', which Megatron takes only with --use-precision-aware"),
        (PRECISE.replace("--bf16", "--bf16 --main-params-dtype fp8"), 8, "main-params-dtype: got"),
        (PRECISE + " --encoder-tensor-model-parallel-size 2\n", 8,
         "--encoder-tensor-model-parallel-size: got 2"),
        (PRECISE + " --yaml-cfg gpt.yaml\n", 8, "--yaml-cfg: names another file"),
        (PRECISE.replace("--bf16", "--bf16 --mtp-num-layers 1"), 8,
         "--mtp-num-layers: got 1: each adds a layer"),
        ("#SBATCH --nodes=1\nsrun torchrun train.py --num_layers=32 --train_batch_size=1\n", 8,
         "launch script of a program that is not read"),
        ("model: {name: x}\ntraining: {steps: 3}\n", 8, "not a configuration of a trainer"),
        ("type: sft\nmodel: {name_or_path: x}\ndeepspeed: {zero_optimization: {stage: 3}}\n", 8,
         "ArcticTraining"),
        (MAXTEXT + "ici_pipeline_parallelism: 2\n", 64, "ici_pipeline_parallelism: got 2"),
        (MAXTEXT + "ici_pipeline_parallelism: -1\n", 64, "ici_pipeline_parallelism"),
        (MAXTEXT + "dcn_tensor_parallelism: 3\n", 64, "dcn_fsdp_parallelism"),
        (MAXTEXT.replace("0.5", "0.3"), 64, "per_device_batch_size: 0.3 on 64"),
        (MAXTEXT.replace("minimal_", "minmal_"), 64, "remat_policy: got 'minmal_flash' .*minimal"),
        ("[distributed]\ndp_shard = 4\ntp = 2\n[train]\nbatch_size = 1\n", 8, "KempnerForge"),
        ("per_device_train_batch_size: 4\nfp16: true\n", 8, "transformers' Trainer"),
    ],
)  # fmt: skip
def test_what_is_not_priced_is_refused_by_name(
    tmp_path: Path, text: str, gpus: int, match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        read(text, gpus, tmp_path)


@pytest.mark.parametrize(
    ("text", "tune", "left_out"),
    [
        (
            AXOLOTL + "adapter: lora\nlora_r: 32\nlora_target_linear: true\n",
            "lora:32:all-linear",
            [],
        ),
        (
            AXOLOTL + "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_dropout: 0.05\n"
            "lora_target_modules: [q_proj, v_proj]\n",
            "qlora:8:q_proj,v_proj",
            ["lora_dropout: priced without it"],
        ),
        (
            AXOLOTL + "adapter: lora\nload_in_8bit: true\nlora_r: 8\nlora_target_linear: true\n",
            "lora-8bit:8:all-linear",
            [],
        ),
        (FACTORY.replace("finetuning_type: full\n", ""), "lora:8:all-linear", []),
        (
            FACTORY.replace("full", "lora")
            + "lora_target: q_proj,v_proj\nlora_rank: 16\nquantization_bit: 4\n",
            "qlora:16:q_proj,v_proj",
            [],
        ),
    ],
)
def test_files_of_adapters_are_priced(
    text: str, tune: str, left_out: list[str], tmp_path: Path
) -> None:
    found = read(text, 1, tmp_path)
    assert found.stated["tune"] == tune
    assert [line for line in found.left_out if line.startswith("lora")] == left_out
    assert not any(word in line for word in ("lora", "quantization") for line in found.unread)
