"""The trainers' own parsers take what is written for them, as far as they are installed here.

accelerate comes with the extra `dev`; the others are checked where somebody has installed them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch.distributed.pipelining.schedules import get_schedule_class

from harness.trainer_plans import plan_of
from shardwise.advise import Options
from shardwise.capture import shipped_graph
from shardwise.documents import Pipeline
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.trainers.formats import TRAINERS, write_for
from shardwise.trainers.plan_pipeline import pipeline_for

STRATEGIES = (
    Parallelism(replicas=4, micro_batches=2),
    Parallelism(shards=4, zero=1),
    Parallelism(shards=8, zero=2, micro_batches=4),
    Parallelism(replicas=2, shards=4, zero=3, recompute="full"),
    Parallelism(shards=4, tensor=2, sequence=True, zero=1, recompute="selective"),
    Parallelism(shards=4, tensor=2, sequence=True, zero=3, recompute="full"),
    Parallelism(shards=4, tensor=2, zero=3, recompute="full"),
    Parallelism(replicas=2, shards=4, zero=1),
    Parallelism(tensor=8, sequence=True),
)


def installed(module: str) -> ModuleType:
    """Returns a trainer's module, or skips the test."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module.partition('.')[0]} is not installed: {error}")


def texts(trainer: str) -> list[tuple[Parallelism, str]]:
    """Returns the strategies of this page that the trainer can say, with what is written."""
    pairs = []
    for parallelism in STRATEGIES:
        plan = plan_of(parallelism, graph_name="llama3-8b", sequence_length=8192)
        try:
            pairs.append((parallelism, write_for(plan, trainer).text))
        except BadInput:
            continue
    assert len(pairs) >= 3
    return pairs


def test_torchtitan_s_configuration(tmp_path: Path) -> None:
    config = titan_config()
    file = tmp_path / TRAINERS["torchtitan"].filename
    for parallelism, text in texts("torchtitan"):
        job = parsed_by_titan(config, text, file)
        assert job.parallelism.data_parallel_shard_degree == parallelism.shards
        assert job.parallelism.data_parallel_replicate_degree == parallelism.replicas
        assert job.parallelism.tensor_parallel_degree == parallelism.tensor
        samples = 2 * parallelism.data * parallelism.micro_batches
        if hasattr(job.training, "seq_len"):
            assert job.training.global_batch_size == samples
            assert job.training.seq_len == 8192
        else:
            assert job.training.num_tokens_per_train_step == samples * 8192
            assert job.training.max_context_length == 8192


def titan_config() -> ModuleType:
    """Returns torchtitan's configuration module; from 0.3 it is made in code, by its trainer."""
    config = installed("torchtitan.config")
    if not hasattr(config, "JobConfig"):
        installed("torchtitan.trainer")
    return config


def parsed_by_titan(config: ModuleType, text: str, file: Path) -> Any:
    """Returns what torchtitan's own manager reads, of the TOML or of its release's flags."""
    file.write_text(text)
    arguments = ["--job.config_file", str(file)]
    if not hasattr(config, "JobConfig"):
        fields = {one.name for one in dataclasses.fields(config.TrainingConfig)}
        release = "0.3.0" if "seq_len" in fields else "main"
        (line,) = (one for one in text.splitlines() if one.startswith(f"# torchtitan {release}"))
        arguments = shlex.split(line.partition("torchtitan.train ")[2])
    return config.ConfigManager().parse_args(arguments)


@cache
def two_stages() -> Pipeline:
    """GPT-2 in two stages of two devices, eight micro-batches of four samples on each device."""
    graph, machine = read_graph(shipped_graph("gpt2")), load_hardware("dgx-h100")
    options = Options(micro_batches=(8,), zero=(2,), recompute="never")
    return pipeline_for(graph, machine, 4, "torchtitan", stages=(2,), options=options)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_torchtitan_s_pipelines(schedule: str, tmp_path: Path) -> None:
    config = titan_config()
    file = tmp_path / TRAINERS["torchtitan"].filename
    planned = replace(two_stages(), schedule=schedule, graph_name="llama3-8b")
    job = parsed_by_titan(config, write_for(planned, "torchtitan").text, file)
    assert getattr(job.training, "disable_cuda_graphs", True)
    degrees = job.parallelism
    assert degrees.pipeline_parallel_degree == 2
    assert degrees.pipeline_parallel_schedule.lower() == schedule
    assert get_schedule_class(degrees.pipeline_parallel_schedule).__name__.lower() == (
        f"schedule{schedule}"
    )
    assert degrees.pipeline_parallel_first_stage_less_layers == 0
    assert degrees.pipeline_parallel_last_stage_less_layers == 0
    if hasattr(degrees, "num_pp_microbatches"):
        assert degrees.num_pp_microbatches == 8
        assert job.training.num_tokens_per_microbatch_per_dp_rank == 4 * 1024
        return
    size = degrees.pipeline_parallel_microbatch_size
    assert (job.training.local_batch_size, size) == (32, 4)
    assert job.training.global_batch_size == 64


