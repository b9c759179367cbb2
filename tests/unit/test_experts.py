"""Mixtures of experts: FSDP shards their weights, expert parallelism is searched where rows can be
sent, and answers name what was not searched."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.models.shortened import shortened
from shardwise.answers import plan
from shardwise.answers.certificates import NOTHING
from shardwise.cli.main import cli
from shardwise.cost.options import Options
from shardwise.documents.common import EXPERT_PARALLELISM
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph import Graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare
from shardwise.search.search import Subject
from shardwise.trainers.price import price

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

GPUS = 4
_GROUPED, _EQUAL = "num_key_value_heads=2", "num_key_value_heads=4"
_SIZES = f"hidden_size=64,num_hidden_layers=1,num_attention_heads=4,{_GROUPED},vocab_size=128"
_MOE = f"{_SIZES},intermediate_size=64,moe_intermediate_size=64"
FAMILIES = {
    "gpt-oss": f"GptOssConfig:{_SIZES},intermediate_size=64,head_dim=16,num_local_experts=16,"
    "num_experts_per_tok=2,pad_token_id=0",
    "Llama 4": f"Llama4TextConfig:{_SIZES},intermediate_size=64,intermediate_size_mlp=64,"
    "head_dim=16,num_local_experts=16,interleave_moe_layer_step=1,pad_token_id=0",
    "Mixtral": f"MixtralConfig:{_SIZES},intermediate_size=64,num_local_experts=16",
    "Qwen3-MoE": f"Qwen3MoeConfig:{_MOE},num_local_experts=16,num_experts_per_tok=2",
    "DeepSeek": f"DeepseekV3Config:{_MOE.replace(_GROUPED, _EQUAL)},n_routed_experts=16,"
    "n_group=2,topk_group=1,first_k_dense_replace=0,num_experts_per_tok=2,q_lora_rank=16,kv_lora_rank=16,"
    "qk_rope_head_dim=16,qk_nope_head_dim=16,v_head_dim=16",
}
OWN_FORM = ("Llama 4", ",experts_implementation=eager")
"""A family, and the option under which every expert computes for every token."""
FEW = 4096
"""Elements of a parameter that may stay whole on every device, such as a norm's."""


@cache
def _graph(family: str, form: str = "") -> Graph:
    from shardwise.capture import capture

    return capture(f"hf:{FAMILIES[family]}{form}", batch=8, seq=16, dtype="bf16", name=family)


def _bytes(graph: Graph, strategy: Parallelism) -> float:
    plan = price(graph, load_hardware("dgx-h100"), GPUS, strategy, _options()).plan
    return sum(group.parameter_bytes for group in plan.groups)


def _options() -> Options:
    return Options(micro_batches=(1,))


@pytest.mark.parametrize("family", FAMILIES)
def test_fsdp_shards_every_large_parameter_of_a_mixture(family: str) -> None:
    graph = _graph(family)
    priced = price(
        graph, load_hardware("dgx-h100"), GPUS, Parallelism(shards=GPUS, zero=3), _options()
    )
    tensors = graph.tensors
    sharded = set()
    for group in priced.plan.groups:
        if group.zero == 3 and len(group.zero_axes) == len(priced.plan.mesh.axes):
            sharded.update(name for op in group.operators for name in op.inputs)
    large = {n for n, t in tensors.items() if t.role == "parameter" and t.elements > FEW}
    assert any(tensors[name].elements >= 16 * 64 * 64 for name in large)
    assert large <= sharded
    held = sum(group.parameter_bytes for group in priced.plan.groups)
    # Rounding and the small parameters: a hundredth.
    assert held <= 1.01 * _bytes(graph, Parallelism(replicas=GPUS)) / GPUS


def test_no_expert_of_llama_4_computes_for_tokens_that_chose_others() -> None:
    kinds = [op.kind for op in _graph("Llama 4").operators]
    assert kinds.count("shardwise.expert_linear.default") == 2
    assert "aten.bmm.default" not in kinds


