"""From an answer to what practitioners use on the same devices, in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import HARDWARE, ask, drawn, faults
from harness.page.page_steps import answered as ended
from harness.service.service_harness import Service
from harness.stored import STORED
from service.page import units
from service.page.views.to_compare import comparable
from shardwise.documents import Comparison, read
from shardwise.documents.comparison import ranked

PLAN, CURVE, QUOTE = (STORED[name].body for name in ("plan", "curve", "quote"))


def compared(page: Page, service: Service, job: str) -> dict[str, Any]:
    """Opens an answer and follows its button. Returns the job of the comparison."""
    page.goto(f"/jobs/{job}")
    ended(page)
    page.get_by_role("button", name="Compare with what practitioners use").click()
    page.wait_for_url(re.compile("/jobs/compare_"))
    ended(page)
    where = f"/v1/comparisons/{page.url.rpartition('/')[2]}"
    found: dict[str, Any] = service.client.get(where).json()
    return found


def asked(service: Service, collection: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the job of a question, which has its answer if that is kept."""
    made = service.client.post(f"/v1/{collection}", json=body)
    assert made.status_code in (200, 202), made.text
    job: dict[str, Any] = made.json()
    return job


def test_a_plan_is_compared_and_every_system_is_a_row(page: Page, service: Service) -> None:
    """With the options of the plan but for its rules, which comparisons do not take."""
    rules = {**PLAN["options"], "pins": ["split=batch"]}
    job = compared(page, service, asked(service, "plans", {**PLAN, "options": rules})["id"])
    question = job["question"]
    assert (question["gpus"], question["hardware"]) == (4, HARDWARE)
    assert question["options"]["micro_batches"] == [1] and question["options"]["pins"] == []
    title = "What practitioners use for small GPT"
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    rows = page.get_by_role("region", name="Systems").locator("tbody tr")
    expected = ranked(read(job["result"], Comparison))
    assert rows.count() == len(expected) > 5
    for row, (method, point) in zip(rows.all(), expected, strict=True):
        assert row.get_by_role("rowheader").inner_text() == method.title
        cells = row.get_by_role("cell").all_inner_texts()
        assert cells[0] == units.seconds(point.replayed_time_s)
        assert cells[4] == units.size(point.replayed_peak_bytes)
        assert cells[5] == ("yes" if point.feasible else "no")
    drawn(page)
    names = page.evaluate("document.getElementById('plot').data.map(one => one.name)")
    assert names == [one["title"] for one in job["result"]["methods"] if one["points"]]
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.get_by_role("radio", name="Compare")).to_be_checked()
    expect(page.get_by_label("FlexFlow’s proposals")).to_be_visible()


def test_a_curve_is_compared_on_its_fastest_count_and_a_quote_on_its_first_offer(
    page: Page, service: Service
) -> None:
    curve = asked(service, "curves", CURVE)
    job = compared(page, service, curve["id"])
    points = curve["result"]["points"]
    fitting = [point for point in points if point["feasible"]]
    fastest = min(fitting, key=lambda point: float(point["replayed_time_s"]))
    assert job["question"]["gpus"] == fastest["gpus"]
    quote = asked(service, "quotes", QUOTE)
    job = compared(page, service, quote["id"])
    assert job["question"]["gpus"] == quote["result"]["offers"][0]["gpus"]
    assert job["question"]["hardware"] == f"{HARDWARE}[{job['question']['gpus']}]"


def test_pipelines_have_a_table_and_a_comparison_asks_for_those_of_its_answer(
    page: Page, service: Service
) -> None:
    pipelines = {"stages": [2], "schedules": ["1f1b", "zb-h1"]}
    plan = asked(service, "plans", STORED["comparison-pipelines"].body)
    job = compared(page, service, plan["id"])
    assert {name: job["question"][name] for name in pipelines} == pipelines
    methods = job["result"]["methods"]
    piped = [p for one in methods for p in one["points"] if p.get("pipeline")]
    table = page.get_by_role("region", name="Pipelines").locator("tbody tr")
    assert table.count() == len(piped) >= 3
    for row, point in zip(table.all(), piped, strict=True):
        cells = row.get_by_role("cell").all_inner_texts()
        pipeline = point["pipeline"]
        assert cells[1] == pipeline["schedule"]
        assert cells[2] == units.seconds(point["replayed_time_s"])
        assert cells[3] == units.percent(pipeline["idle"])
        assert cells[4] == ", ".join(map(units.size, pipeline["peak_bytes"]))
    systems = page.get_by_role("region", name="Systems")
    for name in ("Megatron-style 3D", "Zero Bubble", "Alpa-like"):
        expect(systems.get_by_role("rowheader", name=name)).to_be_visible()
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.get_by_label("Pipeline stages")).to_have_value("2")
    expect(page.get_by_label("Schedules")).to_have_value("1f1b,zb-h1")


@pytest.mark.full
def test_the_form_asks_for_a_comparison_by_sums(page: Page, service: Service) -> None:
    ask(page, "compare", PLAN["graph"], overlap="false")
    ended(page)
    job = service.client.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()
    assert job["question"]["options"]["overlap"] is False
    rows = page.get_by_role("region", name="Systems").locator("tbody tr")
    assert rows.count() >= len(job["result"]["methods"])
    assert faults(page) == []


def test_what_a_comparison_does_not_take_is_left_out() -> None:
    taken = {"epsilon": 0.1, "overlap": False, "micro_batches": [1]}
    assert comparable({**taken, "pins": ["split=batch"], "method": "tofu"}) == taken
    assert comparable({**taken, "micro_batches": [1, 2]}) == {"epsilon": 0.1, "overlap": False}
    kept = {"overlap": True, "micro_batches": [1, 2], "method": "auto"}
    assert comparable(kept) == kept
