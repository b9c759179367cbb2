"""Keyboard, screen readers, colours, narrow screens, and what is said when something is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.graph_builder import mlp
from harness.page.page_steps import (
    HARDWARE,
    answered,
    ask,
    becomes_narrow,
    cut_off,
    drawn,
    faults,
    without_rows_alike,
)
from harness.service.answered import Answered
from harness.service.service_harness import Service
from harness.service.steps import upload
from harness.tiers import some

LOOKS = (("light", 1280), ("dark", 390))
"""Colours and width of views that axe looks at."""


@pytest.fixture(scope="module")
def views(answered: Answered) -> dict[str, str]:
    """An address of every view, with something in it."""
    paths = {
        name: f"/{name}"
        for name in ("graphs", "hardware", "jobs", "agents", "launches", "accuracy", "usage")
    }
    paths["ask"] = "/"
    paths["profile"] = "/hardware/heterog-8"
    paths["search"] = "/jobs?text=GPT&kind=plan&state=done"
    paths |= {name: answered.page(name) for name in answered.jobs}
    body = {"graph": "shipped:llama-8b", "hardware": HARDWARE, "max_gpus": 400}
    made = answered.client.post("/v1/curves", json=body).headers["Location"]
    answered.client.delete(made)
    answered.service.ended(made)
    paths["cancelled"] = f"/jobs/{made.rpartition('/')[2]}"
    plan, trainer = (answered.jobs[name] for name in ("plan", "trainer"))
    paths["compare"] = f"/compare?a={plan}&b={trainer}"
    paths["missing"] = "/jobs/plan_0"
    return paths


def looked_at(page: Page, name: str, address: str, scheme: Any, width: int) -> list[str]:
    """Returns what axe finds in a view, and on which screens it does not fit."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address)
    if page.locator("#plot").count():
        drawn(page)
    page.evaluate("document.querySelectorAll('main details').forEach((fold) => fold.open = true)")
    problems = []
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("main").count() == 1
    for screen in sorted((1280, 390, 360), key=width.__eq__):
        page.set_viewport_size({"width": screen, "height": 800})
        if not becomes_narrow(page):
            problems.append(f"{name} is wider than {screen} px")
        problems += [f"{name} at {screen} px: {what} is cut off" for what in cut_off(page)]
    # The last screen is the one that axe is to see.
    without_rows_alike(page)
    return problems + faults(page)


@pytest.mark.parametrize("first", some((0, 1), lambda first: first == 0))
def test_every_view_is_accessible_and_fits(visit: Any, views: dict[str, str], first: int) -> None:
    """Every other view in light colours on a wide screen, the others in dark ones on a phone; the
    second time the other way round."""
    visit.expected.append("404")
    page = visit()
    problems = []
    for number, (name, address) in enumerate(views.items()):
        problems += looked_at(page, name, address, *LOOKS[(number + first) % len(LOOKS)])
    assert problems == []


@pytest.mark.full
def test_progress_is_accessible(visit: Callable[..., Page]) -> None:
    page = visit(viewport={"width": 360, "height": 800})
    ask(page, "curve", graph="shipped:llama-8b", gpus=499)
    expect(page.locator("#words")).to_contain_text("of 499")
    assert page.locator("#told").get_attribute("aria-live") == "polite"
    assert faults(page) == []
    page.get_by_role("button", name="Cancel").click()
    answered(page)


def test_everything_goes_by_keyboard(page: Page) -> None:
    def focused() -> str:
        text: str = page.evaluate("document.activeElement.id || document.activeElement.innerText")
        return text

    def tab_to(name: str, most: int = 40) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            if focused() == name:
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"{name} shows no focus"
                return
        raise AssertionError(f"{name} is not reached by Tab")

    def choose(text: str) -> None:
        """Types what is wanted in a list; after a second a list forgets what was typed before."""
        chosen = "document.activeElement.selectedOptions[0].label"
        for _ in range(20):
            page.keyboard.type(text)
            if page.evaluate(chosen).startswith(text):
                return
            page.wait_for_timeout(1500)
        raise AssertionError(f"{text} is not chosen, but {page.evaluate(chosen)}")

    page.goto("/")
    page.keyboard.press("Tab")
    assert focused() == "Skip to content"
    page.keyboard.press("Enter")
    assert focused() == "main"
    tab_to("graph")
    choose("small GPT")
    tab_to("hardware")
    choose(HARDWARE)
    tab_to("gpus")
    page.keyboard.press("Control+A")
    page.keyboard.type("4")
    tab_to("Options")
    page.keyboard.press("Enter")
    tab_to("micro_batches")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs/frontier_"))
    answered(page)
    drawn(page)
    tab_to("at")
    page.keyboard.press("Home")
    expect(page.locator("#number")).to_have_text("1")
    expect(page.locator("#details")).to_contain_text("least memory")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#number")).to_have_text("2")
    value = page.locator("#at").get_attribute("aria-valuetext")
    assert value is not None and value.startswith("point 2: ")
    tab_to("Show its plan")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan for small GPT")


