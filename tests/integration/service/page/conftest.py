"""A real headless Chromium on a real embedded service.

The browser is Debian's package; none is downloaded. Every page that a test opens must load
everything from the service itself, keep its Content-Security-Policy and log no error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.service.answered import Answered
from harness.service.service_harness import PATIENCE_S, Service

pytest.importorskip("playwright", reason="needs shardwise[dev]")

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

WITHIN_MS = round(1000 * PATIENCE_S)

expect.set_options(timeout=WITHIN_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.needs("chromium"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A module's own: while it runs, so does Playwright's event loop in the main thread, and no
    test could call `asyncio.run`."""
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        program = shutil.which("chromium")
        running = playwright.chromium.launch(executable_path=program, args=root)
        yield running
        running.close()


@pytest.fixture(scope="session")
def service(answered: Answered) -> Service:
    """An open service on loopback, with its own worker, and every answer that is kept."""
    return answered.service


class Visitor:
    """Opens pages and remembers what went wrong in them."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self.url = url
        self.contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected: list[str] = []

    def __call__(self, **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        context = self._browser.new_context(base_url=self.url, **options)
        self.contexts.append(context)
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("request", self._requested)
        return page

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            text = f"{message.text} ({message.location.get('url')})"
            if not any(part in text for part in self.expected):
                self.complaints.append(text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"asked another host: {request.url}")


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Callable[..., Page]]:
    visitor = Visitor(browser, service.url)
    yield visitor
    for context in visitor.contexts:
        context.close()
    assert visitor.complaints == []


@pytest.fixture
def page(visit: Callable[..., Page]) -> Page:
    return visit()


@pytest.fixture
def tiny_graph(tmp_path: Path) -> Path:
    """A file as `shardwise capture` writes it: two layers and a loss between 64 samples."""
    from harness.graph_builder import GraphBuilder
    from shardwise.graph import canonical_json

    builder = GraphBuilder("tiny <&> model")
    last = builder.input("x", 64, 256)
    for layer in range(3):
        weight = builder.parameter(f"w{layer}", 256, 256)
        last = builder.linear(f"layer{layer}", last, weight, f"y{layer}", "")
    graph = builder.graph()
    path = tmp_path / "tiny.json"
    path.write_bytes(canonical_json(graph))
    return path
