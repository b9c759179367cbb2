"""Files that other readers take otherwise: nothing in them may be passed over in silence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.hardware import load_hardware
from shardwise.trainers.configuration import Configuration, Launched
from shardwise.trainers.launched import differing
from shardwise.trainers.read import configuration_of, read_configuration

TITAN = """
[training]
local_batch_size = 2
[parallelism]
tensor_parallel_degree = 2
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
AXOLOTL = "base_model: m\nsequence_len: 2048\nmicro_batch_size: 2\nbatch_size: 8\n"
BRIDGE = """
model: {tensor_model_parallel_size: 2, seq_length: 4096, _target_: llama.Provider, num_layers: 32,
  hidden_size: 4096, num_attention_heads: 32, vocab_size: 128256}
train: {micro_batch_size: 1, global_batch_size: 64}
mixed_precision: {bf16: true}
ddp: {grad_reduce_in_fp32: true}
"""
NANOTRON = (
    "parallelism: {dp: 4, tp: 2}\ntokens: {sequence_length: 2048, micro_batch_size: 2}\n"
    "optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}\n"
)
FACTORY = (
    "model_name_or_path: m\nstage: sft\nfinetuning_type: full\ncutoff_len: 4096\n"
    "per_device_train_batch_size: 2\n"
)
MAXTEXT = "ici_fsdp_parallelism: 8\nper_device_batch_size: 2\nmax_target_length: 8192\n"
FSDP = ACCELERATE + "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"
PLUGIN = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
    "deepspeed_config: {zero_stage: 3}\n"
)
NEMO = """
trainer: {devices: 8, num_nodes: 1, max: 2}
sizes: {micro: '${trainer.max}'}
model:
  tensor_model_parallel_size: ${oc.env:TP,4}
  sequence_parallel: ${.own}
  own: false
  micro_batch_size: ${..sizes.micro}
  global_batch_size: 64
"""


