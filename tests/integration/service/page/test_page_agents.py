"""Agents, launches, measured profiles and accuracy, with an agent that knows only the calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.page.launched import GPU_HOST, measured_profile, measurement, plan_of, run_of
from harness.page.page_steps import faults, too_wide
from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import Service, wait_until
from service.base.settings import load_settings
from service.store.database import Database
from service.store.launch_tables import Agent

ODD_HOST: dict[str, Any] = {
    "kernel": {"not": "a text"},
    "torch": None,
    "python": True,
    "devices": [{"index": 0, "kind": "odd <&> device", "memory_bytes": 1e9, "pcie": "x16",
                 "numa": [0], "uuid": {}, "nvlink": []}],
}  # fmt: skip
"""What the service does not check of an inventory may be anything."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of its own, whose agents need not say that they live."""
    folder = tmp_path_factory.mktemp("agents")
    running = Service(folder, heartbeat_s="0.2", agent_lease_s="3600")
    wait_until(lambda: running.client.get("/readyz").json()["checks"]["workers"], "a worker")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def plan(service: Service) -> dict[str, Any]:
    """The job of a plan for two GPUs."""
    return plan_of(service.client)


@pytest.fixture(scope="module")
def lost(service: Service, tmp_path_factory: pytest.TempPathFactory) -> FakeAgent:
    """An agent whose lease has run out."""
    agent = FakeAgent(service.client, "lost-host", **ODD_HOST)
    data_dir = str(service.log.parent / "data")
    database = Database(load_settings({}, {"SHARDWISE_DATA_DIR": data_dir}).database)
    with database.write() as session:
        session.get_one(Agent, agent.id).lease_expires_at = 1.0
    database.close()
    return agent


@pytest.fixture(scope="module")
def views(service: Service, plan: dict[str, Any], lost: FakeAgent) -> dict[str, str]:
    """An address of every view, with something in it."""
    client = service.client
    worked = FakeAgent(client, "worked")
    done = run_of(client, plan["result"], worked, 1.3)
    host = FakeAgent(client, "node-17.rack-2.a-long-name.example.internal", slots=4, **GPU_HOST)
    body = {"kind": "measure", "agents": [host.id], "ranks_per_agent": 4, "hardware": "mine"}
    runs = client.post("/v1/launches", json=body).json()["id"]
    part = host.must_claim()
    host.say(part, "running")
    host.report(host.of(part, "log", rank=0, first_line=1, lines=["a long line " * 40] * 30))
    waits = client.post("/v1/launches", json={"kind": "measure", "agents": 99}).json()["id"]
    return {
        "agents": "/agents",
        "agent": f"/agents/{host.id}",
        "lost": f"/agents/{lost.id}",
        "launches": "/launches",
        "done": f"/launches/{done}",
        "runs": f"/launches/{runs}",
        "waits": f"/launches/{waits}",
        "form": f"/launches/new?plan={plan['id']}",
        "measure": "/launches/new?kind=measure",
        "accuracy": "/accuracy",
        "measured": f"/hardware/{measured_profile(client)}",
        "built-in": f"/hardware/{plan['result']['hardware']}",
    }


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_every_view_is_accessible_and_fits(
    visit: Any, views: dict[str, str], scheme: str, width: int
) -> None:
    page = visit(color_scheme=scheme, viewport={"width": width, "height": 800})
    problems = []
    for name, address in views.items():
        page.goto(address)
        page.evaluate("document.querySelectorAll('main details').forEach(one => (one.open = true))")
        problems += faults(page)
        if too_wide(page):
            problems.append(f"{name} is wider than {width} px")
        assert page.get_by_role("heading", level=1).count() == 1
    assert problems == []


