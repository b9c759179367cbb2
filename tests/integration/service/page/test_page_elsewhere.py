"""What an answer's page shows to copy asks the same question: each text is run for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.page.page_steps import HARDWARE, LOCKED, answered, faults, make_key, sign_in
from harness.service.service_harness import Service
from shardwise.hardware import hardware_document, load_hardware

ROOT = Path(__file__).parents[4]
OFFERS = (
    "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nme,it's,V100,4,9.5,a\n"
)
CONFIGURATION = '{"train_batch_size": 64, "zero_optimization": {"stage": 1}}'
MEASURED = ("search", "seconds", "peak_rss_bytes")
"""Members of an answer that no two runs have alike."""


def alike(document: Any) -> Any:
    """Returns a document without what every run measures anew."""
    if isinstance(document, dict):
        return {name: alike(one) for name, one in document.items() if name not in MEASURED}
    return [alike(one) for one in document] if isinstance(document, list) else document


def own_hardware() -> dict[str, Any]:
    return {**hardware_document(load_hardware(HARDWARE)), "name": "mine & yours"}


def questions(service: Service, graph: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns a question of every kind, with its collection."""
    post = service.client.post
    # Of its own name: other modules upload the same file to the same service as a new one.
    content = graph.read_bytes().replace(b"tiny <&> model", b"asked <&> elsewhere")
    own = post("/v1/graphs", content=content, headers={"Content-Type": "application/json"})
    profile = post("/v1/hardware", json=own_hardware()).json()["id"]
    gpt2 = {"graph": "shipped:gpt2", "hardware": HARDWARE}
    tiny = {"graph": own.json()["id"], "hardware": f"{profile}*2"}
    mixed = {"graph": own.json()["id"], "hardware": "l40s-4+a100-4"}
    one, eight = {"micro_batches": [1]}, {"micro_batches": [8]}
    staged = {**gpt2, "hardware": "l4", "options": eight}
    few = {**one, "recompute": "never"}
    rules = {"pins": ["layer[01]*:zero=0", "split=batch"], "step": {"state": "captured"}}
    sums = {"overlap": False, "zero": [0, 3]}
    offered = {"offers_csv": OFFERS, "steps": 1000, "deadline_s": 3600.0, "max_instances": 2}
    configured = {"configuration": CONFIGURATION, "file": "../d.json"}
    prices = {"l40s": 2.5, "a100": 4.0}
    searched = {"proposals": 300, "seed": 2}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "frontier": (
            "frontiers",
            {**gpt2, "gpus": 2, "options": few | {"memory_limit_bytes": 15e9}},
        ),
        "curve": ("curves", {**tiny, "max_gpus": 4, "options": sums}),
        "plan": ("plans", {**tiny, "gpus": 4, "objective": "mini-memory"}),
        "rules": ("plans", {**tiny, "gpus": 4, "options": few | rules}),
        "trainer": (
            "plans",
            {**gpt2, "hardware": "dgx-a100-80gb", "gpus": 4, "space": "fsdp2", "options": one},
        ),
        "stages": ("plans", {**gpt2, "hardware": "l4", "gpus": 4, "stages": [2], "options": eight}),
        "frontier-stages": ("frontiers", {**staged, "gpus": 2, "stages": "auto"}),
        "curve-stages": (
            "curves",
            {**staged, "max_gpus": 2, "stages": [2], "schedules": ["gpipe"]},
        ),
        "quote-stages": (
            "quotes",
            {"graph": "shipped:gpt2", "stages": [2], **offered, "options": eight},
        ),
        "bundle": ("plans", {**mixed, "gpus": "l40s=1,a100=1"}),
        "pricing": ("pricings", {**gpt2, "gpus": 4, "options": one, **configured}),
        "quote": ("quotes", {"graph": own.json()["id"], **offered}),
        "compare": ("comparisons", {**gpt2, "gpus": 2, "options": one, **searched}),
        "parts": ("quotes", {**mixed, "steps": 10, "prices": prices}),
    }
    return {name: (to, {"options": few, **body}) for name, (to, body) in bodies.items()}


KINDS = (
    "frontier", "curve", "plan", "rules", "trainer", "stages", "bundle", "pricing", "quote",
    "parts", "compare", "frontier-stages", "curve-stages", "quote-stages",
)  # fmt: skip


def texts_of(page: Page, folder: Path) -> dict[str, str]:
    """Saves the files that the page offers. Returns what there is to copy."""
    place = page.locator("#elsewhere")
    place.locator("summary").click()
    for link in place.get_by_role("link").all():
        with page.expect_download() as waiting:
            link.click()
        waiting.value.save_as(folder / str(link.get_attribute("download")))
    return {one.get_attribute("id") or "": one.inner_text() for one in place.locator("pre").all()}