def read(text: str, tmp_path: Path) -> Configuration:
    file = tmp_path / "given"
    file.write_bytes(text.encode())
    return read_configuration(file, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '// ours\n{\n  /* ZeRO */ "zero_optimization": {"stage": 3,}, # "stage": 1\n'
            '  "train_batch_size": 8, "tensorboard": {"output_path": "a//b, }#c"},\n}\n',
            Parallelism(shards=8, zero=3),
        ),
        ('\ufeff{"train_batch_size": 8}', Parallelism(replicas=8)),
        (TITAN.replace("\n", "\r\n"),
         Parallelism(shards=4, tensor=2, sequence=True, zero=3, recompute="full",
                     recompute_every=2)),
        (ACCELERATE + "fsdp_config: {sharding_strategy: shard_grad_op}\n",
         Parallelism(shards=8, zero=2)),
        (ACCELERATE + "fsdp_config: {version: 2, activation_checkpointing: true}\n",
         Parallelism(shards=8, zero=3, recompute="full")),
        (NEMO, Parallelism(replicas=2, tensor=4, micro_batches=16)),
        (NEMO.replace("${oc.env:TP,4}", "${NEMO_TP:2}").replace("own: false", "own: 1"),
         Parallelism(replicas=4, tensor=2, sequence=True, micro_batches=8)),
        (NEMO.replace("own: false", "own: 0"), Parallelism(replicas=2, tensor=4, micro_batches=16)),
        (AXOLOTL + "fsdp: no_shard\n", Parallelism(replicas=8, micro_batches=4)),
        (AXOLOTL + "fsdp: [shard_grad_op, auto_wrap]\nfsdp_config: {sharding_strategy: "
         "SHARD_GRAD_OP}\n", Parallelism(shards=8, zero=2, micro_batches=4)),
        (AXOLOTL + "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
         Parallelism(shards=8, zero=2, micro_batches=4)),
        (AXOLOTL + "tensor_parallel_size: 2\ndeepspeed: {zero_optimization: {stage: 2}}\n",
         Parallelism(shards=4, tensor=2, zero=2, micro_batches=4)),
        (AXOLOTL + "gradient_checkpointing: 'False'\n", Parallelism(replicas=8, micro_batches=4)),
        (AXOLOTL + "gradient_checkpointing: 'true'\n",
         Parallelism(replicas=8, micro_batches=4, recompute="full")),
    ],
)  # fmt: skip
def test_what_programs_take_is_read(tmp_path: Path, text: str, expected: Parallelism) -> None:
    assert read(text, tmp_path).parallelism == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"train_batch_size": 8, "train_batch_size": 16}', "'train_batch_size' occurs twice"),
        ('{\n  // ours\n  "train_batch_size": }', "broken JSON: .*line 3"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": "auto"}}', "stage: got 'auto'"),
        ('{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2,'
         ' "gradient_accumulation_steps": 1}',
         "got 32, beside 2 samples × 1 steps × 8 devices .expected 16"),
        (TITAN + "tensor_parallel_degree = 4\n", "broken TOML: Cannot overwrite a value"),
        (TITAN + "[job]\ntensor_parallel_degree = 4\n", "job.tensor_parallel_degree: a degree"),
        ("pipeline_parallel_degree = 4\n" + TITAN, "pipeline_parallel_degree: a degree outside"),
        (ACCELERATE + "parallelism_config: {tp_size: 2}\n", "expected parallelism_config_tp_size"),
        (ACCELERATE + "fsdp_config: {fsdp_sharding_strategy: whole}\n", "got 'whole'"),
        (ACCELERATE + "use_cpu: true\n", "use_cpu: training on CPUs"),
        (NEMO.replace("own: false", "own: '${multiply:2,0}'"),
         "model.sequence_parallel: got .*which the file does not resolve"),
        (NEMO.replace("${..sizes.micro}", "${..sizes.macro}"), "model.micro_batch_size: got .*not"),
        (NEMO.replace("own: false", "own: ${.sequence_parallel}"), "model.sequence_parallel: got"),
        (AXOLOTL + "gradient_accumulation_steps: 2\n", "batch_size: given beside gradient_acc"),
        (AXOLOTL + "fsdp: full_shard\nfsdp_config: {sharding_strategy: SHARD_GRAD_OP}\n",
         "got 'shard_grad_op' beside fsdp: full_shard .expected FULL_SHARD"),
        ("parallelism: {dp: 4, tp: 2, pp: 1, cp: 2}\n", "parallelism.cp: nanotron has no such"),
        (AXOLOTL + "dp_shard_size: 8\ndeepspeed: {zero_optimization: {stage: 2}}\n",
         "dp_shard_size: given beside deepspeed"),
        (FSDP.replace("version: 2", "version: 3"), "fsdp_version: got 3 .expected 1 to 2"),
        (ACCELERATE + "mixed_precision: bf-16\n", "got 'bf-16' .expected no or fp16 or bf16"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer":'
         ' {"device": "cpus"}}}', "offload_optimizer.device: got 'cpus' .expected none, cpu"),
        (TITAN.replace("degree = 2", "degree = 99999999999999"), "expected 1 to 1073741824"),
        ("trainer: {num_nodes: 2, devices: 4, strategy: fsdp}\n", "PyTorch Lightning's"),
        ("trainer: {strategy: {tensor_model_parallel_size: 2}}\nmodel: {}\n", "NeMo 2's"),
    ],
)  # fmt: skip
def test_what_programs_do_not_take_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        read(text, tmp_path)


def test_shards_of_hybrid_sharding_stay_in_nodes() -> None:
    found = configuration_of(AXOLOTL + "fsdp: hybrid_shard auto_wrap\n", 16, "given")
    assert (found.parallelism.replicas, found.parallelism.shards) == (2, 8)
    assert any("nodes of 8 GPUs" in line for line in found.unread)


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (AXOLOTL, "micro_batch_size", "micro_batch_szie"),
        (AXOLOTL + "gradient_checkpointing: true\n", "gradient_checkpointing",
         "gradient_checkpoint"),
        (AXOLOTL + "fsdp: [full_shard]\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n",
         "fsdp_sharding_strategy", "fsdp_sharding_stratgy"),
        (FACTORY, "per_device_train_batch_size", "per_device_train_batchsize"),
        (FACTORY, "cutoff_len", "cut_off_len"),
        (NANOTRON, "micro_batch_size", "micro_batchsize"),
        (NANOTRON, "zero_stage", "zero_stages"),
        (NANOTRON, "accumulate_grad_in_fp32", "accumulate_grads_in_fp32"),
        (MAXTEXT, "max_target_length", "max_targt_length"),
        (MAXTEXT, "ici_fsdp_parallelism: 8", "ici_fdsp_parallelism: 8\nici_data_parallelism: 1"),
        (FSDP, "fsdp_reshard_after_forward", "fsdp_reshard_after_foward"),
        (PLUGIN, "zero_stage", "zero_stages"),
        (NEMO, "global_batch_size", "global_batchsize"),
        (TITAN, "local_batch_size", "local_bacth_size"),
    ],
)  # fmt: skip
def test_a_misspelt_key_is_no_default(tmp_path: Path, text: str, right: str, wrong: str) -> None:
    read(text, tmp_path)
    with pytest.raises(BadInput, match="did you mean"):
        read(text.replace(right, wrong, 1), tmp_path)