def ground(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_axes_are_logarithmic_by_range_or_by_choice(page: Page, views: dict[str, str]) -> None:
    page.goto(views["curve"])
    drawn(page)
    kinds = """() => ["xaxis", "yaxis", "xaxis2", "yaxis2"]
        .map((name) => document.getElementById("plot")._fullLayout[name].type)"""
    switch = page.get_by_label("Logarithmic axes")
    expect(switch).not_to_be_checked()
    assert page.evaluate(kinds) == ["linear"] * 4
    switch.focus()
    page.keyboard.press("Space")
    page.wait_for_function("document.getElementById('plot')._fullLayout.yaxis.type === 'log'")
    assert page.evaluate(kinds) == ["log"] * 4
    labels = page.locator("#plot .x2tick text")
    assert labels.all_text_contents() == ["1", "2", "4"]
    assert faults(page) == []


@pytest.mark.full
def test_dark_follows_the_system_and_the_toggle(
    visit: Callable[..., Page], views: dict[str, str]
) -> None:
    page = visit(color_scheme="dark")
    page.goto(views["frontier"])
    drawn(page)
    assert ground(page) == "rgb(17, 21, 27)"
    text = page.locator("#plot .xtick text").first
    expect(text).to_have_css("fill", "rgb(231, 236, 243)")
    page.get_by_role("button", name="Use light colours").click()
    assert ground(page) == "rgb(245, 247, 250)"
    expect(text).to_have_css("fill", "rgb(23, 32, 43)")
    page.reload()
    assert ground(page) == "rgb(245, 247, 250)"
    page.get_by_role("button", name="Use dark colours").click()
    assert ground(page) == "rgb(17, 21, 27)"
    plain = visit(color_scheme="dark", java_script_enabled=False)
    plain.goto("/")
    assert ground(plain) == "rgb(17, 21, 27)"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    some(
        [
            ("x.json", b'{"schema": "shardwise.graph/1", "name": "x", "tensors": [', "not JSON"),
            ("x.json", b'{"schema": "shardwise.graph/9"}', "schema"),
            ("x.json.gz", b"\x1f\x8bnothing", "gzip"),
            ("x.onnx", b"not a model", "ONNX"),
            ("x.json", b"", "empty"),
        ],
        lambda case: case[2] in ("not JSON", "ONNX"),
    ),
)
def test_a_bad_upload_is_refused_with_its_reason(
    visit: Any, name: str, content: bytes, said: str
) -> None:
    visit.expected += ["422", "400"]
    page = visit()
    page.goto("/graphs")
    file: Any = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(said)
    expect(alert).to_be_focused()
    expect(page.get_by_label("File")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("heading", level=1)).to_have_text("Graphs")
    assert faults(page) == []


@pytest.mark.parametrize(
    ("field", "value", "said"),
    some(
        [
            ("memory_limit_bytes", "much", "such as 64MiB"),
            ("pins", "nonsense", "not a rule"),
            ("epsilon", "99", "0 to 10"),
            ("micro_batches", "0", "numbers from 1"),
            ("nodes", "999", "nodes"),
            ("gpus", "100000", "from 1 to"),
        ],
        lambda case: case[0] in ("pins", "nodes"),
    ),
)
def test_a_bad_field_is_named_and_the_form_keeps_what_was_typed(
    visit: Any, field: str, value: str, said: str
) -> None:
    visit.expected.append("422")
    page = visit()
    page.goto("/")
    page.get_by_role("radio", name="Plan").check()
    page.get_by_label("Objective").select_option("mini-memory")
    page.get_by_text("Options", exact=True).click()
    page.locator(f"#{field}").fill(value)
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.get_by_role("alert")).to_be_focused()
    wrong = "hardware" if field == "nodes" else field
    expect(page.locator(f"#{wrong}")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(f"#{wrong}")).to_be_visible()
    expect(page.locator(f"#{field}")).to_have_value(value)
    expect(page.get_by_role("radio", name="Plan")).to_be_checked()
    expect(page.get_by_label("Objective")).to_have_value("mini-memory")
    assert faults(page) == []


def test_what_fits_nowhere_says_why(page: Page, views: dict[str, str]) -> None:
    page.goto(views["infeasible"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan: nothing fits")
    expect(page.get_by_role("note")).to_contain_text("GiB per GPU at the least")
    expect(page.get_by_role("main")).to_contain_text("micro-batches and ZeRO were allowed")
    expect(page.get_by_role("button", name="Try with")).to_have_count(0)
    expect(page.get_by_role("button", name="Try every number up to 8 GPUs")).to_be_visible()


@pytest.mark.parametrize(("option", "value"), [("recompute", "never"), ("overlap", "false")])
def test_what_fits_nowhere_is_tried_with_recomputation(
    page: Page, service: Service, option: str, value: str
) -> None:
    """Of a graph with many samples between small weights: micro-batches fit, and searches end."""
    tall = upload(service, mlp(8192, 64, 64, "tall MLP"))
    forbidden: Any = {option: value, "micro_batches": "1"}
    ask(page, "plan", graph=tall, memory_limit_bytes="1MB", **forbidden)
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan: nothing fits")
    page.get_by_role("button", name="Try with recomputation and micro-batches").click()
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Plan for tall MLP")
    job = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()
    assert job["question"]["options"]["memory_limit_bytes"] == 1e6
    assert job["result"]["micro_batches"] > 1


@pytest.mark.full
def test_a_failed_job_says_why(page: Page, tmp_path: Path) -> None:
    ask(page, "plan", graph="shipped:llama-8b", gpus=64, overlap="false", time_limit_s="0.000001")
    answered(page)
    expect(page.get_by_role("alert")).to_contain_text("time limit")
    expect(page.get_by_role("link", name="Change and ask again")).to_be_visible()
    assert faults(page) == []
