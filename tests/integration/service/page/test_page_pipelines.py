"""Pipelines in frontiers, curves and quotes, in a browser: asked, seen, planned.

That these views are accessible and fit is in test_page_for_everybody.py.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import answered as ended
from harness.page.page_steps import ask, drawn, plotted
from harness.service.answered import Answered
from harness.service.service_harness import Service
from harness.stored import STORED, content
from service.page import units
from shardwise.texts import counted

SHAPE = re.compile(r"\d stages, 1f1b(-eager)?, 8 micro-batches")


def answer(answered: Answered, name: str) -> tuple[str, dict[str, Any]]:
    """Returns the path of an answer's page, and the answer."""
    return answered.page(name), dict(msgspec.json.decode(content(name)))


def planned(page: Page, service: Service) -> dict[str, Any]:
    """Returns the pipeline of the page that a click led to."""
    page.wait_for_url(re.compile("/jobs/plan_"))
    ended(page)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Pipeline for")
    pipeline = service.client.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()["result"]
    assert pipeline["schema"] == "shardwise.pipeline/1"
    return dict(pipeline)


def click(page: Page, trace: str, number: int) -> None:
    """Clicks a mark of a trace."""
    page.locator("#plot").scroll_into_view_if_needed()
    mark = plotted(page, trace)[number]
    page.mouse.click(mark["x"], mark["y"])


def test_a_frontier_has_diamonds_and_rows(page: Page, answered: Answered) -> None:
    service = answered.service
    path, frontier = answer(answered, "frontier-pipelines")
    points, pipelines = frontier["points"], frontier["pipelines"]
    assert pipelines, "this test needs one"
    page.goto(path)
    drawn(page)
    expect(page.get_by_role("main")).to_contain_text(
        f"None of these beats {counted(len(pipelines), 'pipeline')}"
    )
    marks = plotted(page, "pipelines")
    assert [mark["point"] for mark in marks] == [*range(len(points), len(points) + len(marks))]
    assert len(marks) == len(pipelines)
    shown = page.evaluate(
        """() => {
            const { data } = document.getElementById("plot");
            const trace = data.find((one) => one.name === "pipelines");
            return [trace.marker.symbol, trace.x, trace.y];
        }"""
    )
    assert shown[0] == "diamond" and shown[2] == [one["step_s"] for one in pipelines]
    assert shown[1] == [one["peak_bytes"] / 2**30 for one in pipelines]

    page.mouse.move(marks[0]["x"], marks[0]["y"])
    expect(page.locator("#point-title")).to_have_text(f"Pipeline 1 of {len(pipelines)}")
    first = pipelines[0]
    details = page.locator("#details")
    expect(details).to_contain_text(f"{first['stages']} stages, {first['schedule']}, 8 micro")
    expect(details.locator("li")).to_have_count(first["stages"])
    expect(details).to_contain_text(f"from {first['first_units'][1]}: {first['labels'][1]}")
    page.locator("#at").fill("0")
    expect(page.locator("#point-title")).to_have_text(f"Point 1 of {len(points)}")
    rows = page.get_by_role("region", name="Pipelines").locator("tbody tr")
    expect(rows).to_have_count(len(pipelines))
    for number, one in enumerate(pipelines):
        expect(rows.nth(number)).to_contain_text(one["schedule"])
        expect(rows.nth(number)).to_contain_text(one["labels"][0])

    click(page, "pipelines", 0)
    found = planned(page, service)
    assert len(found["stages"]) == first["stages"] and found["schedule"] == first["schedule"]
    assert found["predicted"]["peak_bytes"] <= first["peak_bytes"]
    assert found["predicted"]["step_s"] <= 1.05 * first["step_s"]
    page.goto(path)
    rows.last.get_by_role("button").click()
    fastest = planned(page, service)["predicted"]
    assert fastest["peak_bytes"] <= pipelines[-1]["peak_bytes"]
    assert fastest["step_s"] <= 1.01 * pipelines[-1]["step_s"]


