"""What people do on the page, for tests: ask, wait for the answer, look at it through axe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, TimeoutError, expect

from harness.commands import succeed
from harness.stored import graph as graph_of
from shardwise.graph import graph_id

HARDWARE = "dgx-v100-16gb"
SMALL = graph_id(graph_of("gpt"))
"""A GPT of two layers, which `Answered` has stored."""
REDRAWN_MS = 20_000
"""Within this time a drawing follows the width of the screen, on a machine that does much else."""


def ask(page: Page, kind: str, graph: str = SMALL, gpus: int = 4, **fields: str) -> str:
    """Fills in the form and sends it. Returns the path of the job's page."""
    page.goto("/")
    page.get_by_label("Graph").select_option(graph)
    page.get_by_role("radio", name=kind.capitalize()).check()
    if kind != "quote":
        page.get_by_label("Hardware").select_option(HARDWARE)
        page.locator("#gpus").fill(str(gpus))
    if any(page.locator(f"details #{name}").count() for name in fields):
        page.get_by_text("Options", exact=True).click()
    for name, value in fields.items():
        field = page.locator(f"#{name}")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile(r"/jobs/\w+_[0-9a-f]{32}$"))
    return page.url.partition("/jobs/")[2]


def answered(page: Page) -> None:
    """Waits until the job has ended; the page reloads itself."""
    expect(page.locator("#progress")).to_have_count(0)


def drawn(page: Page) -> None:
    """Waits until Plotly has drawn."""
    page.wait_for_selector("#plot[data-drawn=yes]")


def plotted(page: Page, trace: str) -> list[dict[str, Any]]:
    """Returns where the markers of a trace are on the screen, with their points' numbers."""
    traces: list[dict[str, Any]] = page.evaluate(
        """name => {
            const place = document.getElementById("plot");
            const box = place.getBoundingClientRect();
            const layout = place._fullLayout;
            const trace = place.data.find(one => one.name === name);
            const x = layout[(trace.xaxis || "x").replace("x", "xaxis")];
            const y = layout[(trace.yaxis || "y").replace("y", "yaxis")];
            return trace.x.map((value, i) => ({
                x: box.x + x._offset + x.d2p(value), y: box.y + y._offset + y.d2p(trace.y[i]),
                point: trace.customdata[i],
            }));
        }""",
        trace,
    )
    return traces


def faults(page: Page) -> list[str]:
    """Returns what axe reports, WCAG 2.1 A and AA and best practices, as text."""
    results = Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        f"{page.url}: {violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')}"
        for violation in results.response["violations"]
        for node in violation["nodes"]
    ]


def without_rows_alike(page: Page) -> None:
    """Leaves one of the rows of a table that differ in their words alone.

    Axe looks at the colours of each; what it finds in one it would find in all.
    """
    page.evaluate(
        """() => {
            const told = ["class", "style", "role", "scope", "data-state", "colspan", "rowspan"];
            const form = (element) => element.tagName + element.getAttributeNames().sort()
                .map((name) => name + (told.includes(name) ? element.getAttribute(name) : ""))
                + !element.textContent.trim();
            for (const body of document.querySelectorAll("tbody")) {
                const known = new Set();
                for (const row of [...body.rows]) {
                    const own = [row, ...row.querySelectorAll("*")].map(form).join();
                    if (known.has(own)) row.remove();
                    known.add(own);
                }
            }
        }"""
    )


def too_wide(page: Page) -> bool:
    """Returns whether the page as a whole scrolls sideways."""
    wide: bool = page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )
    return wide


def becomes_narrow(page: Page) -> bool:
    """Returns whether nothing scrolls sideways once drawings have followed a change of the
    screen's width."""
    try:
        page.wait_for_function(
            "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth",
            timeout=REDRAWN_MS,
        )
    except TimeoutError:
        return False
    return True


def cut_off(page: Page) -> list[str]:
    """Returns tables and listings wider than their place that no box scrolls by touch and key."""
    names: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("main table, main pre")]
            .filter((wide) => wide.offsetParent)
            .filter((wide) => wide.scrollWidth > wide.parentElement.clientWidth + 1)
            .filter((wide) => {
                const box = wide.closest(".scroll, .log");
                return !box || box.tabIndex !== 0 || getComputedStyle(box).overflowX !== "auto"
                    || box.getBoundingClientRect().right > innerWidth;
            })
            .map((wide) => wide.outerHTML.slice(0, 80))"""
    )
    return names


LOCKED = {"auth": "required", "auth_cache_s": "0.001"}


def make_key(folder: Path, tenant: str, *scopes: str) -> str:
    asked = [part for scope in scopes for part in ("--scope", scope)]
    command = ["keys", "create", "--tenant", tenant, "--data-dir", str(folder / "data"), *asked]
    return str(json.loads(succeed(*command, "--json", env={}))["key"])


def sign_in(page: Page, key: str, where: str = "/") -> None:
    page.goto(where)
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def cookie(key: str) -> dict[str, str]:
    return {"Cookie": f"shardwise_key={key}"}
