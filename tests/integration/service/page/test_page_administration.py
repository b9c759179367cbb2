"""Keys, tenants and the audit in the page: by an operator without JavaScript, by an administrator,
and by no other user."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.page.page_steps import LOCKED, cookie, faults, make_key, sign_in, too_wide
from harness.service.service_harness import Service
from service.base.archive import read_files

PAGES = ("/keys", "/audit", "/admin", "/admin/red", "/audit?tenant=red&action=keys")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("ruled")
    return folder, {
        "operator": make_key(folder, "ops", "operator"),
        "admin": make_key(folder, "red", "admin"),
        "red": make_key(folder, "red", "read", "submit"),
        "blue": make_key(folder, "blue", "admin"),
    }


@pytest.fixture(scope="module")
def ruled(keys: tuple[Path, dict[str, str]]) -> Iterator[Service]:
    running = Service(keys[0], **LOCKED)
    yield running
    running.stop()


@pytest.fixture
def enter(browser: Browser, ruled: Service) -> Iterator[Callable[..., Page]]:
    contexts = []

    def enter(**options: Any) -> Page:
        context = browser.new_context(base_url=ruled.url, **options)
        contexts.append(context)
        return context.new_page()

    yield enter
    for context in contexts:
        context.close()


def form(ruled: Service, key: str) -> dict[str, str]:
    return {**cookie(key), "Origin": ruled.url}


def navigation(page: Page) -> list[str]:
    return page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()


def test_an_operator_rules_without_javascript(
    enter: Callable[..., Page], keys: tuple[Path, dict[str, str]], ruled: Service
) -> None:
    page = enter(java_script_enabled=False)
    sign_in(page, keys[1]["operator"], "/admin")
    page.get_by_label("Name").fill("Not A Name")
    page.get_by_role("button", name="Make a tenant").click()
    expect(page.get_by_role("alert")).to_contain_text("lower-case letters")
    page.get_by_label("Name").fill("green")
    page.get_by_role("button", name="Make a tenant").click()
    expect(page).to_have_url(ruled.url + "/admin/green")
    page.get_by_label("max queued").fill("12")
    page.get_by_role("button", name="Set the limits").click()
    expect(page.get_by_label("max queued")).to_have_value("12")
    page.get_by_label("max queued").fill("many")
    page.get_by_role("button", name="Set the limits").click()
    expect(page.get_by_role("alert")).to_contain_text("many")
    page.goto("/admin/green")
    page.get_by_label("Name", exact=True).fill("first <b>key</b>")
    page.get_by_label("Good for (days)").fill("30")
    page.get_by_role("checkbox", name="admin all of that").check()
    page.get_by_role("button", name="Make a key").click()
    key = page.locator("#key").inner_text()
    assert ruled.client.get("/v1/me", headers={"Authorization": f"Bearer {key}"}).json()[
        "tenant"
    ] == ("green")
    page.get_by_role("link", name="Keys", exact=True).last.click()
    expect(page.get_by_role("region", name="Keys")).to_contain_text("first <b>key</b>")
    page.get_by_role("button", name=re.compile("^Rotate")).click()
    new = page.locator("#key").inner_text()
    page.goto("/admin/green")
    page.get_by_role("button", name=re.compile(f"^Revoke .*{new.split('_')[1]}")).click()
    expect(page.get_by_role("region", name="Keys")).to_contain_text("revoked")
    assert ruled.client.get("/v1/me", headers={"Authorization": f"Bearer {new}"}).status_code == 401
    page.get_by_label("name once more").fill("gren")
    page.get_by_role("button", name="Delete green").click()
    expect(page.get_by_role("alert")).to_contain_text("not confirmed")
    page.get_by_label("name once more").fill("green")
    page.get_by_role("button", name="Delete green").click()
    expect(page).to_have_url(ruled.url + "/admin")
    page.goto("/audit?action=tenants")
    table = page.get_by_role("region", name="Audit")
    for action in ("tenants.create", "tenants.limit", "tenants.delete"):
        expect(table).to_contain_text(action)


def test_an_administrator_has_the_keys_of_its_own(
    enter: Callable[..., Page], keys: tuple[Path, dict[str, str]], ruled: Service
) -> None:
    page = enter()
    sign_in(page, keys[1]["admin"], "/keys")
    page.wait_for_url(ruled.url + "/keys")
    assert navigation(page)[-2:] == ["Keys", "Audit"]
    expect(page.get_by_role("checkbox", name="operator")).to_have_count(0)
    page.get_by_label("Name").fill("mine")
    page.get_by_role("button", name="Make a key").click()
    assert page.locator("#key").inner_text().startswith("sw_")
    page.go_back()
    asked = {"name": "x", "scopes": "operator"}
    mine = form(ruled, keys[1]["admin"])
    refused = ruled.client.post("/keys", data=asked, headers=mine)
    assert refused.status_code == 403 and "the scope operator" in refused.text
    theirs = keys[1]["blue"].split("_")[1]
    for what in ("rotate", "revoke"):
        for key_id in (theirs, "0" * 16):
            path = f"/keys/{key_id}/{what}"
            answer = ruled.client.post(path, data={"a": "b"}, headers=mine)
            assert answer.status_code == 404, path
    assert "blue" not in ruled.client.get("/audit", headers=mine).text


def test_who_administers_nothing_is_offered_nothing(
    enter: Callable[..., Page], keys: tuple[Path, dict[str, str]], ruled: Service
) -> None:
    posts = ("/keys", "/keys/x/rotate", "/keys/x/revoke", "/admin", "/admin/red/limits",
             "/admin/red/delete", "/admin/red/keys", "/admin/red/keys/x/rotate",
             "/admin/red/keys/x/revoke")  # fmt: skip
    gets = (*PAGES, "/admin/red/export")
    for who, allowed in (("red", ()), ("admin", ("/keys", "/audit", "/admin/red/export"))):
        headers = form(ruled, keys[1][who])
        for path in gets:
            status = ruled.client.get(path, headers=headers).status_code
            expected = 200 if path in allowed else 404 if "?tenant=" in path else 403
            expected = 200 if who == "admin" and "?tenant=red" in path else expected
            assert status == (403 if who == "red" else expected), (who, path)
        for path in posts:
            if who == "admin" and path.startswith("/keys"):
                continue
            answer = ruled.client.post(path, data={"a": "b"}, headers=headers)
            assert answer.status_code == 403, (who, path)
    page = enter()
    sign_in(page, keys[1]["red"], "/jobs")
    page.wait_for_url(ruled.url + "/jobs")
    assert not {"Keys", "Audit", "Tenants"} & set(navigation(page))
    for path in posts:
        foreign = {**cookie(keys[1]["operator"]), "Origin": "http://evil.example"}
        answer = ruled.client.post(path, data={"a": "b"}, headers=foreign)
        assert answer.status_code == 403 and "own pages" in answer.text, path
        answer = ruled.client.post(path, data={}, headers={"Origin": ruled.url})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in"), path


def test_the_archive_is_downloaded_from_the_page(
    keys: tuple[Path, dict[str, str]], ruled: Service
) -> None:
    answer = ruled.client.get("/admin/red/export", headers=form(ruled, keys[1]["operator"]))
    assert json.loads(read_files(answer.content)["end.json"])["tenant"] == "red"
    assert "attachment" in answer.headers["Content-Disposition"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_pages_are_accessible_and_fit(
    enter: Callable[..., Page], keys: tuple[Path, dict[str, str]], width: int, scheme: str
) -> None:
    page = enter(color_scheme=scheme, viewport={"width": width, "height": 800})
    sign_in(page, keys[1]["operator"], "/keys")
    problems = []
    for path in PAGES:
        page.goto(path)
        problems += faults(page)
        if too_wide(page):
            problems.append(f"{path} is wider than {width} px")
        assert page.get_by_role("heading", level=1).count() == 1
    page.goto("/admin/red")
    page.get_by_role("button", name="Make a key").click()
    page.wait_for_load_state()
    problems += faults(page)
    assert problems == []
