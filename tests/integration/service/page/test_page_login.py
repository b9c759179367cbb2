"""A login in a real browser, at a provider of another site: cookies, redirects, policies hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.commands import succeed
from harness.page.page_steps import faults
from harness.service.oidc_provider import SECRET, OidcProvider
from harness.service.service_harness import Service

RULES = """
[[rule]]
group = "research"
tenant = "research"
scopes = ["read", "submit"]

[[rule]]
group = "platform"
tenant = "ops"
scopes = ["admin"]
"""
PEOPLE = {
    "ada": {"groups": ["research", "platform"]},
    "dan": {"groups": ["chess"]},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    # localhost is another site than 127.0.0.1, as providers are other sites than we.
    running = OidcProvider(PEOPLE, "localhost")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page-login")


@pytest.fixture(scope="module")
def signing(folder: Path, provider: OidcProvider) -> Iterator[Service]:
    with provider.service(
        folder,
        RULES,
        oidc_name="Example Login",
        oidc_client_secret=SECRET,
        auth_cache_s="0.001",
    ) as running:
        yield running


@pytest.fixture
def page(browser: Browser, signing: Service) -> Iterator[Page]:
    context = browser.new_context(base_url=signing.url)
    yield context.new_page()
    context.close()


def log_in(page: Page, user: str) -> None:
    page.get_by_role("link", name="Sign in with Example Login").click()
    expect(page).to_have_title("Who are you?")
    page.get_by_label("User").fill(user)
    page.get_by_role("button", name="Log in").click()


def test_a_login_with_a_choice_of_tenant(
    page: Page, signing: Service, provider: OidcProvider, folder: Path
) -> None:
    page.goto("/agents")
    expect(page).to_have_url(re.compile("/sign-in"))
    assert faults(page) == []
    log_in(page, "ada")
    expect(page.get_by_role("heading", level=1)).to_have_text("Choose a tenant")
    assert faults(page) == []
    page.get_by_role("button", name="ops").click()
    expect(page).to_have_url(f"{signing.url}/agents")
    expect(page.get_by_role("banner")).to_contain_text("ada@example.org · ops")
    assert faults(page) == []
    kept = [c for c in page.context.cookies(signing.url) if c["name"].startswith("shardwise")]
    assert [(c["name"], c["httpOnly"], c["sameSite"]) for c in kept] == [
        ("shardwise_session", True, "Lax")
    ]
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("fetch('/v1/agents').then(answer => answer.status)") == 401
    page.get_by_role("link", name="ops").click()
    page.get_by_role("button", name="research").click()
    expect(page.get_by_role("banner")).to_contain_text("research")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_contain_text("You are signed out here")
    assert faults(page) == []
    page.get_by_role("link", name="Sign out there too").click()
    expect(page).to_have_url(re.compile(re.escape(provider.issuer) + "/end"))
    page.goto(f"{signing.url}/agents")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_a_user_without_a_tenant(page: Page) -> None:
    page.goto("/sign-in")
    log_in(page, "dan")
    expect(page.get_by_role("alert")).to_contain_text("none of your groups has a tenant here")
    expect(page.get_by_role("main")).to_contain_text("chess")
    assert faults(page) == []
    assert [c for c in page.context.cookies() if c["name"] == "shardwise_session"] == []


def test_an_operator_ends_a_persons_logins(page: Page, folder: Path) -> None:
    page.goto("/sign-in")
    log_in(page, "ada")
    expect(page.get_by_role("heading", level=1)).to_have_text("Choose a tenant")
    succeed("keys", "sign-out", "ada", "--data-dir", str(folder / "data"), env={})
    page.goto("/jobs")
    expect(page).to_have_url(re.compile("/sign-in"))
    assert page.context.cookies() == []
