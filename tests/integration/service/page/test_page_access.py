"""Keys, sessions, tenants, foreign forms, and what pages may load."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from harness.commands import succeed
from harness.page.page_steps import LOCKED, answered, cookie, faults, make_key, sign_in
from harness.service.service_harness import Service
from service.page.session import own_path

LOOKS = (
    "/agents", "/agents/x", "/launches", "/launches/new", "/launches/x", "/launches/x/events",
    "/launches/x/lines", "/hardware/x", "/hardware/x/document", "/accuracy",
    "/usage",
)  # fmt: skip
ADMIN = ("/agents/tokens", "/agents/x/drain", "/agents/x/undrain", "/agents/x/remove")
SUBMIT = ("/launches", "/launches/x/stop", "/hardware/l4/refit")
ACTS = (*ADMIN, *SUBMIT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("locked")
    return folder, {
        "red": make_key(folder, "red", "read", "submit"),
        "blue": make_key(folder, "blue", "read", "submit"),
        "reader": make_key(folder, "red", "read"),
        "revoked": make_key(folder, "red", "read", "submit"),
    }


@pytest.fixture(scope="module")
def locked(keys: tuple[Path, dict[str, str]]) -> Iterator[Service]:
    """A service on which keys are needed."""
    running = Service(keys[0], **LOCKED)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def no_cookies(locked: Service) -> None:
    """The client without a browser keeps none from one test to the next."""
    locked.client.cookies.clear()


@pytest.fixture
def guest(browser: Browser, locked: Service) -> Iterator[Callable[[], Page]]:
    contexts = []

    def enter() -> Page:
        context = browser.new_context(base_url=locked.url)
        contexts.append(context)
        return context.new_page()

    yield enter
    for context in contexts:
        context.close()


def test_signing_in_and_out(
    guest: Callable[[], Page], keys: tuple[Path, dict[str, str]], locked: Service
) -> None:
    page = guest()
    sign_in(page, "sw_wrong", "/jobs?state=done")
    expect(page.get_by_role("alert")).to_contain_text("not in force")
    assert faults(page) == []
    page.get_by_label("API key").fill(keys[1]["red"])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(locked.url + "/jobs?state=done")
    kept = page.context.cookies()
    assert [(c["httpOnly"], c["sameSite"], c["expires"]) for c in kept] == [(True, "Strict", -1)]
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    assert page.context.cookies() == []
    page.goto("/graphs")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_a_revoked_key_ends_the_session(
    guest: Callable[[], Page], keys: tuple[Path, dict[str, str]]
) -> None:
    folder, created = keys
    page = guest()
    sign_in(page, created["revoked"])
    expect(page.get_by_role("heading", level=1)).to_contain_text("split")
    command = [
        "keys",
        "revoke",
        created["revoked"].split("_")[1],
        "--data-dir",
        str(folder / "data"),
    ]
    succeed(*command, env={})
    page.goto("/graphs")
    expect(page).to_have_url(re.compile("/sign-in"))
    assert page.context.cookies() == []


@pytest.mark.full
def test_tenants_see_their_own_alone(
    guest: Callable[[], Page],
    keys: tuple[Path, dict[str, str]],
    locked: Service,
    tiny_graph: Path,
) -> None:
    red, blue = guest(), guest()
    sign_in(red, keys[1]["red"], "/graphs")
    sign_in(blue, keys[1]["blue"], "/graphs")
    red.get_by_label("File").set_input_files(tiny_graph)
    red.get_by_role("button", name="Upload").click()
    graph = red.get_by_label("Graph").input_value()
    red.locator("#gpus").fill("2")
    red.get_by_role("button", name="Ask").click()
    red.wait_for_url(re.compile("/jobs/frontier_"))
    answered(red)
    job = red.url.rpartition("/")[2]
    for page in ("/graphs", "/jobs", "/"):
        red.goto(page)
        expect(red.get_by_role("main")).to_contain_text("tiny")
        blue.goto(page)
        expect(blue.get_by_role("main")).not_to_contain_text("tiny")
    form = {**cookie(keys[1]["blue"]), "Origin": locked.url}
    for method, path, fields in (
        ("GET", f"/jobs/{job}", None),
        ("GET", f"/jobs/{job}/events", None),
        ("GET", f"/jobs/{job}/document", None),
        ("GET", f"/jobs/{job}/files/graph.json", None),
        ("POST", f"/jobs/{job}/cancel", {}),
        ("POST", f"/jobs/{job}/plan", {"point": "0"}),
        ("POST", f"/graphs/{graph}/delete", {}),
    ):
        answer = locked.client.request(method, path, headers=form, data=fields)
        assert answer.status_code == 404, path
        assert "tiny" not in answer.text
    asked = {"graph": graph, "kind": "frontier", "hardware": "l4", "gpus": "1"}
    answer = locked.client.post("/ask", headers=form, data=asked)
    assert answer.status_code == 404
    red.goto(f"/jobs/{job}")
    expect(red.get_by_role("heading", level=1)).to_contain_text("tiny")


def test_a_reader_may_look_and_not_ask(
    guest: Callable[[], Page], keys: tuple[Path, dict[str, str]]
) -> None:
    page = guest()
    sign_in(page, keys[1]["reader"])
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("scope submit")


def test_what_a_key_may_not_do_is_not_offered_and_refused(
    keys: tuple[Path, dict[str, str]], locked: Service
) -> None:
    for who, allowed in (("red", SUBMIT), ("reader", ())):
        headers = {**cookie(keys[1][who]), "Origin": locked.url}
        assert "/agents/tokens" not in locked.client.get("/agents", headers=headers).text
        for path, offer in (("/launches", "Start one"), ("/hardware/l4", "/refit")):
            offered = offer in locked.client.get(path, headers=headers).text
            assert offered == bool(allowed), path
        for path in ACTS:
            status = locked.client.post(path, data={"a": "b"}, headers=headers).status_code
            assert (status == 403) == (path not in allowed), path


def test_the_cookie_opens_the_page_alone(
    keys: tuple[Path, dict[str, str]], locked: Service
) -> None:
    signed_in = cookie(keys[1]["red"])
    assert locked.client.get("/graphs", headers=signed_in).status_code == 200
    assert locked.client.get("/v1/graphs", headers=signed_in).status_code == 401
    for path in ("/", "/graphs", "/hardware", "/jobs", "/jobs/x", "/jobs/x/files/y", *LOOKS):
        answer = locked.client.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["Location"].startswith("/sign-in"), path
    for path in ("/ask", "/graphs", "/hardware", "/jobs/x/cancel", "/jobs/x/plan", *ACTS):
        answer = locked.client.post(path, data={}, headers={"Origin": locked.url})
        assert (answer.status_code, answer.headers.get("Location")) == (303, "/sign-in"), path


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_forms_of_others_are_refused(
    keys: tuple[Path, dict[str, str]], locked: Service, headers: dict[str, str]
) -> None:
    asked = {"graph": "shipped:gpt2", "kind": "plan", "hardware": "l4", "gpus": "1"}
    whose = {**cookie(keys[1]["red"]), **headers}
    for path in ("/ask", "/graphs", "/jobs/x/cancel", "/sign-out"):
        answer = locked.client.post(path, data=asked, headers=whose)
        assert answer.status_code == 403, path
    assert locked.client.post("/sign-in", data={"key": "x"}, headers=headers).status_code == (
        401 if not headers else 403
    )


def test_secure_where_the_browser_came_by_https(
    keys: tuple[Path, dict[str, str]], locked: Service
) -> None:
    host = httpx.URL(locked.url).netloc.decode()
    for scheme, secure in (("https", True), ("http", False)):
        answer = locked.client.post(
            "/sign-in",
            data={"key": keys[1]["red"], "next": "//evil.example/x"},
            headers={"Origin": f"{scheme}://{host}"},
        )
        assert (answer.status_code, answer.headers["Location"]) == (303, "/")
        given = answer.headers["Set-Cookie"]
        assert "HttpOnly" in given and "SameSite=strict" in given
        assert ("Secure" in given) == secure


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/jobs?state=done", "/jobs?state=done"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_signing_in_redirects_to_no_other_site(text: str, path: str) -> None:
    assert own_path(text) == path


def test_an_open_service_answers_to_its_own_name_alone(service: Service) -> None:
    assert service.client.get("/", headers={"Host": "evil.example"}).status_code == 403
    answer = service.client.post("/ask", data={}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    stale = service.client.get("/sign-in", headers=cookie("sw_other"))
    assert stale.status_code == 303
    assert 'shardwise_key=""' in stale.headers["Set-Cookie"]


def test_a_form_too_large_to_sign_in(locked: Service) -> None:
    answer = locked.client.post("/sign-in", data={"key": "x" * 10_000})
    assert answer.status_code == 413


def test_pages_forbid_everything_that_they_do_not_need(service: Service) -> None:
    first, second = (service.client.get("/") for _ in range(2))
    policy = first.headers["Content-Security-Policy"]
    assert policy != second.headers["Content-Security-Policy"]
    directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == "'self'"
    assert re.fullmatch(r"'self' 'nonce-[\w-]{22}'", directives["style-src"])
    assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    assert first.headers["Cache-Control"] == "no-store"
    assert first.headers["Referrer-Policy"] == "same-origin"
    assert " style=" not in first.text
    assert " onclick" not in first.text


def test_plotly_is_the_packages_own(service: Service) -> None:
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    answer = service.client.get("/assets/plotly.min.js")
    assert answer.content == package.read_bytes()
    assert answer.headers["Content-Encoding"] == "gzip"
    plain = service.client.get("/assets/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == package.read_bytes()
    again = service.client.get(
        "/assets/plotly.min.js", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    address = f"/assets/plotly.min.js?{answer.headers['ETag'].strip(chr(34))}"
    assert "immutable" in service.client.get(address).headers["Cache-Control"]
    for name in ("../routes.py", "routes.py", "..%2froutes.py", "nothing.js"):
        assert service.client.get(f"/assets/{name}").status_code == 404
