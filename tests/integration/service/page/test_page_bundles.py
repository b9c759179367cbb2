"""Several kinds of devices on the page: the form, a curve over bundles, a plan with its places."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import answered, drawn, too_wide
from harness.service.service_harness import Service
from harness.stored import STORED

MIXED = "heterog-8"
MLP = STORED["plan-bundle"].body["graph"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def ask(page: Page, kind: str, gpus: str) -> None:
    page.goto("/")
    page.get_by_label("Graph").select_option(MLP)
    page.get_by_role("radio", name=kind.capitalize()).check()
    page.get_by_label("Hardware").select_option(MIXED)
    page.locator("#gpus").fill(gpus)
    page.get_by_text("Options", exact=True).click()
    page.locator("#micro_batches").fill("1")
    page.get_by_role("button", name="Ask").click()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_curve_over_bundles_and_a_plan_of_it(
    visit: Callable[..., Page], service: Service, viewport: dict[str, int]
) -> None:
    page = visit(viewport=viewport)
    ask(page, "curve", "p100=2,v100=2 v100=2")
    page.wait_for_url(re.compile("/jobs/curve_"))
    answered(page)
    drawn(page)
    rows = page.get_by_role("region", name="Every bundle").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("v100=2,p100=2")
    shown = page.evaluate("document.getElementById('plot').data[0].x")
    assert shown == ["v100=2", "v100=2,p100=2"]
    assert not too_wide(page)

    rows.nth(1).get_by_role("button").click()
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()["result"]
    places = page.get_by_role("region", name="Places").locator("tbody tr")
    expect(places).to_have_count(len(plan["cluster"]["places"]))
    for row, place in enumerate(plan["cluster"]["places"]):
        expect(places.nth(row)).to_contain_text(place["name"])
        expect(places.nth(row)).to_contain_text(place["kind"])
    expect(page.get_by_role("table", name="Sums of gradients")).to_contain_text("%")
    assert not too_wide(page)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [("8", "of an unspecified group"), ("k80=1", "unknown group 'k80'")],
)
def test_what_is_refused_is_said_at_the_field(visit: Any, gpus: str, said: str) -> None:
    visit.expected.append("422")
    page = visit()
    ask(page, "plan", gpus)
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator("#gpus")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#gpus")).to_have_value(gpus)
