"""What is written for a trainer says the plan: reading it back gives the same parallelism, and a
trainer that cannot say it is refused by the member's name."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from harness.trainer_plans import plan_of, tiny_plan
from shardwise.cli.main import cli
from shardwise.documents.parallelism import Parallelism, PlannedTrainer
from shardwise.documents.plan import Execution
from shardwise.errors import BadInput
from shardwise.outfiles import write_json
from shardwise.trainers.formats import TRAINERS, write_for
from shardwise.trainers.job import canonical
from shardwise.trainers.models import MODELS
from shardwise.trainers.read import read_configuration

PARTS: tuple[dict[str, int], ...] = ({}, {"recompute_layers": 3}, {"recompute_every": 2})
READABLE = [name for name in TRAINERS if name != "fsdp2"]
DEGREES = ((1, 1, 1), (4, 1, 1), (1, 8, 1), (2, 4, 1), (1, 1, 8), (8, 1, 2), (1, 4, 4), (2, 2, 8))
STRATEGIES = list(
    dict.fromkeys(
        canonical(
            Parallelism(replicas, shards, tensor, sequence, zero, recompute, micro_batches, **part)
        )
        for (replicas, shards, tensor), sequence, zero, recompute, micro_batches, part in product(
            DEGREES, (False, True), range(4), ("none", "selective", "full"), (1, 4), PARTS
        )
    )
)

STRATEGIES += [
    replace(one, expert=one.data // divisor)
    for one in STRATEGIES
    for divisor in (1, 2)
    if one.data > divisor and one.recompute == "none" and one.data % divisor == 0
]

STRATEGIES += [
    replace(one, expert=one.tensor * one.data, whole_experts=True)
    for one in STRATEGIES
    if one.tensor > 1 and one.expert == 1 and one.recompute == "none"
]


@pytest.mark.parametrize("trainer", READABLE)
def test_a_written_file_is_read_as_the_plan_s_parallelism(trainer: str, tmp_path: Path) -> None:
    file = tmp_path / TRAINERS[trainer].filename
    said = 0
    for parallelism in STRATEGIES:
        plan = plan_of(parallelism)
        try:
            file.write_text(write_for(plan, trainer).text)
        except BadInput as error:
            assert error.field is not None and error.field.startswith("trainer.parallelism.")
            continue
        found = read_configuration(file, parallelism.gpus)
        assert found.trainer == trainer
        assert found.parallelism == parallelism, file.read_text()
        assert found.batch == plan.batch_size
        assert found.sequence_length in (128, None)
        said += 1
    assert said >= 20


@pytest.mark.parametrize(
    ("trainer", "parallelism", "member"),
    [
        ("torchtitan", Parallelism(shards=4, zero=1), "zero"),
        ("torchtitan", Parallelism(tensor=4), "sequence"),
        ("megatron", Parallelism(replicas=2, shards=4, zero=3), "replicas"),
        ("torchtitan", Parallelism(replicas=4, expert=2), "expert"),
        ("deepspeed", Parallelism(shards=2, zero=3, expert=2), "expert"),
        ("deepspeed", Parallelism(shards=2, tensor=2, zero=1), "tensor"),
        ("deepspeed", Parallelism(replicas=2, shards=2, zero=2), "replicas"),
        ("deepspeed", Parallelism(replicas=2, recompute="selective"), "recompute"),
        ("accelerate", Parallelism(tensor=2, sequence=True), "sequence"),
        ("accelerate", Parallelism(replicas=2, tensor=2), "zero"),
        ("accelerate", Parallelism(replicas=2, recompute="full"), "recompute"),
        ("nanotron", Parallelism(shards=4, zero=2), "zero"),
        ("nanotron", Parallelism(recompute="full", recompute_layers=3), "recompute"),
        ("torchtitan", Parallelism(recompute="full", recompute_layers=3), "recompute"),
        ("megatron", Parallelism(recompute="full", recompute_every=3), "recompute"),
    ],
)
def test_what_a_trainer_cannot_say_is_named(
    trainer: str, parallelism: Parallelism, member: str
) -> None:
    with pytest.raises(BadInput) as raised:
        write_for(plan_of(parallelism), trainer)
    assert raised.value.field == f"trainer.parallelism.{member}"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_plan_of_the_whole_space_says_how_to_plan_for_the_trainer(trainer: str) -> None:
    with pytest.raises(BadInput, match=f"--space {trainer}"):
        write_for(tiny_plan(), trainer)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"gpus": 3}, "trainer.parallelism"),
        ({"batch_size": 7}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(members: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as raised:
        write_for(plan_of(Parallelism(shards=4, zero=3), **members), "torchtitan")
    assert raised.value.field == field


def test_presets_have_their_model_in_the_file() -> None:
    plan = plan_of(Parallelism(shards=8, zero=3), graph_name="llama3-8b")
    written = write_for(plan, "torchtitan")
    assert 'name = "llama3"\nflavor = "8B"' in written.text
    assert "--module llama3 --config llama3_8b" in written.text
    assert not any("model" in sentence.lower() for sentence in written.unsaid)
    script = write_for(plan_of(Parallelism(shards=8, zero=1), graph_name="llama3-8b"), "megatron")
    assert "--num-layers 32" in script.text and "--num-query-groups 8" in script.text


def test_sizes_are_those_of_the_presets() -> None:
    transformers = pytest.importorskip("transformers")
    from shardwise.capture.presets import presets

    for name, model in MODELS.items():
        preset = presets()[name]
        config = getattr(transformers, preset.config)(**preset.fields)
        wide = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        assert (model.layers, model.hidden, model.heads, model.feed_forward) == (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            wide,
        ), name
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        assert (model.key_value_heads, model.vocabulary) == (heads, config.vocab_size), name


def test_what_a_file_cannot_say_is_listed() -> None:
    plan = plan_of(
        Parallelism(shards=4, zero=3, recompute="selective"),
        optimizer="sgd",
        kernels="fused",
        precision="captured",
        sequence_length=None,
    )
    unsaid = " ".join(write_for(plan, "torchtitan").unsaid)
    for word in ("model", "optimizer", "Fused", "precision", "sequence length", "products"):
        assert word in unsaid


@pytest.mark.parametrize(
    ("dtype", "written"),
    [
        ("float32", {"torchtitan": '_param = "float32"', "megatron": None, "deepspeed": None}),
        (
            "float16",
            {"torchtitan": '_param = "float16"', "megatron": "--fp16", "deepspeed": "fp16"},
        ),
        (
            "bfloat16",
            {"torchtitan": '_param = "bfloat16"', "megatron": "--bf16", "deepspeed": "bf16"},
        ),
    ],
)
def test_the_captured_precision_is_that_of_the_graph(
    dtype: str, written: dict[str, str | None]
) -> None:
    parallelism = Parallelism(replicas=4)
    for trainer, word in written.items():
        planned = PlannedTrainer(trainer, parallelism, 128, None, None, dtype)
        plan = replace(plan_of(parallelism, precision="captured"), trainer=planned)
        text, unsaid = write_for(plan, trainer)
        assert (word in text) if word else ("fp16" not in text and "bf16" not in text)
        assert not any("precision: the plan keeps" in sentence for sentence in unsaid)


def test_hosts_are_started_by_torchrun() -> None:
    plan = plan_of(Parallelism(replicas=2, shards=8, zero=1), gpus=16, nodes=2)
    script = write_for(plan, "megatron").text
    assert "--nnodes=2" in script and '"$HEAD_NODE:29500"' in script
    assert "--nproc-per-node=8" in script


def run(*arguments: str) -> tuple[int | str | None, str, str]:
    result = CliRunner().invoke(cli, ["export", *arguments])
    if isinstance(result.exception, BadInput):
        return result.exception.exit_code, "", str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_the_file_and_notes_what_is_not_in_it(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write_json(plan_of(Parallelism(shards=4, zero=3)), str(plan))
    code, out, err = run(str(plan), "--to", "deepspeed")
    assert code == 0 and json.loads(out)["zero_optimization"]["stage"] == 3
    assert "not in the file: The optimizer" in err
    code, out, _ = run(str(plan), "--to", "deepspeed", "--json")
    document = json.loads(out)
    assert json.loads(document["text"])["train_batch_size"] == 8 and document["unsaid"]
    file = tmp_path / "titan.toml"
    code, out, _ = run(str(plan), "--to", "torchtitan", "-o", str(file))
    assert (code, out) == (0, "")
    assert read_configuration(file, 4).parallelism == Parallelism(shards=4, zero=3)


def test_the_command_takes_one_of_format_and_to(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write_json(plan_of(Parallelism(shards=4, zero=3)), str(plan))
    for arguments in ((), ("--to", "megatron", "--format", "sbatch")):
        code, _, err = run(str(plan), *arguments)
        assert code == 2 and "--format and --to" in err


def test_states_on_the_host_are_written_for_deepspeed_alone(tmp_path: Path) -> None:
    plan = plan_of(Parallelism(shards=8, zero=2))
    execution = Execution("cuda", "fused", 512, "float32", "captured", "shards", "states")
    plan = replace(plan, execution=execution)
    file = tmp_path / "ds.json"
    file.write_text(write_for(plan, "deepspeed").text)
    assert read_configuration(file, 8).stated["offload"] == "states"
    for trainer in TRAINERS.keys() - {"deepspeed"}:
        with pytest.raises(BadInput, match="states on the host"):
            write_for(plan, trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_adapters_are_written_where_a_file_says_only_how_a_model_is_sharded(trainer: str) -> None:
    plan = replace(plan_of(Parallelism(shards=8, zero=3)), tune="lora:8:all-linear")
    if trainer in ("accelerate", "deepspeed"):
        assert write_for(plan, trainer).text
        return
    with pytest.raises(BadInput, match="tunes with lora:8:all-linear"):
        write_for(plan, trainer)
