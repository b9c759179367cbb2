"""The trainers' own parsers take what is written for them, as far as they are installed here.

accelerate comes with the extra `dev`; the others are checked where somebody has installed them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.overrides import TorchFunctionMode

from harness.models.shortened import shortened
from harness.trainer_plans import plan_of
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.documents import Pipeline
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.trainers.facts import facts_of
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
        numbers = [number_of(word) for word in words]
        several = member.name == "recompute_modules"
        values[member.name] = numbers if several else numbers[0] if numbers else True
    return values


def number_of(word: str) -> int | float | str:
    """Returns a whole number, a number or the word."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


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


def of_model(trainer: str, graph: Graph, parallelism: Parallelism) -> str:
    """Returns what is written for a graph's own model, in float32."""
    plan = plan_of(parallelism, sequence_length=16, precision="fp32")
    assert plan.trainer is not UNSET
    shown = replace(plan.trainer, model=facts_of(graph) or UNSET)
    return write_for(replace(plan, trainer=shown), trainer).text


def megatron_model(text: str) -> Any:
    """Returns the model of megatron-core that a script's flags make on one device."""
    transformer = installed("megatron.core.transformer.transformer_config")
    specs = installed("megatron.core.models.gpt.gpt_layer_specs")
    flags = flags_of(text)
    values = {
        **taken(transformer.TransformerConfig, flags),
        "add_bias_linear": "disable_bias_linear" not in flags,
        "add_qkv_bias": "add_qkv_bias" in flags,
        "layernorm_epsilon": float(flags["norm_epsilon"][0]),
        "bias_activation_fusion": False,
        "use_cpu_initialization": True,
    }
    if "swiglu" in flags:
        values |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    normalization = flags["normalization"][0]
    multiple = int(flags.get("make_vocab_size_divisible_by", ["128"])[0])
    vocabulary = -(-int(flags["vocab_size"][0]) // multiple) * multiple
    return installed("megatron.core.models.gpt.gpt_model").GPTModel(
        transformer.TransformerConfig(**values),
        specs.get_gpt_layer_local_spec(normalization=normalization),
        vocab_size=vocabulary,
        max_sequence_length=int(flags["max_position_embeddings"][0]),
        position_embedding_type=flags["position_embedding_type"][0],
        share_embeddings_and_output_weights="untie_embeddings_and_output_weights" not in flags,
    )


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Megatron's groups of one rank on the CPU."""
    state = installed("megatron.core.parallel_state")
    if torch.distributed.is_initialized():
        pytest.skip("another test's process group")
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
        tracker = SimpleNamespace(fork=nullcontext)
        parallel = installed("megatron.core.tensor_parallel")
        monkeypatch.setattr(parallel, "get_cuda_rng_tracker", lambda: tracker)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    state.initialize_model_parallel()
    yield
    state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["gpt2", "llama-8b"])
def test_megatron_core_makes_the_model_of_the_graph(name: str, one_rank: None) -> None:
    """Biases, norms, tied embeddings and an unpadded vocabulary: the same parameters."""
    graph = shortened(name, 1)
    with torch.device("meta" if name == "llama-8b" else "cpu"):
        model = megatron_model(of_model("megatron", graph, Parallelism()))
    assert sum(one.numel() for one in model.parameters()) == graph.parameter_count
    if name == "llama-8b":
        return
    ids = torch.arange(32).reshape(2, 16)
    later = torch.ones(1, 1, 16, 16, dtype=torch.bool).triu(1)
    loss = model(ids, torch.arange(16).expand(2, 16), later, labels=ids).mean()
    loss.backward()
    assert 9.0 < float(loss) < 13.0
    assert all(one.grad is not None for one in model.parameters())


