"""Numbers as the page writes them, and forms as bodies."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

pytest.importorskip("fastapi", reason="needs shardwise[service]")

from harness.page.rendered import rendered
from harness.replayed_frontier import replayed_curve, replayed_frontier
from service.page import units
from service.page.forms import options_of, question_body
from service.page.views.answers import curve_context, frontier_context
from service.page.views.plan_table import plan_context
from service.page.views.quoted import quote_context
from service.questions.search_options import options_document, options_from_document
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.named_options import options_from_request
from shardwise.documents.common import MeshAxis, MeshDescription
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.size(14.5e9), "13.5 GiB"),
        (units.size(0), "0 B"),
        (units.size(None), "–"),
        (units.size(2**42), "4.00 TiB"),
        (units.seconds(0.0371), "37.1 ms"),
        (units.seconds(0), "0 s"),
        (units.seconds(3e-10), "0.30 ns"),
        (units.seconds(9000), "2.50 h"),
        (units.seconds(360_000), "4.17 days"),
        (units.count(124_439_808), "124 M"),
        (units.count(9999), "9,999"),
        (units.count(82.4831), "82.5"),
        (units.usd(1234.5), "$1,234.50"),
        (units.usd(0.0012), "$0.0012"),
        (units.percent(0.0321), "3.21 %"),
        (units.percent(1e-6), "< 0.01 %"),
        (units.moment("2026-11-21T11:30:41.123Z"), "2026-11-21 11:30:41 UTC"),
        (units.short("sha256:0123456789abcdef"), "0123456789ab…"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


def test_a_form_is_the_body_that_a_client_sends() -> None:
    values = {"kind": "curve", "graph": "shipped:gpt2", "hardware": "l4", "nodes": "2", "gpus": "8"}
    more = {"zero": "0,3", "memory_limit_bytes": "14.5GB", "pins": "a=b\n\n c=d ", "unknown": "x"}
    body = json.loads(question_body({**values, **more}, None))
    options = {"zero": [0, 3], "memory_limit_bytes": 14.5e9, "pins": ["a=b", "c=d"]}
    assert body == {
        "graph": "shipped:gpt2", "hardware": "l4*2", "max_gpus": 8, "options": options,
        "space": "any",
    }  # fmt: skip
    quote = {"kind": "quote", "graph": "g", "steps": "10", "deadline_h": "2", "gpus": "8"}
    assert json.loads(question_body(quote, "a,b")) == {
        "graph": "g", "steps": 10, "deadline_s": 7200.0, "offers_csv": "a,b", "options": {}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "plan"}, "graph"),
        ({"kind": "plan", "graph": "g", "hardware": "l4", "gpus": "-1"}, "gpus"),
        ({"kind": "plan", "graph": "g", "hardware": "l4", "gpus": "٣"}, "gpus"),
        ({"kind": "quote", "graph": "g", "deadline_h": "nan"}, "deadline_h"),
        ({"kind": "quote", "graph": "g", "budget_usd": "inf"}, "budget_usd"),
    ],
)
def test_a_bad_field_is_named(values: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        question_body(values, None)
    assert caught.value.field == field


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="such as 64MiB"):
        options_of({"memory_limit_bytes": "lots"})


def test_rules_go_to_the_worker_and_come_back() -> None:
    asked = {"pins": ["zero=3", "*.mlp.*:recompute!=yes"], "zero": [0, 3], "epsilon": 0.1}
    options = options_from_request(asked)
    document = json.loads(json.dumps(options_document(options)))
    assert sorted(document["pins"]) == ["*.mlp.*:recompute!=yes", "*:zero=3"]
    again = options_from_document(document, 2)
    assert {str(pin) for pin in again.pins} == {str(pin) for pin in options.pins}
    assert (again.zero, again.epsilon, again.threads) == ((0, 3), 0.1, 2)
    assert options_document(Options(overlap=False))["pins"] == []
    with pytest.raises(BadInput) as caught:
        options_from_request({"pins": ["nonsense"]})
    assert caught.value.field == "options.pins"
    with pytest.raises(BadInput) as caught:
        options_from_request({"pins": "zero=3"})
    assert caught.value.field is not None and caught.value.field.startswith("options")


def test_documents_of_older_releases_are_shown() -> None:
    """Members that came later may be absent."""
    point = {"memory_bytes": 2**30, "time_s": 1.0, "compute_s": 0.5, "communication_s": 0.5}
    context = frontier_context({"points": [point], "turning_point": None})
    assert (context["start"], context["fitting"]) == (0, 1)
    assert not any(context["shows"].values())
    context = frontier_context({"points": [{**point, "replayed_time_s": 2.0}]})
    assert context["shows"]["replayed_time_s"]
    assert frontier_context({"points": []})["start"] == 0
    curve = {"points": [{"gpus": 1, "feasible": False, "reason": "too large"}]}
    assert curve_context(curve)["fewest"] is None
    assert quote_context({"offers": []})["columns"]["usd_total"] is False


def test_a_frontier_of_replayed_steps_is_shown_on_their_axes() -> None:
    result = msgspec.to_builtins(replayed_frontier())
    context = frontier_context(result)
    assert context["names"] == {
        0: "least memory", 1: "turning point, fastest that fits", 2: "fastest of all"
    }  # fmt: skip
    data = context["data"]
    assert [point[data["memory"]] / 2**30 for point in data["points"]] == [2, 3, 5]
    assert [point[data["time"]] for point in data["points"]] == [1.0, 0.75, 0.5]
    assert _table("frontier", result) == [
        "Point|Peak of one GPU|Time of a step|Compute|Exposed communication|Gap|Fits",
        "1|2.00 GiB|1.00 s|250 ms|750 ms|25.0 %|yes, least memory",
        "2|3.00 GiB|750 ms|250 ms|500 ms|3.00 %|yes, turning point, fastest that fits",
        "3|5.00 GiB|500 ms|250 ms|250 ms|–|no, fastest of all",
    ]


def test_a_frontier_of_sums_is_shown_by_peak_and_sum_of_times() -> None:
    """The peak decides what fits. Sums of an earlier release may have overlap too."""
    result = msgspec.to_builtins(replayed_frontier())
    points = [{k: v for k, v in p.items() if k != "gap"} for p in reversed(result["points"])]
    for overlap in ({}, {"overlap": False}, {"overlap": True}):
        older = {k: v for k, v in result.items() if k != "overlap"} | overlap
        older["points"] = points
        context = frontier_context(older)
        assert context["names"] == {
            1: "turning point", 2: "least memory, fastest that fits, fastest of all"
        }  # fmt: skip
        assert _table("frontier", older)[:2] == [
            "Point|Peak of one GPU|Time of a step|Compute|Communication|Memory added up|"
            "Replayed time|Fits",
            "1|5.00 GiB|1.75 s|250 ms|1.50 s|7.00 GiB|500 ms|no",
        ]


def test_a_curve_of_replayed_steps_shows_their_times() -> None:
    result = msgspec.to_builtins(replayed_curve())
    for overlap, times in (
        (True, ["1.00 s", "750 ms", "500 ms"]),
        (False, ["1.25 s", "1.50 s", "1.75 s"]),
    ):
        _, *rows = _table("curve", {**result, "overlap": overlap})
        assert [row.split("|")[2] for row in rows] == times
    assert curve_context(result)["fastest"]["gpus"] == 3
    assert curve_context({**result, "overlap": False})["fastest"]["gpus"] == 1
    without = [{k: v for k, v in p.items() if k != "replayed_time_s"} for p in result["points"]]
    assert curve_context({**result, "points": without})["time"] == "time_s"


def _table(kind: str, result: dict[str, Any]) -> list[str]:
    """Returns the rows of the page's table as `cell|cell`, without the last two columns."""
    rows = re.findall(r"<tr>(.*?)</tr>", rendered(kind, result))
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    return ["|".join(row[:-2]) for row in cells]


