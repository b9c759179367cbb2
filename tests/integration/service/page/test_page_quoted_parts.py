"""A quote over the parts of a profile on the page: prices by group, the parts, their plans."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import answered, faults, too_wide
from harness.service.service_harness import Service
from harness.service.steps import mlp, upload
from harness.stored import STORED, content

MIXED, CLOUD = "heterog-8", "h100-8+a100-8"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def graph(service: Service) -> str:
    return upload(service, mlp(64, "parts"))


def begin(page: Page, graph: str, profile: str) -> None:
    """Fills in everything but the prices."""
    page.goto("/")
    page.get_by_label("Graph").select_option(graph)
    page.get_by_role("radio", name="Quote").check()
    page.get_by_label("What is priced").select_option(profile)
    page.get_by_label("Steps").fill("10000")
    page.get_by_text("Options", exact=True).click()
    page.locator("#micro_batches").fill("1")
    page.locator("#time_limit_s").fill("1")


def priced(page: Page, group: str, usd: str) -> None:
    page.get_by_role("textbox", name=group).fill(usd)


def ask(page: Page) -> dict[str, Any]:
    """Returns the quote of a form that is accepted."""
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile("/jobs/quote_"))
    answered(page)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download JSON").click()
    document: dict[str, Any] = json.loads(waiting.value.path().read_text())
    return document


@pytest.mark.parametrize(
    ("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
def test_parts_are_quoted_at_prices_by_group(
    visit: Callable[..., Page],
    service: Service,
    viewport: dict[str, int],
    scheme: str,
) -> None:
    """A question whose answer is kept, asked by the form; its plans by a wide screen alone."""
    kept = STORED["parts"].body
    page = visit(viewport=viewport, color_scheme=scheme)
    begin(page, kept["graph"], kept["hardware"])
    page.locator("#time_limit_s").fill("")
    for stage in (1, 2, 3):
        page.locator(f"#zero-{stage}").uncheck()
    page.locator("#recompute").select_option("never")
    for group, usd in kept["prices"].items():
        priced(page, group, str(usd))
    page.get_by_label("Deadline").fill("100")
    expect(page.get_by_label("Instances, at most")).to_be_hidden()
    expect(page.get_by_label("Kinds together")).to_be_hidden()
    assert faults(page) == []
    assert not too_wide(page)

    quote = ask(page)
    assert quote == msgspec.json.decode(content("parts"))
    rows = page.get_by_role("region", name="Parts").locator("tbody tr")
    expect(rows).to_have_count(len(quote["offers"]))
    for place, offer in enumerate(quote["offers"][:3]):
        expect(rows.nth(place)).to_contain_text(offer["bundle"])
        expect(rows.nth(place)).to_contain_text(f"${offer['usd_per_hour']:,.2f}")
    expect(page.get_by_text("recommended", exact=True)).to_have_count(1)
    expect(rows.first).to_contain_text("recommended")
    prices = page.get_by_role("region", name="Prices")
    expect(prices.locator("tbody tr").filter(has_text="l40s")).to_contain_text("$2.50")
    assert not too_wide(page)
    if viewport == PHONE:
        return

    job = page.url
    rows.first.get_by_role("button").click()
    page.wait_for_url(re.compile("/jobs/plan_"))
    answered(page)
    plan = service.client.get(f"/v1/plans/{page.url.rpartition('/')[2]}").json()
    assert plan["question"]["gpus"] == quote["offers"][0]["bundle"]

    page.goto(job)
    page.get_by_role("link", name="Change and ask again").click()
    expect(page.get_by_label("What is priced")).to_have_value(kept["hardware"])
    expect(page.get_by_role("textbox", name="l40s")).to_have_value("2.5")
    expect(page.get_by_label("Deadline")).to_have_value("100")


def test_blank_prices_are_those_of_the_shipped_offers(page: Page, graph: str) -> None:
    begin(page, graph, CLOUD)
    described = page.get_by_role("textbox", name="h100").get_attribute("aria-describedby")
    shown = page.locator(f"#{described}").inner_text()
    asked = re.fullmatch(r"blank: \$([0-9.]+) for a node of 8", shown)
    assert asked is not None, shown
    priced(page, "a100", "1.25")
    quote = ask(page)
    costs = {row["bundle"]: row["usd_per_hour"] for row in quote["offers"]}
    assert costs["h100=8"] == pytest.approx(float(asked[1]), abs=0.005)
    assert costs["a100=8"] == pytest.approx(10)
    prices = page.get_by_role("region", name="Prices").locator("tbody tr")
    expect(prices.filter(has_text="H100")).to_contain_text(f"${asked[1]}a node of")
    expect(prices.filter(has_text="A100")).to_contain_text("given with the question")


def test_fields_follow_the_profile_and_keep_what_was_typed(page: Page, graph: str) -> None:
    begin(page, graph, MIXED)
    fields = page.get_by_role("group", name="USD an hour").get_by_role("textbox")
    expect(fields).to_have_count(3)
    priced(page, "v100", "2.5")
    page.get_by_label("What is priced").select_option(CLOUD)
    expect(fields).to_have_count(2)
    page.get_by_label("What is priced").select_option("heterog-12")
    expect(page.get_by_role("textbox", name="v100")).to_have_value("2.5")
    page.get_by_label("What is priced").select_option("Instances that clouds offer")
    expect(fields).to_have_count(0)
    expect(page.get_by_label("Instances, at most")).to_be_visible()


@pytest.mark.parametrize(
    ("typed", "wrong", "said"),
    [
        ({"v100": "much"}, "v100", "prices.v100"),
        ({"v100": "-1"}, "v100", "a finite number above 0"),
        ({"v100": "2.5", "1080ti": "0.4"}, "p100", "no offer has P100-PCIe-12GB"),
    ],
)
def test_a_bad_price_is_refused_at_its_field(
    visit: Any, graph: str, typed: dict[str, str], wrong: str, said: str
) -> None:
    visit.expected.append("422")
    page = visit(viewport=PHONE)
    begin(page, graph, MIXED)
    for group, usd in typed.items():
        priced(page, group, usd)
    page.get_by_role("button", name="Ask").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(said)
    expect(alert).to_contain_text(f"prices.{wrong}")
    expect(alert).to_be_focused()
    field = page.get_by_role("textbox", name=wrong)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[aria-invalid=true]")).to_have_count(1)
    for group, usd in typed.items():
        expect(page.get_by_role("textbox", name=group)).to_have_value(usd)
    expect(page.get_by_label("What is priced")).to_have_value(MIXED)
    assert faults(page) == []
    assert not too_wide(page)


def test_without_scripts_prices_are_one_text(visit: Any, service: Service, graph: str) -> None:
    visit.expected.append("422")
    page = visit(java_script_enabled=False)
    begin(page, graph, MIXED)
    prices = page.get_by_label("USD an hour for one device, by group")
    prices.fill("v100=2.5,1080ti=0.4")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("prices.p100")
    expect(prices).to_have_attribute("aria-invalid", "true")
    prices.fill("v100=2.5,1080ti=0.4,p100=1.4")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile("/jobs/quote_"))
    job = page.url.rpartition("/")[2]
    asked = service.client.get(f"/v1/quotes/{job}").json()["question"]
    assert asked["prices"] == {"v100": 2.5, "1080ti": 0.4, "p100": 1.4}
    service.client.delete(f"/v1/quotes/{job}")