def test_a_length_by_another_name_is_seen(tmp_path: Path) -> None:
    text = TITAN.replace("[parallelism]", "sequence = 4096\n[parallelism]")
    assert read(text, tmp_path).unread == [
        "training.seq_len: not given, read as torchtitan's 2048", "training.sequence"
    ]  # fmt: skip


ADAPTER = (
    '{"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 32,'
    ' "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "lora_dropout": 0.1, "bias": "none"}'
)


def test_adapters_of_peft_are_read(tmp_path: Path) -> None:
    found = read(ADAPTER, tmp_path)
    assert found.stated == {"tune": "lora:16:q_proj,v_proj"}
    assert found.named.name == "meta-llama/Llama-3.1-8B"
    assert found.left_out == ["lora_dropout: priced without it"]
    assert found.parallelism == Parallelism(replicas=8) and len(found.unread) == 1
    every = ADAPTER.replace('["q_proj", "v_proj"]', '"all-linear"')
    assert read(every, tmp_path).stated == {"tune": "lora:16:all-linear"}


@pytest.mark.parametrize(
    ("right", "wrong", "match"),
    [
        ('"LORA"', '"LOHA"', "peft_type: got 'LOHA' .expected LORA"),
        ('"r": 16', '"r": "many"', "r: got 'many' .expected a whole number"),
        ('"r": 16, ', "", "r: not given"),
        ('["q_proj", "v_proj"]', '"(q|v)_proj$"', "target_modules: got"),
        ('["q_proj", "v_proj"]', "[]", "target_modules: not given"),
    ],
)  # fmt: skip
def test_other_adapters_of_peft_are_refused(
    tmp_path: Path, right: str, wrong: str, match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        read(ADAPTER.replace(right, wrong), tmp_path)


LAUNCH = " pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64\n"


@pytest.mark.parametrize(
    ("text", "devices", "nodes", "fields"),
    [
        ("torchrun --nproc_per_node 8 --nnodes=2" + LAUNCH, 16, 2,
         "--nnodes 2 × --nproc_per_node 8"),
        ("GPUS=8\nNODES=${NODES:-4}\nRUN=(--nproc-per-node $GPUS --nnodes $NODES)\n"
         "torchrun ${RUN[@]}" + LAUNCH, 32, 4, "--nnodes 4 × --nproc-per-node 8"),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:h100:4\nsrun torchrun --nnodes $SLURM_NNODES" + LAUNCH,
         16, 4, "-N 4 × --gres 4"),
        ("srun --nodes=2 --gpus-per-node=h100:4 python" + LAUNCH, 8, 2,
         "--nodes 2 × --gpus-per-node 4"),
        ("torchrun --nproc-per-node=8" + LAUNCH, 8, None, "--nproc-per-node 8"),
        ("WORLD_SIZE=$((2 * 8))\npython" + LAUNCH, 16, None, "WORLD_SIZE 16"),
        (ACCELERATE + "num_machines: 2\n", 8, 2, "num_machines 2"),
        (NEMO.replace("devices: 8, num_nodes: 1", "devices: [0, 1, 2, 3], num_nodes: 2"), 8, 2,
         "trainer.num_nodes 2 × trainer.devices 4"),
    ],
)  # fmt: skip
def test_what_a_file_launches_is_known(
    tmp_path: Path, text: str, devices: int, nodes: int | None, fields: str
) -> None:
    assert read(text, tmp_path).launched == Launched(devices, nodes, fields)


@pytest.mark.parametrize(
    "run",
    ["torchrun --nproc-per-node=auto", "torchrun --nnodes 1:4 --nproc-per-node 2",
     "torchrun --nnodes $N --nproc-per-node 8", "mpirun -N 4 python"],
)  # fmt: skip
def test_what_a_file_leaves_open_is_not_compared(tmp_path: Path, run: str) -> None:
    assert read(run + LAUNCH, tmp_path).launched is None