def row(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


@pytest.mark.full
def test_agents_by_state(page: Page, service: Service, views: dict[str, str]) -> None:
    FakeAgent(service.client, "to-drain")
    page.goto("/agents")
    for name, state in (("worked", "ready"), ("lost-host", "lost"), ("to-drain", "ready")):
        expect(row(page, name)).to_contain_text(state)
    busy = page.get_by_role("row").filter(has_text="4 × NVIDIA H100")
    expect(busy).to_contain_text("busy")
    expect(busy).to_contain_text("0 of 4")
    busy.get_by_role("link").first.click()
    expect(page.get_by_role("region", name="Devices")).to_contain_text("generation 5 ×16")
    page.get_by_role("main").get_by_role("link", name="Launch").first.click()
    expect(page).to_have_url(re.compile(views["runs"]))
    page.goto(views["lost"])
    expect(page.get_by_role("region", name="Devices")).to_contain_text("odd <&> device")
    page.goto("/agents")
    row(page, "to-drain").get_by_role("link").click()
    page.get_by_label("Reason").fill("new drivers")
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("drained new drivers")
    page.get_by_role("button", name="Undrain").click()
    expect(page.locator(".facts")).to_contain_text("ready")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove").click()
    expect(page).to_have_url(service.url + "/agents")
    expect(row(page, "to-drain")).to_have_count(0)


@pytest.mark.full
def test_a_token_is_shown_once_and_enrols(visit: Any, service: Service) -> None:
    visit.expected.append("422")
    page = visit()
    page.goto("/agents")
    page.get_by_label("Good for").fill("soon")
    page.get_by_role("button", name="Make a token").click()
    expect(page.get_by_role("alert")).to_contain_text("expires_h")
    expect(page.get_by_label("Good for")).to_have_value("soon")
    page.get_by_label("Good for").fill("0.5")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("#token").inner_text()
    assert token.startswith("swe_")
    assert faults(page) == []
    page.get_by_role("main").get_by_role("link", name="Agents").click()
    expect(page.get_by_role("main")).not_to_contain_text(token)
    FakeAgent(service.client, "by-token", token=token)
    # The table refreshes itself.
    expect(row(page, "by-token")).to_contain_text("ready")


@pytest.mark.full
def test_a_plan_is_started_followed_and_compared(
    page: Page, service: Service, plan: dict[str, Any]
) -> None:
    agent = FakeAgent(service.client, "runner")
    page.goto(f"/jobs/{plan['id']}")
    page.get_by_role("link", name="Start it on agents").click()
    expect(page.locator("#plan").locator("option:checked")).to_contain_text("vgg16 on 2 GPUs")
    page.get_by_label("Entry point").select_option("train")
    page.get_by_role("checkbox", name="runner").check()
    page.get_by_text("Arguments and limits").click()
    page.get_by_label("Arguments").fill("--steps\n20; rm -rf /")
    page.get_by_label("Environment").fill("LEVEL=debug")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/launches/launch_\w+$"))
    state = page.locator("#live .state").first
    expect(state).to_have_text("queued")
    part = agent.must_claim()
    assert part["arguments"] == ["--steps", "20; rm -rf /"]
    assert part["environment"] == {"LEVEL": "debug"}
    assert part["ranks_per_node"] == 2 and part["plan"]["id"] == plan["result"]["id"]
    agent.say(part, "running")
    expect(state).to_have_text("running")
    expect(row(page, "runner")).to_contain_text("running")
    expect(page.locator("#told")).to_have_text("running")
    agent.report(agent.of(part, "log", rank=0, first_line=1, lines=["<b>not bold</b>"]))
    expect(page.locator("#log")).to_contain_text("<b>not bold</b>")
    agent.report(
        agent.of(part, "result", name="run.json", document=measurement(plan["result"], 1.2)),
        agent.of(part, "state", state="done", exit_code=0, peak_rss_bytes=3 * 2**30),
    )
    figures = page.get_by_role("region", name="Predicted against measured")
    expect(figures.get_by_role("row", name="Iteration")).to_have_text(
        re.compile(r"Iteration\s*[\d.]+ m?s\s*[\d.]+ m?s\s*\+20.0 %")
    )
    expect(figures.get_by_role("row", name="Peak")).to_contain_text("−5.0 %")
    expect(row(page, "runner")).to_contain_text("3.00 GiB")
    expect(page.locator("#log")).to_contain_text("<b>not bold</b>")
    page.get_by_role("link", name="Accuracy of all runs").click()
    expect(page.get_by_role("row", name="vgg16")).to_contain_text("%")
    page.get_by_role("row", name="vgg16").get_by_role("link", name="dgx-v100-16gb").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("dgx-v100-16gb")
    page.get_by_role("button", name="Refit to these runs").click()
    expect(page.get_by_role("main")).to_contain_text("refitted from")
    versions = page.get_by_role("region", name="Versions")
    expect(versions.get_by_role("row", name="shown here")).to_contain_text("compute times x 1.2")
    expect(versions).to_contain_text("built in")


@pytest.mark.full
def test_a_launch_that_is_refused_keeps_what_was_typed(visit: Any, views: dict[str, str]) -> None:
    visit.expected.append("422")
    page = visit()
    page.goto(views["form"])
    page.get_by_label("Agents, any").fill("3")
    page.get_by_label("Devices").fill("H100")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("agents: 3 for 2 GPUs")
    expect(page.get_by_label("Agents, any")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Devices")).to_have_value("H100")
    expect(page.locator("#plan").locator("option:checked")).to_contain_text("vgg16")
    page.get_by_role("radio", name="Measure").check()
    expect(page.locator("#plan")).to_be_hidden()
    expect(page.get_by_label("Name of the profile")).to_be_visible()
    assert faults(page) == []


@pytest.mark.full
def test_stopping_a_launch_that_measures(page: Page, service: Service) -> None:
    agent = FakeAgent(service.client, "measurer")
    page.goto("/launches/new?kind=measure")
    page.get_by_label("Name of the profile").fill("my-cluster")
    page.get_by_role("checkbox", name="measurer").check()
    page.get_by_label("Ranks of each").fill("2")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/launches/launch_\w+$"))
    part = agent.must_claim()
    assert (part["kind"], part["hardware"]) == ("measure", "my-cluster")
    agent.say(part, "running")
    expect(page.locator("#live .state").first).to_have_text("running")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stopping")).to_be_disabled()
    assert agent.beat()["stop"] == [part["id"]]
    agent.say(part, "stopped")
    expect(page.locator("#live")).to_contain_text("asked for")
    expect(page.locator("#live .state").first).to_have_text("stopped")
    expect(page.locator("#stop")).to_have_count(0)


@pytest.mark.full
def test_output_is_paged_and_followed_at_its_end(page: Page, service: Service) -> None:
    agent = FakeAgent(service.client, "talker")
    body = {"kind": "measure", "agents": [agent.id], "ranks_per_agent": 2}
    launch = service.client.post("/v1/launches", json=body).json()["id"]
    part = agent.must_claim()
    agent.say(part, "running")

    def say(rank: int, first: int, count: int) -> None:
        lines = [f"line {rank}-{first + i}" for i in range(count)]
        agent.report(agent.of(part, "log", rank=rank, first_line=first, lines=lines))

    say(0, 1, 449)
    say(1, 1, 1)
    page.goto(f"/launches/{launch}")
    shown = page.locator("#log .line")
    expect(shown).to_have_count(200)
    expect(shown.last).to_have_text("1line 1-1")
    expect(page.get_by_role("link", name="Newer lines")).to_have_count(0)
    say(0, 450, 1)
    expect(shown.last).to_have_text("0line 0-450")
    expect(shown).to_have_count(201)
    page.get_by_role("link", name="Older lines").click()
    expect(shown.first).to_have_text("0line 0-51")
    page.get_by_role("link", name="Older lines").click()
    expect(shown.first).to_have_text("0line 0-1")
    expect(page.get_by_role("link", name="Older lines")).to_have_count(0)
    page.get_by_role("link", name="Newer lines").click()
    expect(shown.first).to_have_text("0line 0-201")
    page.get_by_label("Rank").select_option("1")
    page.get_by_role("button", name="Show").click()
    expect(shown).to_have_text(["1line 1-1"])
    say(1, 2, 1)
    expect(shown).to_have_text(["1line 1-1", "1line 1-2"])
    agent.say(part, "done")
    expect(page.locator("#live .state").first).to_have_text("done")


@pytest.mark.full
def test_a_measured_profile_is_drawn_with_its_figures(page: Page, views: dict[str, str]) -> None:
    page.goto(views["measured"])
    drawing = page.get_by_role("img", name="Bus bandwidth of all_reduce")
    expect(drawing.locator("polyline")).to_have_count(3)
    tops = drawing.locator("polyline").evaluate_all(
        "lines => lines.map(line => line.points.getItem(line.points.numberOfItems - 1).y)"
    )
    assert tops[0] < tops[1] < tops[2], "the fastest group is drawn highest"
    page.get_by_text("Figures of all_reduce").click()
    figures = page.get_by_role("region", name="Figures of all_reduce").get_by_role("row")
    expect(figures).to_have_count(1 + 3 * 9)
    expect(figures.nth(9)).to_contain_text("256 MiB")
    expect(figures.nth(9)).to_contain_text("224 GB/s")
    verdicts = page.get_by_role("region", name="Verdicts").get_by_role("row")
    expect(verdicts.filter(has_text="2 nodes × 1 rank, 8 groups")).to_contain_text("suspicious")
    expect(verdicts.nth(1)).to_contain_text("normal")
    expect(page.get_by_role("note")).to_contain_text("1 of its tables cannot be shown")
    expect(page.get_by_role("button", name="Refit")).to_be_disabled()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download JSON").click()
    assert '"their_own"' in Path(download.value.path()).read_text()