class OnCpu(TorchFunctionMode):
    """Takes CPU tensors where Megatron writes "cuda"."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def mock_batches(flags: dict[str, list[str]]) -> Iterator[dict[str, torch.Tensor]]:
    """Returns the micro-batches of Megatron's mock data, of one step."""
    builder = installed("megatron.core.datasets.blended_megatron_dataset_builder")
    data = installed("megatron.core.datasets.gpt_dataset")
    words = int(flags["vocab_size"][0])
    config = data.GPTDatasetConfig(
        random_seed=0,
        sequence_length=int(flags["seq_length"][0]),
        split="99,1,0",
        tokenizer=SimpleNamespace(vocab_size=words, eod=words - 1, pad=0, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    samples = int(flags["global_batch_size"][0])
    of_mock = (data.MockGPTDataset, [samples, None, None], lambda: True, config)
    train, *_ = builder.BlendedMegatronDatasetBuilder(*of_mock).build()
    size = int(flags["micro_batch_size"][0])
    return islice(torch.utils.data.DataLoader(train, batch_size=size), samples // size)


@pytest.mark.parametrize("count", [1, 2])
def test_one_step_of_megatron_core_on_mock_data(count: int, one_rank: None) -> None:
    """Its data, its gradient buffers, its schedule and its optimizer, as the script's flags say."""
    distributed = installed("megatron.core.distributed")
    optimizers = installed("megatron.core.optimizer")
    schedules = installed("megatron.core.pipeline_parallel.schedules")
    installed("megatron.core.datasets.helpers_cpp")  # built in the package, not in a clone
    text = of_model("megatron", shortened("gpt2", 1), Parallelism(micro_batches=count))
    flags = flags_of(text)
    steps, losses = mock_batches(flags), []

    def forward(batches: Any, model: Any) -> Any:
        one = next(batches)
        names = ("tokens", "position_ids", "attention_mask")
        loss = model(*(one[name] for name in names), labels=one["labels"]).mean()
        losses.append(float(loss))
        return loss, lambda output: (output, {"loss": output.detach()})

    with OnCpu():
        config = distributed.DistributedDataParallelConfig
        made = megatron_model(text)
        model = distributed.DistributedDataParallel(
            made.config, config(**taken(config, flags)), made
        )
        before = [one.detach().clone() for one in model.parameters()]
        # Clipping asserts CUDA's tensor types.
        settings = optimizers.OptimizerConfig(optimizer=flags["optimizer"][0], lr=1e-3, clip_grad=0)
        optimizer = optimizers.get_megatron_optimizer(settings, [model])
        made.config.finalize_model_grads_func = distributed.finalize_model_grads
        model.zero_grad_buffer()
        schedules.get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=steps,
            model=[model],
            num_microbatches=count,
            seq_length=int(flags["seq_length"][0]),
            micro_batch_size=int(flags["micro_batch_size"][0]),
            forward_only=False,
        )
        done, norm, _ = optimizer.step()
    assert next(steps, None) is None and len(losses) == count
    assert all(9.0 < loss < 13.0 for loss in losses)
    assert done and norm > 0.0
    moved = [(one != old).any() for one, old in zip(model.parameters(), before, strict=True)]
    assert all(moved)


def test_megatron_lm_s_own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are in a clone of Megatron-LM, not in the package megatron-core."""
    parser = installed("megatron.training.arguments")
    if not torch.cuda.is_available():
        monkeypatch.setattr(parser, "get_device_arch_version", lambda: 9)
    more = "--mock-data --tokenizer-type NullTokenizer --train-iters 1 --lr 1e-4"
    for parallelism, text in texts("megatron"):
        monkeypatch.setenv("WORLD_SIZE", str(parallelism.gpus))
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
        for name, value in re.findall(r"^export (\w+)=(\w+)$", text, re.MULTILINE):
            monkeypatch.setenv(name, value)
        words = [
            word
            for name, values in flags_of(text).items()
            for word in (f"--{name.replace('_', '-')}", *values)
        ]
        local = ["--transformer-impl", "local", "--no-persist-layer-norm", "--no-rope-fusion"]
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words, *more.split(), *local])
        parsed = parser.parse_args()
        parser.validate_args(parsed)
        config = parser.core_transformer_config_from_args(parsed)
        assert (config.hidden_dropout, config.attention_dropout) == (0.0, 0.0)
        assert (config.num_query_groups, config.normalization) == (8, "RMSNorm")
        assert parsed.data_parallel_size == parallelism.data
        assert config.recompute_granularity == {"none": None}.get(
            parallelism.recompute, parallelism.recompute
        )
        assert parsed.optimizer == "adam" and parsed.grad_reduce_in_bf16
        assert parsed.untie_embeddings_and_output_weights and not parsed.add_bias_linear


def nothing(name: str) -> type:
    """Returns an empty class; raises AttributeError for what Python asks of every module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class Kernels(Loader, MetaPathFinder):
    """Empty modules for kernels that only a GPU's toolkit builds; a parser runs none of them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        ours = name.partition(".")[0] in ("flash_attn", "grouped_gemm")
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__["__version__"] = "2.7.0"
        module.__dict__["__getattr__"] = nothing
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Has nothing to run."""


def test_nanotron_s_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser is in a clone of nanotron: the package is older than the files."""
    if importlib.util.find_spec("flash_attn") is None:
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Kernels()])
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
