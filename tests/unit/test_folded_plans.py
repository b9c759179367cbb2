"""Plan files with their repeated rows written once: what is folded unfolds to what it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.graph_builder import layers
from harness.stored import stored
from shardwise import answers, documents
from shardwise.answers import read_plan
from shardwise.cli.main import cli
from shardwise.client.exchange import Policy
from shardwise.client.job import read_answer
from shardwise.client.launching import LaunchCalls
from shardwise.documents import LaunchRequest, Plan, WholePlan, folded, unfolded
from shardwise.documents.plan import PlannedGroup
from shardwise.errors import BadInput
from shardwise.folding import Room, share_rows, unshare_rows
from shardwise.graph import write_graph
from shardwise.hardware import load_hardware
from shardwise.outfiles import write_json

STORED = ["plan", "plan-2", "plan-bundle", "trainer", "pipeline"]


def through_a_file(document: Any) -> Any:
    """Returns what a reader decodes of a folded document."""
    return msgspec.json.decode(msgspec.json.encode(folded(document)))


@pytest.mark.parametrize("name", STORED)
def test_a_stored_answer_unfolds_to_itself_byte_for_byte(name: str) -> None:
    document = stored(name)
    again = through_a_file(document)
    assert again["schema"] == "shardwise.plan/2" and again["id"] == document.id
    assert msgspec.json.encode(unfolded(again)) == msgspec.json.encode(document)
    assert (
        documents.read(again, documents.Plan) == documents.read(again, type(document)) == document
    )
    assert read_answer(again, "plan") == document, "what a client does of an answer"


GROUPS = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 90), st.integers(0, 3)), max_size=40)


@settings(deadline=None)
@given(GROUPS, st.integers(1, 6))
def test_any_groups_in_any_order_unfold_to_what_they_were(
    drawn: Sequence[tuple[int, int, int]], times: int
) -> None:
    """Groups of layers, in stretches that repeat with other numbers of layers and segments."""
    known: Plan = stored("plan")
    groups = [
        _of_layer(known.groups[place % len(known.groups)], layer + k, segment + 2 * k)
        for k in range(times)
        for place, layer, segment in drawn
    ]
    plan = replace(known, groups=groups, order=[group.name for group in groups])
    assert msgspec.json.encode(unfolded(through_a_file(plan))) == msgspec.json.encode(plan)


def _of_layer(group: PlannedGroup, layer: int, segment: int) -> PlannedGroup:
    operators = [replace(op, name=f"layers.{layer}.{op.name}") for op in group.operators]
    return replace(group, name=f"layers.{layer}.{group.name}", segment=segment, operators=operators)


NAMES = st.from_regex(
    r"[a-z.]{0,3}[0-9]{0,3}[a-z]{0,2}[0-9]{0,11}([{}k+\"\\]|\{\}|\{0\}|\{\{0\}\})?", fullmatch=True
)
ROWS = st.one_of(
    NAMES,
    st.fixed_dictionaries(
        {
            "name": NAMES,
            "segment": st.one_of(st.integers(-2, 2**40), st.floats(allow_nan=False), NAMES),
            "of": st.dictionaries(NAMES, st.integers(0, 3), max_size=2),
        }
    ),
)


@settings(deadline=None)
@given(st.lists(ROWS, max_size=6), st.integers(1, 5))
def test_any_rows_are_the_same_after_sharing(rows: list[Any], times: int) -> None:
    whole = [
        {**row, "name": f"{row['name']}.{k}", "segment": k + 3}
        if isinstance(row, dict) and k
        else row
        for k in range(times)
        for row in rows
    ]
    shared = json.loads(json.dumps(share_rows(whole, ("segment",))))
    again = unshare_rows(shared, 1000, "rows", Room())
    assert json.dumps(again) == json.dumps(whole)


def test_what_two_layers_say_is_one_template() -> None:
    rows = [
        {"name": f"layers.{k}.add_{k + 3}", "segment": k + 1, "choice": 7, "from": [f"layers.{j}"]}
        for k, j in ((0, 5), (1, 9), (7, 2))
    ]
    assert share_rows(rows, ("segment",)) == {
        "templates": {
            "a": {
                "name": "layers.{0}.add_{0+3}",
                "segment": "{{0+1}}",
                "choice": 7,
                "from": ["layers.{1}"],
            }
        },
        "rows": ["a:0,5", "a:1,9", "a:7,2"],
    }
    assert len(share_rows([{**row, "choice": k} for k, row in enumerate(rows)])["templates"]) == 3


@pytest.mark.parametrize("braces", ["{}", "{0}", "{{0}}", "{0+1k}", "{"])
def test_texts_with_braces_stay_as_they_are(braces: str) -> None:
    rows = [{"name": f"{braces}.{k}", "segment": k} for k in range(8)]
    assert unshare_rows(share_rows(rows, ("segment",)), 8, "rows", Room()) == rows


def test_a_plan_of_many_layers_is_hardly_longer_than_one_of_few() -> None:
    few, many = (
        answers.plan(
            layers(count, 64, 128), load_hardware("l4"), 2, options=answers.Options(zero=(0,))
        )
        for count in (12, 96)
    )
    short, long = (len(msgspec.json.encode(_untimed(plan))) for plan in (few, many))
    whole = len(msgspec.json.encode(many))
    assert whole > 6 * len(msgspec.json.encode(few)) * 0.5
    assert long < whole / 5 and long < 2 * short


def _untimed(plan: Plan) -> dict[str, Any]:
    """Returns a folded plan without its timeline, which has no rows that repeat."""
    return {name: value for name, value in folded(plan).items() if name != "timeline"}


LIST = {"templates": {"a": {"name": "x{0}"}, "b": "y"}, "rows": ["a:1", "b"]}


@pytest.mark.parametrize(
    ("groups", "field", "problem"),
    [
        ({**LIST, "templates": [1]}, "groups.templates", "no templates"),
        ({"templates": {}}, "groups.rows", "no rows"),
        ({**LIST, "rows": ["c"]}, "groups.rows", "'c' names no template"),
        ({**LIST, "rows": [3]}, "groups.rows", "'3' names no template"),
        ({**LIST, "rows": ["a:x"]}, "groups.rows", "'a:x' names no template"),
        ({**LIST, "rows": ["a:" + "9" * 5000]}, "groups.rows", "names no template"),
        (
            {"templates": {"a": {"name": "{0}{3}"}}, "rows": ["a:1,2"]},
            "groups.rows",
            "has 2 numbers",
        ),
        ({**LIST, "rows": [{"repeat": 0, "rows": []}]}, "groups.rows[0].repeat", "repeated 0"),
        (
            {**LIST, "rows": [{"repeat": 10**8, "rows": ["b"]}]},
            "groups.rows[0]",
            "unfold to more than",
        ),
        (
            {"templates": {"a": "y" * 2**12}, "rows": [{"repeat": 10**6, "rows": ["a"]}]},
            "groups.rows",
            "unfold to more than",
        ),
        (
            {"templates": {"a": "{0}" * 2**12}, "rows": [{"repeat": 10**5, "rows": ["a:1"]}]},
            "groups.rows",
            "unfold to more than",
        ),
        (LIST, "groups[0].choice", "missing"),
        (7, "groups", "Expected 'array'"),
    ],
)
def test_what_does_not_unfold_to_a_plan_is_refused(
    groups: object, field: str, problem: str
) -> None:
    document = {**through_a_file(stored("plan")), "groups": groups}
    for kind in (Plan, WholePlan):
        with pytest.raises(BadInput) as refused:
            documents.read(document, kind, file="p.json")
        assert (refused.value.file, refused.value.field) == ("p.json", field)
        assert problem in refused.value.problem and len(str(refused.value)) < 200


def test_a_template_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(10**5):
        deep = [deep]
    rows = {"templates": {"a": {"name": deep}}, "rows": ["a"]}
    with pytest.raises(BadInput, match="nested too deeply"):
        unfolded({**through_a_file(stored("plan")), "groups": rows}, "p.json")


def test_the_limit_is_of_all_lists_together() -> None:
    document = through_a_file(stored("plan"))
    length = sum(len(json.dumps(unfolded(document)[name])) for name in ("groups", "edges", "order"))
    assert unfolded(document, most_bytes=2 * length)["groups"]
    with pytest.raises(BadInput, match="unfold to more than"):
        unfolded(document, most_bytes=length // 2)


def test_a_version_that_is_not_known_is_refused_and_the_kinds_are_kept_apart() -> None:
    plan, pipeline = through_a_file(stored("plan")), through_a_file(stored("pipeline"))
    with pytest.raises(BadInput, match=r"'shardwise.plan/3'.*shardwise.plan/1 or shardwise.plan/2"):
        documents.read({**plan, "schema": "shardwise.plan/3"}, documents.Plan)
    with pytest.raises(BadInput, match=r"unknown schema 'shardwise\.pipeline/1'"):
        documents.read(pipeline, WholePlan)
    with pytest.raises(BadInput, match=r"unknown schema 'shardwise\.plan/1'"):
        documents.read(plan, documents.Pipeline)
    assert unfolded(stored("plan")) is stored("plan")


@pytest.mark.parametrize("name", ["plan", "pipeline"])
def test_commands_say_the_same_of_both_versions(name: str, tmp_path: Path) -> None:
    whole, short = tmp_path / "1.json", tmp_path / "2.json"
    write_json(stored(name), str(whole))
    write_json(folded(stored(name)), str(short))
    assert short.stat().st_size < whole.stat().st_size * 0.8
    assert read_plan(short) == read_plan(whole) == stored(name)
    for words in (("explain", "--json"), ("export", "--format", "sbatch")):
        said = [
            CliRunner().invoke(cli, [words[0], str(file), *words[1:]], catch_exceptions=False)
            for file in (whole, short)
        ]
        assert said[0].exit_code == 0 and said[0].stdout
        assert said[1].stdout == said[0].stdout


def test_a_plan_is_written_folded_unless_it_is_asked_for_whole(tmp_path: Path) -> None:
    graph, file = tmp_path / "g.json", tmp_path / "p.json"
    write_graph(layers(4, 16, 32), graph)
    asked = ["plan", str(graph), "--hardware", "l4", "--gpus", "2", "--micro-batches", "1"]
    said = {}
    for more in ((), ("--unfolded",)):
        done = CliRunner().invoke(cli, [*asked, "-o", str(file), "--json", *more])
        assert done.exit_code == 0, done.output
        said[more] = json.loads(done.stdout)
        written = json.loads(file.read_text())
        assert written["schema"] == f"shardwise.plan/{1 if more else 2}"
        assert unfolded(written) == said[more], "standard output has version 1"
    refused = CliRunner().invoke(cli, [*asked, "--unfolded"])
    assert "--output FILE" in getattr(refused.exception, "expected", "")


def test_a_launch_is_sent_whole_to_services_of_earlier_releases() -> None:
    flow = LaunchCalls(Policy()).start(LaunchRequest(plan=through_a_file(stored("plan"))), None)
    sent = json.loads(next(flow).request.body)  # type: ignore[union-attr]
    assert sent["plan"] == json.loads(msgspec.json.encode(stored("plan")))