def test_a_strategy_whose_work_all_devices_would_repeat_is_refused_by_name() -> None:
    own_form = _graph(*OWN_FORM)
    with pytest.raises(BadInput) as refused:
        _bytes(own_form, Parallelism(shards=GPUS, zero=3))
    assert "dp_shard 4" in str(refused.value)
    assert "every device would compute the same" in str(refused.value)
    assert "model.layers.0.feed_forward.experts.bmm" in str(refused.value)
    compared = compare(own_form, load_hardware("dgx-h100"), GPUS, _options(), proposals=10)
    rows = {method.method: method.notes for method in compared.methods}
    assert any("feed_forward.experts.bmm" in note for note in rows["fsdp"])
    assert compared.not_searched == [EXPERT_PARALLELISM]
    assert compared.certificate == NOTHING
    assert {m.method: m.epsilon for m in compared.methods}["shardwise"] is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixture_is_told_by_its_graph(family: str) -> None:
    assert Subject.of(_graph(family)).has_experts


def test_products_for_each_expert_make_a_mixture_without_an_operator_of_its_own() -> None:
    own_form = _graph(*OWN_FORM)
    assert Subject.of(own_form).has_experts
    assert not Subject.of(shortened("gpt2", 1)).has_experts


def test_answers_on_a_mixture_whose_rows_can_be_sent_are_proven() -> None:
    planned = plan(_graph("Mixtral"), load_hardware("dgx-h100"), 2, options=_options())
    assert not planned.not_searched
    assert planned.predicted.gap is not None
    assert planned.certificate.time_lower_bound_s


def test_answers_on_several_kinds_of_devices_name_expert_parallelism() -> None:
    # Compiled, one of the two alone is the answer.
    asked = Options(micro_batches=(1,), time_limit_s=20.0, framework="eager")
    kinds = load_hardware("h100-8+a100-8")
    planned = plan(_graph("Mixtral"), kinds, "h100=1,a100=1", options=asked)
    assert planned.not_searched == [EXPERT_PARALLELISM]
    assert planned.predicted.gap is None


def test_answers_on_mixtures_of_another_form_name_expert_parallelism_and_prove_nothing(
    tmp_path: Path,
) -> None:
    """Nor do the texts of the same answers, which name it first."""
    file = str(tmp_path / "graph.json")
    write_graph(_graph(*OWN_FORM), file)
    offers = tmp_path / "offers.csv"
    offers.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\ntwo,H100,2,8.0,here\n"
    )
    common = ["--micro-batches", "1", "--quiet"]
    asked = ["--hardware", "dgx-h100", *common]
    found: dict[str, Any] = {}
    for command, *arguments in (
        ["plan", *asked, "--gpus", "2"],
        ["frontier", *asked, "--gpus", "2"],
        ["curve", *asked, "--max-gpus", "2"],
        ["quote", *common, "--offers", str(offers), "--max-instances", "1"],
    ):
        written = tmp_path / f"{command}.json"
        done = CliRunner().invoke(
            cli, [command, file, *arguments, "-o", str(written)], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        text = " ".join(done.stdout.split())
        assert "without expert parallelism" in text[:160], (command, text[:300])
        said = text.replace("and nothing is proven", "")
        for word in ("proven", "Proven", "certified", "exact;"):
            assert word not in said, (command, word)
        found[command] = json.loads(written.read_text())
    for answer in found.values():
        assert answer["not_searched"] == [EXPERT_PARALLELISM]
    planned, tracked = found["plan"], found["frontier"]
    assert planned["predicted"]["gap"] is None
    assert planned["certificate"]["epsilon"] is None
    assert not planned["certificate"].get("time_lower_bound_s")
    assert tracked["certificate"] == planned["certificate"]
    assert [point["gap"] for point in tracked["points"]] == [None] * len(tracked["points"])
    assert [point["gap"] for point in found["curve"]["points"]] == [None, None]


def test_a_page_names_what_was_not_searched() -> None:
    pytest.importorskip("jinja2")
    from service.page.render import environment

    macros: Any = environment().get_template("macros.html").module
    said = str(macros.warnings({"warnings": [], "not_searched": [EXPERT_PARALLELISM]}))
    assert "without expert parallelism" in said
    assert not str(macros.warnings({"warnings": []})).strip()


def test_answers_on_dense_models_are_proven_as_before() -> None:
    planned = plan(shortened("gpt2", 1), load_hardware("dgx-h100"), 2, options=_options())
    assert not planned.not_searched
    assert planned.predicted.gap is not None
