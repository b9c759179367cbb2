"""What a graph shows of its model is what a trainer's file says of it, and the rest is listed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict, replace

from harness.models.shortened import shortened
from harness.trainer_plans import plan_of
from shardwise.capture import shipped_graph
from shardwise.documents.model_facts import ModelFacts
from shardwise.documents.parallelism import Parallelism
from shardwise.documents.plan import Plan
from shardwise.graph import read_graph
from shardwise.trainers.facts import facts_of, facts_of_preset
from shardwise.trainers.formats import TRAINERS, write_for
from shardwise.trainers.models import MODELS

SHARDED = Parallelism(shards=8, zero=1)


def planned(facts: ModelFacts | None, trainer: str, **members: Any) -> Plan:
    """A plan of eight devices for a model with these facts."""
    parallelism = members.pop("parallelism", SHARDED)
    plan = plan_of(parallelism, trainer=trainer, **members)
    assert plan.trainer is not UNSET
    return replace(plan, trainer=replace(plan.trainer, model=facts or UNSET))


def llama(**members: Any) -> ModelFacts:
    return replace(facts_of_preset(MODELS["llama3-8b"]), **members)


@pytest.mark.parametrize(("shipped", "preset"), [("gpt2", "gpt2"), ("llama-8b", "llama3-8b")])
def test_a_graph_shows_what_its_preset_is(shipped: str, preset: str) -> None:
    found = facts_of(shortened(shipped, 2))
    assert found is not None
    known = asdict(facts_of_preset(MODELS[preset]))
    # The shipped Llama has another epsilon than Meta's; a graph has no values.
    unknown: dict[str, Any] = {"layers": 2, "rotary_base": None}
    if shipped == "llama-8b":
        unknown["norm_epsilon"] = 1e-6
    assert asdict(found) == {**known, **unknown}


@pytest.mark.parametrize("name", ["transformer", "vgg16"])
def test_what_is_no_decoder_has_no_facts(name: str) -> None:
    assert facts_of(read_graph(shipped_graph(name))) is None


def test_megatron_trains_the_model_of_the_plan() -> None:
    text, unsaid = write_for(planned(llama(), "megatron"), "megatron")
    for flags in (
        "--hidden-dropout 0\n",
        "--attention-dropout 0\n",
        "--normalization RMSNorm\n",
        "--norm-epsilon 1e-05\n",
        "--disable-bias-linear\n",
        "--swiglu\n",
        "--untie-embeddings-and-output-weights\n",
        "--position-embedding-type rope --rotary-base 500000 --rotary-percent 1\n",
        "--num-query-groups 8\n",
    ):
        assert flags in text
    assert not any("model" in sentence for sentence in unsaid)
    gpt = facts_of_preset(MODELS["gpt2"])
    text, _ = write_for(planned(gpt, "megatron"), "megatron")
    assert "--hidden-dropout 0.1\n" in text and "--attention-dropout 0.1\n" in text
    assert "untie" not in text and "--disable-bias-linear" not in text
    assert "--max-position-embeddings 1024\n" in text


@pytest.mark.parametrize(
    ("members", "flag", "sentence"),
    [
        ({"qkv_bias": True}, "--add-qkv-bias", None),
        ({"tied": True}, None, None),
        ({"query_key_norm": True, "head_size": 64}, "--kv-channels 64", None),
        ({"rotary_share": 0.25}, "--rotary-percent 0.25", None),
        ({"rotary_base": None}, None, "base of the rotation"),
        ({"parallel": True}, None, "side by side"),
        ({"activation": "relu", "gated": False}, None, "relu"),
        ({"activation": "gelu", "gated": False}, "--disable-bias-linear", None),
        ({"activation": "gelu", "gated": False, "bias": True, "qkv_bias": True},
         "--no-bias-gelu-fusion", None),
        ({"norm": None}, None, "norms"),
        ({"dropout": None}, None, "dropout"),
        ({"causal": False}, None, "both directions"),
        ({"vocabulary": 50257}, "--make-vocab-size-divisible-by 1", None),
    ],
)  # fmt: skip
def test_megatron_says_each_fact_or_lists_it(
    members: dict[str, Any], flag: str | None, sentence: str | None
) -> None:
    text, unsaid = write_for(planned(llama(**members), "megatron"), "megatron")
    assert flag is None or flag in text
    assert sentence is None or any(sentence in one for one in unsaid), unsaid
    assert ("--untie" in text) != bool(members.get("tied"))


def test_a_vocabulary_that_megatron_has_to_pad_is_listed() -> None:
    split = Parallelism(tensor=8, sequence=True)
    plan = planned(llama(vocabulary=50257), "megatron", parallelism=split)
    text, unsaid = write_for(plan, "megatron")
    assert "--make-vocab-size-divisible-by 1\n" in text
    assert any("50,257 words to 50,264" in sentence for sentence in unsaid)


def test_nanotron_says_a_llama_alone() -> None:
    text, unsaid = write_for(planned(llama(norm_epsilon=1e-6, tied=True), "nanotron"), "nanotron")
    assert "rms_norm_eps: 1.0e-06" in text and "tie_word_embeddings: true" in text
    assert "rope_theta: 500000.0" in text and "vocab_size: 128256" in text
    assert not any("model" in sentence for sentence in unsaid)
    text, unsaid = write_for(planned(llama(dropout=0.1), "nanotron"), "nanotron")
    assert "hidden_size" not in text and any("its dropout" in sentence for sentence in unsaid)


def test_torchtitan_lists_where_its_model_is_another() -> None:
    members = {"graph_name": "llama3-8b", "parallelism": Parallelism(shards=8, zero=3)}
    _, unsaid = write_for(planned(llama(), "torchtitan", **members), "torchtitan")
    assert not any("The model" in sentence for sentence in unsaid)
    _, unsaid = write_for(planned(llama(tied=True), "torchtitan", **members), "torchtitan")
    assert "The model: its tied is True, that of torchtitan's llama3-8b False." in unsaid


@pytest.mark.parametrize("trainer", ["deepspeed", "fsdp2", "accelerate"])
def test_scripts_are_told_which_model_was_planned(trainer: str) -> None:
    plan = planned(llama(), trainer, parallelism=Parallelism(shards=8, zero=3))
    (sentence,) = (one for one in write_for(plan, trainer).unsaid if one.startswith("The model"))
    assert "no dropout" in sentence and "untied embeddings" in sentence
    none = write_for(planned(None, trainer, parallelism=Parallelism(shards=8, zero=3)), trainer)
    assert not any(one.startswith("The model") for one in none.unsaid)
    assert trainer in TRAINERS


MIXTURE = (
    "hf:{family}:num_hidden_layers=2,hidden_size=64,num_attention_heads=4,num_key_value_heads=2,"
    "vocab_size=128,{sizes}"
)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "sizes", "shared"),
    [
        ("MixtralConfig", "intermediate_size=96,num_local_experts=8", None),
        (
            "Qwen2MoeConfig",
            "moe_intermediate_size=96,num_experts=8,num_experts_per_tok=2,"
            "shared_expert_intermediate_size=48",
            48,
        ),
    ],
)
def test_megatron_is_told_the_experts_of_a_mixture(
    family: str, sizes: str, shared: int | None
) -> None:
    pytest.importorskip("transformers")
    from shardwise.capture import capture

    graph = capture(MIXTURE.format(family=family, sizes=sizes), batch=8, seq=16, dtype="bf16")
    facts = facts_of(graph)
    assert facts is not None
    assert (facts.experts, facts.experts_per_token, facts.expert_feed_forward) == (8, 2, 96)
    assert (facts.feed_forward, facts.gated, facts.activation) == (shared, True, "silu")
    mixed = Parallelism(shards=8, zero=1, expert=4)
    text, unsaid = write_for(planned(facts, "megatron", parallelism=mixed), "megatron")
    for flags in (
        "--num-experts 8 --moe-router-topk 2\n",
        "--moe-ffn-hidden-size 96\n",
        "--moe-grouped-gemm\n",
        "--swiglu\n",
        "--expert-model-parallel-size 4\n",
        "--expert-tensor-parallel-size 1\n",
        "--moe-token-dispatcher-type alltoall\n",
    ):
        assert flags in text, flags
    assert ("--moe-shared-expert-intermediate-size 48\n" in text) == (shared is not None)
    assert "--ffn-hidden-size" not in text.replace("--moe-ffn-hidden-size", "")
    assert any("router" in line for line in unsaid)