def test_megatron_core_s_pipelines() -> None:
    transformer = installed("megatron.core.transformer.transformer_config")
    planned = two_stages()
    assert planned.trainer is not UNSET
    given = Parallelism(shards=2, zero=1, micro_batches=8)
    trainer = replace(planned.trainer, name="megatron", parallelism=given)
    flags = flags_of(write_for(replace(planned, schedule="1f1b", trainer=trainer), "megatron").text)
    # Megatron-LM takes the dtype between stages from that of the parameters.
    values = {**taken(transformer.TransformerConfig, flags), "pipeline_dtype": torch.bfloat16}
    parsed = transformer.TransformerConfig(**values)
    assert parsed.pipeline_model_parallel_size == 2
    assert parsed.virtual_pipeline_model_parallel_size is None
    assert flags["micro_batch_size"] == ["4"] and flags["global_batch_size"] == ["64"]


def test_deepspeed_s_configuration() -> None:
    config = installed("deepspeed.runtime.config")
    for parallelism, text in texts("deepspeed"):
        document = json.loads(text)
        # Without a process group, DeepSpeed takes itself for the only rank.
        document["train_batch_size"] //= parallelism.data
        parsed = config.DeepSpeedConfig(document)
        assert parsed.zero_config.stage == parallelism.zero
        assert parsed.gradient_accumulation_steps == parallelism.micro_batches
        assert parsed.train_micro_batch_size_per_gpu == 2


def test_accelerate_s_configuration(tmp_path: Path) -> None:
    args = installed("accelerate.commands.config.config_args")
    degrees = installed("accelerate.parallelism_config")
    file = tmp_path / TRAINERS["accelerate"].filename
    for parallelism, text in texts("accelerate"):
        file.write_text(text)
        parsed = args.load_config_from_file(str(file))
        assert parsed.num_processes == parallelism.gpus
        sizes = {
            key.removeprefix("parallelism_config_"): value
            for key, value in parsed.parallelism_config.items()
        }
        if sizes:
            mesh = degrees.ParallelismConfig(**sizes)
            assert mesh.total_size == parallelism.gpus
            assert parsed.fsdp_config["fsdp_version"] == 2
        kind = parsed.distributed_type.value
        assert kind == ("DEEPSPEED" if parallelism.zero == 1 else "FSDP" if sizes else "MULTI_GPU")


def flags_of(script: str) -> dict[str, list[str]]:
    """Returns the flags of the arrays in a written shell script."""
    words = shlex.split(script, comments=True)
    flags: dict[str, list[str]] = {}
    for word in words[: words.index("torchrun")]:
        if word.startswith("--"):
            flags[word.removeprefix("--").replace("-", "_")] = []
        elif flags and not word.endswith(("(", ")")):
            flags[next(reversed(flags))].append(word)
    return flags


def taken(kind: Any, flags: dict[str, list[str]]) -> dict[str, Any]:
    """Returns the flags that are members of a dataclass of Megatron, as values."""
    values: dict[str, Any] = {}
    for member in dataclasses.fields(kind):
        words = flags.get(member.name)
        if words is None:
            continue
        numbers = [int(word) if word.isdecimal() else word for word in words]
        several = member.name == "recompute_modules"
        values[member.name] = numbers if several else numbers[0] if numbers else True
    return values


def test_megatron_core_s_configurations() -> None:
    transformer = installed("megatron.core.transformer.transformer_config")
    ddp = installed("megatron.core.distributed.distributed_data_parallel_config")
    for parallelism, text in texts("megatron"):
        flags = flags_of(text)
        values = taken(transformer.TransformerConfig, flags)
        assert values["tensor_model_parallel_size"] == parallelism.tensor
        assert ("recompute_granularity" in values) == (parallelism.recompute != "none")
        parsed = transformer.TransformerConfig(**values)
        assert parsed.sequence_parallel == parallelism.sequence
        assert parsed.num_layers == 32
        sums = ddp.DistributedDataParallelConfig(**taken(ddp.DistributedDataParallelConfig, flags))
        assert sums.use_distributed_optimizer == (parallelism.zero > 0)
        copies = parallelism.replicas if parallelism.zero else 1
        assert sums.num_distributed_optimizer_instances == copies


def test_nanotron_s_configuration(tmp_path: Path) -> None:
    installed("nanotron.parallel")
    config = installed("nanotron.config")
    if not hasattr(config, "DatasetStageArgs"):
        pytest.skip("nanotron is older than the files that are written")
    file = tmp_path / TRAINERS["nanotron"].filename
    for parallelism, text in texts("nanotron"):
        file.write_text(text)
        parsed = config.get_config_from_file(str(file))
        assert (parsed.parallelism.dp, parsed.parallelism.tp) == (
            parallelism.data,
            parallelism.tensor,
        )
        assert parsed.parallelism.recompute_layer == (parallelism.recompute == "full")
        assert parsed.optimizer.zero_stage == parallelism.zero
        assert parsed.global_batch_size == 2 * parallelism.data * parallelism.micro_batches