def test_a_plan_without_zero_or_recompute_is_a_table() -> None:
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware("dgx-v100-16gb")
    plan = advice.plan(graph, hardware, 8, options=Options(overlap=False, zero=(0,)))
    axes = [MeshAxis("m0", 2, "between nodes"), MeshAxis("m1", 4, "inside a node")]
    group = replace(
        plan.groups[0], split={"m0": "batch", "m1": None}, zero=0, zero_axes=[], recompute=False
    )
    groups = [
        replace(group, name="a"),
        replace(group, name="b"),
        replace(group, name="c", split={"m0": None, "m1": "out"}),
    ]
    plan = replace(plan, mesh=MeshDescription(axes), groups=groups)
    context = plan_context(msgspec.to_builtins(plan))
    assert [row["names"] for row in context["rows"]] == [["a", "b"], ["c"]]
    assert [[cell["variable"] for cell in cells] for cells in context["columns"]] == [
        ["batch", None], ["batch", None], [None, "out"]
    ]  # fmt: skip
    assert context["legend"] == [("batch", "v0"), ("out", "v1")]
    assert not context["has_zero"] and not context["has_recompute"]
    shared = replace(group, name="d", zero=3, zero_axes=["m1"], recompute=True)
    context = plan_context(msgspec.to_builtins(replace(plan, groups=[shared])))
    assert [cell["zero"] for cell in context["columns"][0]] == [0, 3]
    assert context["recomputed"] == 1


def test_a_curve_of_an_earlier_version_has_a_row_for_each_count() -> None:
    points = [
        {"gpus": 1, "feasible": False, "reason": "needs 20.0 GiB per GPU at the least"},
        {"gpus": 2, "feasible": False},
        {"gpus": 3, "feasible": True, "time_s": 1.0},
    ]
    rows = curve_context({"points": points})["rows"]
    assert [(row.get("gpus"), row.get("reason"), row["point"]) for row in rows] == [
        ("1", "needs 20.0 GiB per GPU at the least", None),
        ("2", "nothing fits", None),
        (None, None, points[2]),
    ]
    assert rows[2]["index"] == 2
