"""A login at a provider that others wrote: Canaille, with its own users, groups and consent.

It runs in an environment of its own (harness/schedulers/environments.py says which).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from harness.schedulers.environments import Environment
from harness.service.oidc_provider import with_logins
from harness.service.service_harness import Service, free_port, wait_until

pytest.importorskip("authlib", reason="needs shardwise[oidc]")
pytestmark = pytest.mark.full

CLIENT, SECRET = "shardwise", "a-secret-of-the-client"
PASSWORD = "correct horse battery staple"
RULES = """
[[rule]]
group = "research"
tenant = "research"
scopes = ["read", "submit"]
"""


class Canaille:
    """The provider as its users start it, with one client and two people."""

    def __init__(self, folder: Path, service_url: str) -> None:
        self.folder = folder
        environment = Environment("canaille", "canaille[front,oidc,server,sqlite]==0.3.6")
        self.program = str(Path(environment.python).parent / "canaille")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "canaille.toml").write_text(
            f"""
SECRET_KEY = "for this test alone"
SERVER_NAME = "127.0.0.1:{port}"
PREFERRED_URL_SCHEME = "http"
[CANAILLE]
DATABASE = "sql"
JAVASCRIPT = false
HTMX = false
CAPTCHA_ENABLED = false
[CANAILLE_SQL]
DATABASE_URI = "sqlite:///{folder / "canaille.sqlite"}"
[CANAILLE_OIDC]
TRUSTED_DOMAINS = ""
"""
        )
        self._run("install")
        for user in ("ada", "bob"):
            given = ("--emails", f"{user}@example.org", "--password", PASSWORD)
            self._run("create", "user", "--user-name", user, "--family-name", user, *given)
        self._run("create", "group", "--display-name", "research", "--members", "ada")
        self._run("create", "group", "--display-name", "chess", "--members", "bob")
        scopes = [part for name in ("openid", "profile", "email", "groups")
                  for part in ("--scope", name)]  # fmt: skip
        self._run(
            "create", "client", "--client-id", CLIENT, "--client-secret", SECRET,
            "--client-name", "Shardwise", "--client-uri", "https://shardwise.example",
            "--redirect-uris", f"{service_url}/sign-in/callback",
            "--post-logout-redirect-uris", f"{service_url}/sign-in",
            "--grant-types", "authorization_code", "--response-types", "code",
            "--token-endpoint-auth-method", "client_secret_basic", *scopes,
        )  # fmt: skip
        # Its own pages make a client its tokens' audience; its command line does not.
        self._run("set", "client", CLIENT, "--audience", CLIENT)
        self._log = (folder / "canaille.log").open("wb")
        self._process = subprocess.Popen(
            [self.program, "run", "--bind", f"127.0.0.1:{port}"],
            env=self._environment(), cwd=folder, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        wait_until(self._answers, "Canaille answers")

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(30)
        self._log.close()

    def _environment(self) -> dict[str, str]:
        config = str(self.folder / "canaille.toml")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CANAILLE_CONFIG": config,
        }

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [self.program, *arguments], env=self._environment(), cwd=self.folder,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/.well-known/openid-configuration").status_code == 200
        except httpx.HTTPError:
            return False


class Forms(HTMLParser):
    """The fields and buttons of a page's forms."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.buttons: list[tuple[str, str]] = []
        self.action = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.action = given.get("action", "")
        elif tag == "input" and "name" in given:
            self.fields[given["name"]] = given.get("value", "")
        elif tag == "button" and "name" in given:
            self.buttons.append((given["name"], given.get("value", "")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaille")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def canaille(folder: Path, port: int) -> Iterator[Canaille]:
    running = Canaille(folder, f"http://127.0.0.1:{port}")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def service(folder: Path, canaille: Canaille, port: int) -> Iterator[Service]:
    running = with_logins(
        folder,
        canaille.url,
        RULES,
        port,
        oidc_name="Canaille",
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
    )
    yield running
    running.stop()


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def follow(browser: httpx.Client, page: httpx.Response, until: str = "\0") -> httpx.Response:
    """Goes where answers lead, to a page or to the answer that leads to `until`."""
    while page.is_redirect and not page.headers["Location"].startswith(until):
        page = browser.get(page.url.join(page.headers["Location"]))
    return page


def answer_of(
    browser: httpx.Client, service: Service, canaille: Canaille, user: str
) -> tuple[str, list[str]]:
    """Through all of the provider's pages; where it sends the browser back, and their paths."""
    sign_in = browser.get(f"{service.url}/sign-in").text
    link = re.search(r'href="([^"]+/sign-in/start[^"]*)"', sign_in)
    assert link is not None
    back = f"{service.url}/sign-in/callback"
    page = follow(browser, browser.get(link[1].replace("&amp;", "&")), back)
    known = {"login": user, "password": PASSWORD}
    paths = []
    while not page.is_redirect:
        paths.append(page.url.path)
        assert len(paths) < 10, paths
        forms = Forms(page.text)
        chosen = dict([("answer", "accept")] if ("answer", "accept") in forms.buttons
                      else forms.buttons[:1])  # fmt: skip
        fields = {name: known.get(name, value) for name, value in forms.fields.items()}
        action = forms.action or str(page.url)
        sent = browser.post(httpx.URL(canaille.url).join(action), data={**fields, **chosen})
        page = follow(browser, sent, back)
    return page.headers["Location"], paths


def test_password_consent_groups_and_out(
    browser: httpx.Client, service: Service, canaille: Canaille
) -> None:
    answer, paths = answer_of(browser, service, canaille, "ada")
    assert "/oauth/authorize" in paths, "consent was asked for"
    attempt = str(browser.cookies.get("shardwise_sign_in"))
    page = follow(browser, browser.get(answer))
    assert page.status_code == 200, page.text
    assert "ada@example.org" in page.text and "research" in page.text
    assert browser.get(f"{service.url}/jobs").status_code == 200
    with httpx.Client(timeout=60) as thief:
        thief.cookies.set("shardwise_sign_in", attempt)
        assert thief.get(answer).status_code == 401, "a code is taken once"
    left = browser.post(f"{service.url}/sign-out", headers={"Origin": service.url})
    offered = re.search(r'href="([^"]+)">Sign out there too', follow(browser, left).text)
    assert offered is not None
    confirm = follow(browser, browser.get(offered[1].replace("&amp;", "&")))
    forms = Forms(confirm.text)
    assert ("answer", "logout") in forms.buttons, "the provider asks whether that is meant"
    out = browser.post(str(confirm.url), data={**forms.fields, "answer": "logout"})
    assert follow(browser, out).status_code == 200
    again = follow(browser, browser.get(f"{service.url}/sign-in/start"))
    assert str(again.url).startswith(f"{canaille.url}/login"), "its own session has ended too"


def test_a_user_of_another_group(
    browser: httpx.Client, service: Service, canaille: Canaille
) -> None:
    page = browser.get(answer_of(browser, service, canaille, "bob")[0])
    assert page.status_code == 403
    assert "none of your groups" in page.text and "chess" in page.text
    assert browser.get(f"{service.url}/jobs").is_redirect