def run(command: list[str], folder: Path, **more: str) -> Any:
    """Returns the JSON that a program prints."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **more}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_command(text: str, folder: Path) -> Any:
    program = f'shardwise() {{ "{sys.executable}" -m shardwise "$@"; }}\n'
    return run(["bash", "-c", f"{program}{text} --json"], folder)


def run_python(text: str, kind: str, folder: Path, **more: str) -> Any:
    end = f"\nimport msgspec\nprint(msgspec.json.encode({kind}).decode())\n"
    return run([sys.executable, "-c", text + end], folder, **more)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(kind, marks=[pytest.mark.full] * (kind not in ("plan", "quote")))
        for kind in KINDS
    ],
)
def test_the_texts_ask_the_same(
    page: Page, service: Service, tiny_graph: Path, tmp_path: Path, name: str
) -> None:
    collection, body = questions(service, tiny_graph)[name]
    made = service.client.post(f"/v1/{collection}", json=body)
    assert made.status_code in (200, 202), made.text
    page.goto(f"/jobs/{made.json()['id']}")
    answered(page)
    kind = collection.removesuffix("s")
    answer = alike(service.client.get(f"/v1/jobs/{made.json()['id']}").json()["result"])
    texts = texts_of(page, tmp_path)
    assert list(texts) == ["command-text", "python-text", "curl-text"]
    assert alike(run_command(texts["command-text"], tmp_path)) == answer
    assert alike(run_python(texts["python-text"], kind, tmp_path)) == answer
    job = run(["bash", "-c", texts["curl-text"]], tmp_path)
    assert (job["id"], alike(job["result"])) == (made.json()["id"], answer)
    assert faults(page) == []


def test_a_points_plan_is_asked_by_its_id(
    page: Page, service: Service, tiny_graph: Path, tmp_path: Path
) -> None:
    body = questions(service, tiny_graph)["curve"][1]
    del body["max_gpus"]
    made = service.client.post("/v1/frontiers", json={**body, "gpus": 2}).json()
    page.goto(f"/jobs/{made['id']}")
    answered(page)
    page.locator("#all-points").evaluate("fold => { fold.open = true; }")
    page.get_by_role("region", name="All points").get_by_role("button").first.click()
    page.wait_for_url("**/jobs/plan_*")
    answered(page)
    plan = service.client.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()["result"]
    texts = texts_of(page, tmp_path)
    assert f"--point {plan['id']}" in texts["command-text"].replace("\\\n  ", "")
    assert alike(run_command(texts["command-text"], tmp_path)) == alike(plan)
    assert alike(run_python(texts["python-text"], "plan", tmp_path)) == alike(plan)


def plan_of_one(service: Service) -> str:
    """Returns the page of a plan that takes little and needs no file of ours."""
    body = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 1}
    few = {"micro_batches": [1], "recompute": "never"}
    job = service.client.post("/v1/plans", json={**body, "options": few}).json()["id"]
    return f"/jobs/{job}"


def test_a_copy_is_made_by_keyboard_and_announced(
    visit: Callable[..., Page], service: Service
) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.goto(plan_of_one(service))
    answered(page)
    page.locator("#elsewhere summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Copy: Command")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#copied")).to_have_text("Command: copied")
    assert (
        page.evaluate("navigator.clipboard.readText()")
        == page.locator("#command-text").inner_text()
    )


@pytest.mark.parametrize("selects", [True, False])
def test_without_a_clipboard_the_text_is_selected(
    visit: Callable[..., Page], service: Service, selects: bool
) -> None:
    """Selected is copied too, unless the browser refuses that as well."""
    page = visit()
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined });")
    if selects:
        page.add_init_script("document.execCommand = () => false;")
    page.goto(plan_of_one(service))
    answered(page)
    page.locator("#elsewhere summary").click()
    page.get_by_role("button", name="Copy: curl").click()
    said = "curl: selected, not copied; press Control and C" if selects else "curl: copied"
    expect(page.locator("#copied")).to_have_text(said)
    assert page.evaluate("String(getSelection())") == page.locator("#curl-text").inner_text()


@pytest.mark.full
def test_a_key_is_named_and_never_shown(
    visit: Any, tiny_graph: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("locked")
    key, other = (make_key(folder, tenant, "read", "submit") for tenant in ("one", "two"))
    locked = Service(folder, **LOCKED)
    visit.url = locked.url
    try:
        locked.client.headers["Authorization"] = f"Bearer {key}"
        body = {**questions(locked, tiny_graph)["pricing"][1], "gpus": 2}
        job = locked.client.post("/v1/pricings", json=body).json()["id"]
        page = visit()
        sign_in(page, key, f"/jobs/{job}")
        answered(page)
        texts = texts_of(page, tmp_path)
        assert key not in page.content()
        answer = alike(locked.client.get(f"/v1/jobs/{job}").json()["result"])
        mine = {"SHARDWISE_KEY": key}
        assert alike(run_python(texts["python-text"], "pricing", tmp_path, **mine)) == answer
        assert run(["bash", "-c", texts["curl-text"]], tmp_path, **mine)["id"] == job
        for file in ("question.json", "configuration", "graph.json"):
            stranger = locked.client.get(
                f"/jobs/{job}/files/{file}", headers={"Cookie": f"shardwise_key={other}"}
            )
            assert stranger.status_code == 404
    finally:
        locked.stop()