def test_other_devices_than_those_asked_about_are_named(tmp_path: Path) -> None:
    machine = load_hardware("dgx-h100")
    two = read("torchrun --nproc_per_node 4 --nnodes 2" + LAUNCH, tmp_path)
    (line,) = differing(two, machine, 8)
    assert line == (
        "the file launches 2 nodes (--nnodes 2 × --nproc_per_node 4); priced on 1 node of dgx-h100"
    )
    (line,) = differing(two, machine, 16)
    assert "launches 8 GPUs (--nnodes 2 × --nproc_per_node 4); priced on 16, as asked" in line
    assert differing(read(ACCELERATE + "num_machines: 1\n", tmp_path), machine, 8) == []


def test_batches_that_grow_are_priced_at_their_end(tmp_path: Path) -> None:
    grown = "torchrun" + LAUNCH[:-1] + " --rampup-batch-size 16 8 1000\n"
    (note,) = read(grown, tmp_path).unread
    assert note == "--rampup-batch-size: batches grow from 16 to 64, of which the step is priced"
    for wrong, match in (("16 8", "got 2 values"), ("16 10 1000", "48 samples of growth")):
        with pytest.raises(BadInput, match=match):
            read(grown.replace("16 8 1000", wrong), tmp_path)


def test_one_of_two_forms_of_shards_is_named(tmp_path: Path) -> None:
    zero = '"stage": 3, "mics_shard_size": 4, "zero_hpz_partition_size": 2'
    found = read(f'{{"train_batch_size": 8, "zero_optimization": {{{zero}}}}}', tmp_path)
    assert (found.parallelism.replicas, found.parallelism.shards) == (2, 4)
    assert any("beside mics_shard_size: read as the shards of MiCS" in one for one in found.unread)


def test_sections_of_bridge_say_what_gradients_add_up_in(tmp_path: Path) -> None:
    found = read(BRIDGE, tmp_path)
    assert found.stated["gradients"] == "float32"
    assert found.named.missing and not found.named.config
    narrow = BRIDGE.replace("bf16: true", "bf16: true, grad_reduce_in_fp32: false")
    assert "gradients" not in read(narrow.partition("ddp")[0], tmp_path).stated
    built = read(BRIDGE.replace("_target_: llama.Provider, ", ""), tmp_path)
    assert built.named.config == "GPT2Config"


def test_a_strategy_that_a_launch_does_not_use_is_named(tmp_path: Path) -> None:
    found = read(ACCELERATE + "fsdp_config: {reshard_after_forward: SHARD_GRAD_OP}\n", tmp_path)
    assert found.parallelism.zero == 3
    assert any("reshard_after_forward SHARD_GRAD_OP: read as FULL_SHARD" in u for u in found.unread)


@pytest.mark.parametrize("part", ["/*", '\\"', "//", '"', " ", ",", "/* */", "#", "[a\n", "a=\n"])
def test_no_comment_takes_long(part: str) -> None:
    before = time.process_time()
    for begin in ("{", "", "/*"):
        with pytest.raises(BadInput):
            configuration_of(begin + part * 100_000, 8, "given")
    assert time.process_time() - before < 5


ARGUMENTS = ["--micro-batch-size", "2", "--global-batch-size", "64", "--bf16"]


@pytest.mark.parametrize(
    "text",
    [json.dumps(ARGUMENTS), "".join(f"- {one}\n" for one in ARGUMENTS),
     "".join(f"- '{one}'\n" for one in ARGUMENTS), " ".join(ARGUMENTS)],
    ids=["json", "yaml", "quoted", "words"],
)  # fmt: skip
def test_arguments_in_a_list_are_read(tmp_path: Path, text: str) -> None:
    found = read(text, tmp_path)
    assert (found.batch, found.parallelism.micro_batches) == (64, 4)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("torchrun train.py # --micro-batch-size 2\n", "names flags of Megatron and gives none"),
        ('{"model_type": "llama", "hidden_size": 64}', "of a model, not of a trainer"),
        ("torchrun" + LAUNCH[:-1] + " --fp8-format hybird\n", "got 'hybird' .expected e4m3 or"),
        ("torchrun" + LAUNCH[:-1] + " --context-parallel-size 2 --cp-comm-type p2p a2a\n",
         "--cp-comm-type: got a2a p2p .expected one form"),
    ],
)  # fmt: skip
def test_what_is_no_launch_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        read(text, tmp_path)
