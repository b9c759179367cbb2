"""From a file to a plan, in a browser: upload, ask, watch, look at points, their plans."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from harness.page.page_steps import HARDWARE, SMALL, answered, ask, drawn, plotted
from harness.page.rendered import rendered
from harness.replayed_frontier import replayed_frontier
from harness.service.service_harness import Service

HTML = "text/html; charset=utf-8"


def test_from_an_upload_to_a_points_plan(page: Page, tiny_graph: Path, service: Service) -> None:
    packed = tiny_graph.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(tiny_graph.read_bytes()))
    page.goto("/graphs")
    page.get_by_label("File").set_input_files(packed)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("status")).to_contain_text("The graph is stored")
    expect(page.get_by_label("Graph").locator("option:checked")).to_contain_text("tiny <&> model")
    page.get_by_label("Hardware").select_option(HARDWARE)
    page.locator("#gpus").fill("4")
    page.get_by_role("button", name="Ask").click()
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Frontier of tiny <&> model")
    job = page.url.rpartition("/")[2]
    result = service.client.get(f"/v1/frontiers/{job}").json()["result"]
    drawn(page)
    marks = plotted(page, "fits")
    assert [mark["point"] for mark in marks] == list(range(len(result["points"])))

    last = marks[-1]
    page.mouse.move(last["x"], last["y"])
    expect(page.locator("#number")).to_have_text(str(len(marks)))
    details = page.locator("#details")
    for words in ("fastest", "Compute", "Synchronisation", "Activations", "Its plan"):
        expect(details).to_contain_text(words)
    expect(details).to_contain_text(result["points"][-1]["splits"][0]["split"])

    page.mouse.click(last["x"], last["y"])
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan for tiny <&> model")
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()["result"]
    assert plan["id"] == result["points"][-1]["plan_id"]
    table = page.get_by_role("table").filter(has_text="Alike").first
    for axis in plan["mesh"]["axes"]:
        expect(table.locator("thead")).to_contain_text(axis["name"])
    for group in plan["groups"]:
        expect(table).to_contain_text(group["name"])
    cells = len(plan["groups"]) * len(plan["mesh"]["axes"])
    expect(page.locator("svg.weave rect")).to_have_count(cells)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_frontier_is_plotted_on_the_axes_of_its_order(page: Page, overlap: bool) -> None:
    document = replayed_frontier()
    if not overlap:
        document = replace(document, overlap=False, points=document.points[::-1])
    body = rendered("frontier", document)
    page.route("**/jobs/frontier_0", lambda route: route.fulfill(body=body, content_type=HTML))
    page.goto("/jobs/frontier_0")
    drawn(page)
    x, y, title = page.evaluate(
        """() => {
            const place = document.getElementById("plot");
            const { x, y } = place.data[0];
            return [x, y, place.layout.xaxis.title.text];
        }"""
    )
    details = page.locator("#details")
    expect(details).to_contain_text("fastest that fits")
    assert title == "peak memory of one GPU (GiB)", "what fits is decided by the peak"
    if overlap:
        assert (x, y) == ([2, 3, 5], [1.0, 0.75, 0.5])
        for words in (
            "3.00 GiB at the peak, 750 ms",
            "Exposed communication500 ms",
            "3.0 % faster",
        ):
            expect(details).to_contain_text(words)
        assert page.evaluate("document.getElementById('plot').layout.shapes[0].x0") == 4
    else:
        assert (x, y) == ([2], [1.25]), "the line joins what no other beats"
        shown = [(mark["point"]) for mark in plotted(page, "fits")]
        assert shown == [1, 2]
        for words in ("Together1.25 s", "Replayed: 1.00 s", "2.00 GiB at the peak"):
            expect(details).to_contain_text(words)
        expect(page.get_by_role("columnheader", name="Memory added up")).to_be_attached()


@pytest.mark.full
def test_every_point_has_a_row_and_its_own_plan(page: Page, service: Service) -> None:
    job = ask(page, "frontier", gpus=2, micro_batches="1")
    answered(page)
    points = service.client.get(f"/v1/frontiers/{job}").json()["result"]["points"]
    page.get_by_text("All points as a table").click()
    rows = page.get_by_role("region", name="All points").locator("tbody tr")
    expect(rows).to_have_count(len(points))
    middle = len(points) // 2
    rows.nth(middle).get_by_role("button").click()
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()["result"]
    assert plan["id"] == points[middle]["plan_id"]
    assert plan["predicted"]["memory_bytes"] == points[middle]["memory_bytes"]


def test_progress_is_watched_and_cancelled(visit: Callable[..., Page]) -> None:
    page = visit()
    job = ask(page, "curve", graph="shipped:llama-8b", gpus=512)
    expect(page.locator("#words")).to_contain_text("of 512)")
    expect(page.locator("#known")).to_contain_text("1, 2, 4")
    expect(page.locator("#plot[data-drawn=yes]")).to_be_visible()
    expect(page.locator("#bar")).not_to_have_js_property("value", 0)
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#told")).to_contain_text("running")
    jobs = visit()
    jobs.goto("/jobs?state=running")
    row = jobs.locator("tbody tr").filter(has_text="up to 512")
    expect(row.get_by_role("progressbar")).to_be_visible()
    row.get_by_role("button", name="Cancel").click()
    jobs.wait_for_url(re.compile(job))
    # The page loads itself again when the job has ended.
    expect(jobs.get_by_text("This job was cancelled.")).to_be_visible()
    expect(page.get_by_text("This job was cancelled.")).to_be_visible()
    jobs.goto("/jobs")
    expect(jobs.locator("tbody tr").filter(has_text="up to 512").first).to_contain_text("cancelled")


@pytest.mark.full
def test_the_list_of_jobs_keeps_itself_fresh(visit: Callable[..., Page]) -> None:
    page = visit()
    job = ask(page, "curve", graph="shipped:llama-8b", gpus=500)
    jobs = visit()
    jobs.goto("/jobs")
    row = jobs.locator(f"tr:has(a[href='/jobs/{job}'])")
    expect(row).to_have_attribute("data-state", re.compile("queued|running"))
    page.get_by_role("button", name="Cancel").click()
    expect(row).to_have_attribute("data-state", "cancelled")
    expect(page.get_by_text("This job was cancelled.")).to_be_visible()


@pytest.mark.full
def test_a_curve_marks_what_does_not_fit_and_says_why(page: Page, service: Service) -> None:
    job = ask(page, "curve", gpus=6, recompute="never", micro_batches="1")
    answered(page)
    drawn(page)
    curve = service.client.get(f"/v1/curves/{job}").json()["result"]
    points, ranges = curve["points"], curve["does_not_fit"]
    not_fitting = [p for p in points if not p["feasible"]]
    assert 0 < len(not_fitting) < len(points)
    assert len(plotted(page, "infeasible")) == len(not_fitting)
    assert len(plotted(page, "exactly n GPUs")) == len(points) - len(not_fitting)
    assert len(plotted(page, "samples per second")) == len(points) - len(not_fitting)
    rows = page.get_by_role("region", name="Every count").locator("tbody tr")
    expect(rows).to_have_count(len(ranges) + len(points) - len(not_fitting))
    for of in ranges:
        counts = f"{of['first']}" + (f" to {of['last']}" if of["last"] > of["first"] else "")
        row = rows.filter(has=page.get_by_role("rowheader", name=counts, exact=True))
        expect(row).to_contain_text(f"{of['least_bytes'] / 2**30:.1f} of ")
    mark = plotted(page, "infeasible")[0]
    page.mouse.move(mark["x"], mark["y"])
    expect(page.locator("#plot .hoverlayer")).to_contain_text("infeasible")
    expect(page.locator("#plot .hoverlayer")).to_contain_text("GiB per GPU")
    mark = plotted(page, "exactly n GPUs")[-1]
    page.mouse.click(mark["x"], mark["y"])
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()["result"]
    assert (plan["gpus"], plan["id"]) == (6, points[-1]["plan_id"])


OFFERS = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Provider\n"
    "small,V100,1,2.5,here,me\nlarge,V100,8,20,here,me\n"
)


@pytest.mark.full
def test_a_quote_from_offers_of_ones_own(page: Page, tmp_path: Path, service: Service) -> None:
    offers = tmp_path / "offers.csv"
    offers.write_text(OFFERS)
    page.goto("/")
    page.get_by_role("radio", name="Quote").check()
    expect(page.get_by_label("Hardware")).to_be_hidden()
    page.get_by_label("Steps").fill("1000")
    page.get_by_label("Deadline").fill("1")
    page.get_by_label("Instances, at most").fill("2")
    page.get_by_label("Offers of your own").set_input_files(offers)
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Recompute").select_option("never")
    page.get_by_label("Micro-batches").fill("1")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile("/jobs/quote_"))
    answered(page)
    job = page.url.rpartition("/")[2]
    quote = service.client.get(f"/v1/quotes/{job}").json()["result"]
    rows = page.get_by_role("region", name="Offers").locator("tbody tr")
    assert quote["offers"]
    expect(rows).to_have_count(len(quote["offers"]))
    expect(rows.first).to_contain_text(f"${quote['offers'][0]['usd_total']:,.2f}")
    expect(rows.first).to_contain_text("large")
    page.get_by_text("Not offered").click()
    expect(page.get_by_role("region", name="Not offered")).to_contain_text("small")
    rows.first.get_by_role("button").click()
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()["result"]
    assert plan["id"] == quote["offers"][0]["plan_id"]


@pytest.mark.full
def test_a_plan_shows_zero_recompute_and_rules(page: Page, service: Service) -> None:
    job = ask(
        page, "plan", gpus=4, recompute="always", pins="inside=batch\nzero=3", micro_batches="1,2"
    )
    answered(page)
    result = service.client.get(f"/v1/plans/{job}").json()["result"]
    assert all(set(g["split"].values()) <= {"batch", None} for g in result["groups"])
    assert any(group["recompute"] for group in result["groups"])
    table = page.locator("table.layers")
    expect(table).to_contain_text("ZeRO-3")
    expect(table.locator("thead")).to_contain_text("Recompute")
    expect(page.locator(".facts")).to_contain_text("zero=3")
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.get_by_label("Rules")).to_have_value(
        re.compile(r"^\*:(inside=batch|zero=3)\n\*:(inside=batch|zero=3)$")
    )
    expect(page.get_by_label("Micro-batches")).to_have_value("1,2")
    expect(page.get_by_label("Recompute")).to_have_value("always")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile(job))


def test_a_plan_for_a_trainer_has_its_file(page: Page, service: Service) -> None:
    job = ask(page, "plan", space="deepspeed", micro_batches="1")
    answered(page)
    expect(page.locator(".facts")).to_contain_text("deepspeed")
    export = service.client.get(f"/v1/plans/{job}/export?to=deepspeed").json()
    card = page.get_by_role("region", name="For deepspeed")
    assert card.locator("pre").inner_text().strip() == export["text"].strip()
    for sentence in export["unsaid"]:
        expect(card).to_contain_text(sentence)
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.locator("#space")).to_have_value("deepspeed")

    body = {"graph": SMALL, "hardware": HARDWARE, "gpus": 4,
            "configuration": export["text"], "options": {"micro_batches": [1]}}  # fmt: skip
    priced = service.client.post("/v1/pricings", json=body).json()
    page.goto(f"/jobs/{priced['id']}")
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("A configuration for small GPT")
    result = service.client.get(priced["location"]).json()["result"]
    table = page.get_by_role("table").filter(has_text="Change")
    for one in result["alternatives"]:
        expect(table.get_by_role("row", name=one["text"])).to_contain_text(
            f"{100 * one['saves']:+.1f} %"
        )
    page.goto("/jobs")
    expect(page.get_by_role("main")).to_contain_text("pricing")


def test_the_document_is_the_one_of_the_interface(page: Page, service: Service) -> None:
    job = ask(page, "plan", gpus=4, micro_batches="1")
    answered(page)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download JSON").click()
    saved = json.loads(Path(waiting.value.path()).read_text())
    assert saved == service.client.get(f"/v1/plans/{job}").json()["result"]


def test_it_works_without_javascript(visit: Callable[..., Page], service: Service) -> None:
    page = visit(java_script_enabled=False)
    page.goto("/")
    page.get_by_label("Graph").select_option(SMALL)
    page.locator("#gpus").fill("3")
    page.get_by_label("Hardware").select_option(HARDWARE)
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Micro-batches").fill("1")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile("/jobs/frontier_"))
    job = page.url.rpartition("/")[2]
    service.ended(f"/v1/frontiers/{job}", within_s=180)
    # It loads itself again until the job has ended.
    expect(page.get_by_role("heading", level=1)).to_have_text("Frontier of small GPT")
    page.get_by_text("All points as a table").click()
    page.get_by_role("region", name="All points").get_by_role("button").first.click()
    expect(page).to_have_url(re.compile("/jobs/plan_"))


@pytest.mark.full
def test_a_profile_of_ones_own_is_offered(page: Page, tmp_path: Path) -> None:
    from shardwise.hardware import hardware_document, load_hardware

    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**hardware_document(load_hardware("l4")), "name": "my cluster"}))
    page.goto("/hardware")
    page.get_by_label("Profile", exact=True).set_input_files(path)
    page.get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="my cluster").click()
    page.get_by_role("link", name="Ask with it").click()
    expect(page.get_by_label("Hardware").locator("option:checked")).to_contain_text("my cluster")
    page.locator("#gpus").fill("1")
    page.get_by_role("button", name="Ask").click()
    answered(page)
    expect(page.locator(".facts").first).to_contain_text("my cluster")
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.get_by_label("Hardware").locator("option:checked")).to_contain_text("my cluster")
    page.goto("/hardware")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete my cluster").click()
    expect(page.get_by_role("link", name="my cluster")).to_have_count(0)


def test_a_pipeline_shows_its_stages_and_its_step(visit: Any, service: Service) -> None:
    visit.expected.append("422")
    page: Page = visit()
    # No pipeline is faster here.
    job = ask(page, "plan", graph="shipped:gpt2", stages="1,2", micro_batches="8")
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan for gpt2")
    expect(page.locator(".facts")).to_contain_text("1, 2")
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.locator("#stages")).to_have_value("1,2")
    page.locator("#stages").fill("2")
    page.locator("#schedules").fill("gpipe")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile(r"/jobs/plan_(?!" + job.removeprefix("plan_") + ")"))
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Pipeline for gpt2")
    result = service.client.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()["result"]
    assert result["schema"] == "shardwise.pipeline/1" and result["schedule"] == "gpipe"
    table = page.get_by_role("region", name="Stages")
    for number, stage in enumerate(result["stages"]):
        row = table.get_by_role("row").nth(number + 1)
        expect(row).to_contain_text(stage["label"])
        expect(row).to_contain_text(stage["first_unit"].removeprefix("transformer."))
    chart = page.get_by_role("img", name=re.compile("Gantt chart of a step"))
    assert chart.locator("rect.backward").count() == 16
    assert chart.locator("polygon.memory").count() == 2
    page.goto(f"/compare?a={job}&b={page.url.rpartition('/')[2]}")
    expect(page.get_by_role("main")).to_contain_text("2 stages, gpipe")
    page.goto("/?kind=plan&stages=2")
    page.locator("#stages").fill("two")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("names no numbers of stages")
    expect(page.locator("#stages")).to_have_attribute("aria-invalid", "true")