def test_a_curve_counts_pipelines(page: Page, answered: Answered) -> None:
    service = answered.service
    path, curve = answer(answered, "curve-pipelines")
    points = curve["points"]
    piped = [i for i, point in enumerate(points) if "pipeline" in point]
    assert piped[-1] == 4 and not points[4]["feasible"]
    page.goto(path)
    drawn(page)
    assert [mark["point"] for mark in plotted(page, "by a pipeline")] == piped
    fewest = next(i for i, p in enumerate(points) if p["feasible"] or "pipeline" in p) + 1
    expect(page.get_by_role("main")).to_contain_text(f"It fits from {fewest} GPUs on")
    rows = page.get_by_role("region", name="Every count").locator("tbody tr")
    last = rows.filter(has=page.get_by_role("rowheader", name="5", exact=True))
    pipeline = points[4]["pipeline"]
    expect(last).to_contain_text(f"{pipeline['stages']} stages, {pipeline['schedule']}, 8 micro")
    click(page, "by a pipeline", -1)
    assert planned(page, service)["id"] == pipeline["id"]


def test_a_curve_over_bundles_counts_pipelines(page: Page, answered: Answered) -> None:
    """Weights are on every device of a stage here too."""
    service = answered.service
    path, curve = answer(answered, "bundles-pipelines")
    points = curve["points"]
    piped = next(i for i, point in enumerate(points) if "pipeline" in point)
    point = points[piped]
    page.goto(path)
    drawn(page)
    row = page.get_by_role("region", name="Every bundle").locator("tbody tr").nth(piped)
    expect(row).to_contain_text("4 stages (2 ")
    expect(row).to_contain_text(units.size(point["pipeline"]["peak_bytes"]))
    expect(row).not_to_contain_text("GPUs are faster")
    row.get_by_role("button").click()
    plan = planned(page, service)
    assert plan["id"] == point["pipeline"]["id"]
    assert [stage["group"] for stage in plan["stages"]] == point["pipeline"]["groups"]


def test_a_quote_names_its_pipeline(page: Page, answered: Answered) -> None:
    service = answered.service
    path, quote = answer(answered, "quote-pipelines")
    page.goto(path)
    row = page.get_by_role("region", name="Offers").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("td", has_text=SHAPE)).to_have_count(1)
    row.get_by_role("button").click()
    assert planned(page, service)["id"] == quote["offers"][0]["pipeline"]["id"]
    plain, _ = answer(answered, "quote")
    page.goto(f"/compare?a={path.rpartition('/')[2]}&b={plain.rpartition('/')[2]}")
    expect(page.get_by_role("main")).to_contain_text("5 stages, 1f1b")


@pytest.mark.parametrize("kind", ["frontier", "curve", "quote"])
def test_the_form_asks_for_stages(visit: Any, service: Service, kind: str) -> None:
    visit.expected.append("422")
    page: Page = visit()
    asked = {"stages": "1,2", "schedules": "gpipe", "micro_batches": "8"}
    job = ask(page, kind, STORED["frontier-mlp"].body["graph"], gpus=2, **asked)
    question = service.client.get(f"/v1/jobs/{job}").json()["question"]
    assert (question["stages"], question["schedules"]) == ([2], ["gpipe"])
    if kind == "quote":  # of all shipped offers: to be asked is enough
        assert service.client.delete(f"/v1/quotes/{job}").status_code == 200
        return
    ended(page)
    expect(page.locator(".facts").first).to_contain_text("gpipe")
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.locator("#stages")).to_have_value("2")
    page.get_by_role("radio", name="Compare").check()
    expect(page.locator("#schedules")).to_be_visible()
    expect(page.locator("#stages")).to_be_visible()
    page.get_by_role("radio", name=kind.capitalize()).check()
    page.locator("#schedules").fill("dualpipe")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown schedule 'dualpipe'")
    expect(page.locator("#schedules")).to_have_attribute("aria-invalid", "true")
