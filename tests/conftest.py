"""How all tests are collected: rooms as markers, quarters of what is long, and packages that lack.

- A module's rooms (`rooms.py`) are markers: `pytest -m service`.
- `full` marks what only `make test-all` runs; `--quarter N` keeps one module in four of those, so
  that four landings run everything.
- `needs("chromium")` skips a test where a package of the system (`packages.py`) lacks. What is
  skipped for want of a package, of Python too, is named at the end with the command that installs
  it, and fails the run under `--complete`.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import packages
import pytest
from rooms import ROOMS, rooms_of

QUARTERS = 4
WANT = "needs the package "
PYTHON_WANTS = ("could not import", "needs shardwise[")
"""How reasons of skips begin that an extra of ours would mend."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardwise")
    group.addoption(
        "--quarter", type=int, choices=range(QUARTERS), metavar="0..3",
        help="of the tests marked full, only those of every fourth module, from this one on",
    )  # fmt: skip
    group.addoption(
        "--complete", action="store_true", help="fail if a test was skipped for want of a package"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores Ctrl-C, and so would all that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for room in ROOMS:
        config.addinivalue_line("markers", f"{room}: tests of the room {room} (tests/rooms.py)")


def pytest_report_header() -> list[str]:
    lacking = packages.missing()
    if not lacking:
        return []
    return [
        f"packages that lack, so that their tests are skipped: {', '.join(lacking)} "
        f"({packages.command(lacking)})"
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for room in rooms_of(item.path):
            item.add_marker(room)
    keep_quarter(config, items)
    items.sort(key=lambda item: cost_rank(item.path))


def keep_quarter(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what is full and of another quarter than `--quarter`."""
    quarter = config.getoption("quarter")
    if quarter is None:
        return
    modules = sorted({item.path for item in items if item.get_closest_marker("full")})
    mine = set(modules[quarter::QUARTERS])
    other = [i for i in items if i.get_closest_marker("full") and i.path not in mine]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if item not in set(other)]


def cost_rank(module: Path) -> tuple[int, str]:
    """Long modules first, so that no core is left with a long one at the end."""
    path = str(module)
    kinds = ("/integration/", "/end_to_end/", "/golden/")
    return next((n for n, kind in enumerate(kinds) if kind in path), len(kinds)), path


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    lacking = set(packages.missing())
    for marker in item.iter_markers("needs"):
        for package in marker.args:
            if package in lacking:
                pytest.skip(f"{WANT}{package}")


def wanted(config: pytest.Config) -> Counter[str]:
    """How many tests (or modules) were skipped for want of which package."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    found: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith((WANT, *PYTHON_WANTS)):
            found[reason.removeprefix(WANT)] += 1
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = wanted(config)
    if not found:
        return
    terminalreporter.section("skipped for want of a package")
    for reason, count in found.most_common():
        terminalreporter.line(f"{count}: {reason}")
    of_system = [package for package in packages.PROGRAMS if package in found]
    if of_system:
        terminalreporter.line(packages.command(of_system))
    if len(of_system) < len(found):
        terminalreporter.line("pip install -e '.[dev,torch]'")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("complete") and wanted(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
