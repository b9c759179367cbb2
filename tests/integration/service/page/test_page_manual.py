"""The documentation that a service serves, built by Sphinx and read in a browser."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from harness.page.page_steps import LOCKED, answered, ask, faults, make_key
from harness.service.service_harness import Service, wait_until
from service.page.manual import TOPICS

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")

ROOT = Path(__file__).parents[4]
PAGES = sorted({name for topics in TOPICS.values() for name, _ in topics})
WHOLE = "the repository's"


def build(docs: Path, out: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-d", str(out / ".trees"), "-b", "html"]
    done = subprocess.run([*command, str(docs), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Documented(Service):
    """A service with documentation."""

    def __init__(self, folder: Path, docs_dir: str) -> None:
        self.docs_dir = docs_dir
        # One address reads every page within seconds.
        unbounded = {"anonymous_rate_per_s": "0", "rate_per_s": "0"}
        super().__init__(folder, docs_dir=docs_dir, heartbeat_s="0.2", **unbounded)


@pytest.fixture(scope="module", params=["small", pytest.param(WHOLE, marks=pytest.mark.full)])
def documented(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documented]:
    """A service with the pages that views link to, or with all that the repository has."""
    folder = tmp_path_factory.mktemp("documented")
    docs = ROOT / "docs"
    if request.param != WHOLE:
        docs = folder / "sources"
        for name in PAGES:
            (docs / name).parent.mkdir(parents=True, exist_ok=True)
            (docs / f"{name}.md").write_text(f"# Of {name}\n\nThe word zebra.\n")
        listed = "".join(f"- [{name}]({name}.md)\n" for name in PAGES)
        (docs / "index.md").write_text(f"# Shardwise\n\n## Start\n\n{listed}")
        shutil.copy(ROOT / "docs" / "conf.py", docs)
        shutil.copytree(ROOT / "docs" / "static", docs / "static")
    build(docs, folder / "built")
    (folder / "built" / "secret.html").symlink_to(folder / "outside.html")
    (folder / "outside.html").write_text("outside")
    running = Documented(folder, str(folder / "built"))
    wait_until(lambda: running.client.get("/readyz").json()["checks"]["workers"], "a worker")
    yield running
    running.stop()


def test_every_view_leads_to_pages_that_are_there(visit: Any, documented: Service) -> None:
    visit.url = documented.url
    page = visit()
    seen: dict[str, str] = {}
    views = ["/", "/graphs", "/hardware", "/jobs", "/agents", "/launches", "/accuracy", "/usage"]
    views.append("/jobs/" + ask(page, "plan", graph="shipped:vgg16", gpus=2, micro_batches="1"))
    answered(page)
    for view in views:
        page.goto(view)
        links = page.locator("p.topics a")
        assert links.count(), view
        for link in links.all():
            seen[str(link.get_attribute("href"))] = link.inner_text()
    assert "/manual/certificates.html" in seen and "/manual/concepts.html" in seen
    for where in [*seen, "/manual/"]:
        answer = documented.client.get(where)
        assert answer.status_code == 200, where
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    page.get_by_role("contentinfo").get_by_role("link", name="Documentation").click()
    expect(page).to_have_url(f"{documented.url}/manual/")
    assert documented.client.get("/manual").headers["Location"] == "/manual/"


def test_its_pages_work_under_their_policy(visit: Any, documented: Service) -> None:
    """Scripts, styles and the search run; the browser would log whatever the policy refused."""
    visit.url = documented.url
    page = visit()
    page.goto("/manual/certificates.html")
    expect(page.locator("body")).to_have_attribute("data-theme", "auto")
    page.goto("/manual/search.html?q=certificates")
    expect(page.locator("#search-results li").first).to_be_visible()
    page.goto("/")
    page.get_by_role("button", name="Use dark colours").click()
    page.goto("/manual/certificates.html")
    expect(page.locator("body")).to_have_attribute("data-theme", "dark")


def test_whatever_its_pages_load_is_there(documented: Service) -> None:
    """Links, scripts, styles and pictures of every linked page; nothing from another host."""
    addresses = set()
    for name in ["index", *PAGES]:
        html = documented.client.get(f"/manual/{name}.html").text
        loaded = re.findall(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"([^\"]+)\"", html)
        followed = re.findall(r"<a\b[^>]*?href=\"([^\"]+)\"", html)
        assert not [one for one in loaded if urlsplit(one).netloc], name
        own = [one for one in (*loaded, *followed) if not urlsplit(one).scheme]
        addresses |= {
            str(httpx.URL(f"{documented.url}/manual/{name}.html").join(one)) for one in own
        }
    assert len(addresses) > len(PAGES)
    # Without the reference, which `make docs` writes first, its pages are not there.
    missing = {
        where for where in addresses
        if "/reference/" not in where and documented.client.get(where).status_code != 200
    }  # fmt: skip
    assert missing == set()


def test_types_digests_and_compression(documented: Service) -> None:
    get = documented.client.get
    html = get("/manual/index.html").text
    style, version = re.findall(r'href="(_static/[\w/.-]+\.css)\?(v=[0-9a-f]+)"', html)[0]
    for path, kind in (
        ("index.html", "text/html"),
        (style, "text/css"),
        ("searchindex.js", "text/javascript"),
    ):
        answer = get(f"/manual/{path}", headers={"Accept-Encoding": "gzip"})
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"]
        scripts = policy.partition("script-src ")[2].partition(";")[0]
        assert "default-src 'none'" in policy and "unsafe" not in scripts and "http" not in policy
        plain = get(f"/manual/{path}", headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers and plain.content == answer.content
        same = get(f"/manual/{path}", headers={"If-None-Match": answer.headers["ETag"]})
        assert (same.status_code, same.content) == (304, b"")
        head = documented.client.head(f"/manual/{path}")
        assert head.status_code == 200 and head.content == b""
    assert "immutable" in get(f"/manual/{style}?{version}").headers["Cache-Control"]
    assert documented.client.post("/manual/index.html").status_code == 405


ESCAPES = (
    "../outside.html", "..%2foutside.html", "%2e%2e/outside.html", "%2e%2e%2foutside.html",
    "..%5coutside.html", "how-to/../../outside.html", "how-to/..%2f..%2foutside.html",
    "/etc/passwd", "%2fetc%2fpasswd", "secret.html", "....//outside.html", "index.html%00.png",
    "%c0%ae%c0%ae/outside.html", ".buildinfo", ".trees/environment.pickle", "none.html",
)  # fmt: skip


@pytest.mark.parametrize("path", ESCAPES)
def test_nothing_outside_is_served(documented: Service, path: str) -> None:
    """As bytes on the wire: clients would tidy such a path up."""
    host, port = documented.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(
            f"GET /manual/{path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
            .encode()
        )  # fmt: skip
        answer = b""
        while piece := wire.recv(65536):
            answer += piece
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"outside</" not in answer and b"root:" not in answer


def test_it_needs_no_key(documented: Documented, tmp_path: Path) -> None:
    make_key(tmp_path, "one", "read")
    locked = Service(tmp_path, docs_dir=documented.docs_dir, **LOCKED)
    try:
        assert locked.client.get("/manual/").status_code == 200
        assert locked.client.get("/graphs").headers["Location"].startswith("/sign-in")
        assert "/manual/how-to/sign-in.html" in locked.client.get("/sign-in").text
    finally:
        locked.stop()


def test_without_documentation_there_are_no_links(page: Any, visit: Any, service: Service) -> None:
    visit.expected.append("404")
    page.goto("/")
    assert page.get_by_role("link", name="Documentation").count() == 0
    assert page.locator(".topics").count() == 0
    assert page.goto("/manual/").status == 404
    expect(page.get_by_role("link", name="Documentation")).to_have_count(0)
    assert faults(page) == []
