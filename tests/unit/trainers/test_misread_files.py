"""Files that other readers take otherwise: nothing in them may be passed over in silence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.read import configuration_of, read_configuration

TITAN = """
[training]
local_batch_size = 2
[parallelism]
tensor_parallel_degree = 2
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
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
        ("trainer: {num_nodes: 2, devices: 4, strategy: fsdp}\n", "PyTorch Lightning's"),
        ("trainer: {strategy: {tensor_model_parallel_size: 2}}\nmodel: {}\n", "NeMo 2's"),
    ],
)  # fmt: skip
def test_what_programs_do_not_take_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        read(text, tmp_path)


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
