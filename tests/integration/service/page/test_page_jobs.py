"""Jobs that are searched for, filtered and linked to; the place of those that wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import HARDWARE, faults, too_wide
from harness.service.service_harness import Service, wait_until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module alone, whose worker computes one job at a time."""
    running = Service(tmp_path_factory.mktemp("jobs"), heartbeat_s="0.2", concurrency="1")
    wait_until(lambda: running.client.get("/readyz").json()["checks"]["workers"], "a worker")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def jobs(service: Service) -> dict[str, str]:
    """One long job that runs, and others that wait for it, by name."""
    post = service.client.post
    long = {"graph": "shipped:llama-8b", "hardware": "dgx-h100", "max_gpus": 400}
    made = {"long": post("/v1/curves", json=long).json()["id"]}
    wait_until(
        lambda: service.client.get(f"/v1/jobs/{made['long']}").json()["started_at"], "it runs"
    )
    for gpus in (1, 2, 3):
        body = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": gpus}
        made[f"vgg{gpus}"] = post("/v1/plans", json=body).json()["id"]
    body = {"graph": "shipped:gpt2", "hardware": "l4*2", "gpus": 2, "objective": "mini-memory"}
    made["gpt2"] = post("/v1/plans", json=body).json()["id"]
    return made


def listed(page: Page) -> set[str]:
    links = page.get_by_role("main").locator("tbody a").all()
    return {str(link.get_attribute("href")).rpartition("/")[2] for link in links}


def test_a_search_is_a_link(
    visit: Callable[..., Page], service: Service, jobs: dict[str, str]
) -> None:
    page = visit()
    page.goto("/jobs")
    assert listed(page) == set(jobs.values())
    page.get_by_label("Words").fill("VGG plan")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"text=VGG\+plan"))
    vgg = {jobs[f"vgg{gpus}"] for gpus in (1, 2, 3)}
    assert listed(page) == vgg
    assert page.get_by_label("Words").input_value() == "VGG plan"
    page.get_by_role("link", name="Queued").click()
    page.wait_for_url(re.compile("text=VGG.*state=queued|state=queued.*text=VGG"))
    assert listed(page) == vgg
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Hardware").select_option("l4")
    page.get_by_label("Kind").select_option("plan")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url(re.compile("hardware=l4"))
    assert listed(page) == {jobs["gpt2"]}
    shared = visit(java_script_enabled=False, viewport={"width": 390, "height": 800})
    shared.goto(page.url)
    assert listed(shared) == {jobs["gpt2"]}
    assert faults(page) == []
    assert not too_wide(shared)
    page.get_by_label("Words").fill("50%_\\ \"'")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("main")).to_contain_text("No jobs here are like that")


def test_a_waiting_job_says_its_place(
    visit: Callable[..., Page], service: Service, jobs: dict[str, str]
) -> None:
    places = {
        name: service.client.get(f"/v1/jobs/{job}").json()["queue"]["place"]
        for name, job in jobs.items()
        if name != "long"
    }
    assert sorted(places.values()) == [1, 2, 3, 4]
    words = {
        1: "1st of 4 in the queue;",
        2: "2nd of 4 in the queue, 1 before it",
        3: "3rd of 4 in the queue, 2 before it",
        4: "4th of 4 in the queue, 3 before it",
    }
    page = visit()
    page.goto("/jobs")
    for name, place in places.items():
        row = page.locator(f"tr:has(a[href='/jobs/{jobs[name]}'])")
        expect(row).to_contain_text(words[place])
        expect(row).to_contain_text("expected to start in about")
    for javascript in (True, False):
        one = visit(java_script_enabled=javascript)
        one.goto(f"/jobs/{jobs['gpt2']}")
        expect(one.locator("#place")).to_contain_text(words[places["gpt2"]])
        expect(one.locator("#place")).to_contain_text("waits for")
    # A cancelled one makes way, on the page that is open too.
    first, *_, last = sorted(places, key=lambda name: int(places[name]))
    page.goto(f"/jobs/{jobs[last]}")
    service.client.delete(f"/v1/jobs/{jobs[first]}")
    expect(page.locator("#place")).to_contain_text("3rd of 3 in the queue, 2 before it")
