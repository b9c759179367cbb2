"""How tests are collected: rooms as markers, parts of the long tests, missing packages.

- A module's rooms (`rooms.py`) become markers: `pytest -m service`.
- `full` marks tests that only `make test-all` runs; `--part K/N` keeps those of every Nth module,
  from the Kth on.
- Modules run in the order of what they took in the last whole run (`record.json`), longest first,
  so that no core is left with a long one at the end.
- `needs("chromium")` skips a test if a system package (`packages.py`) is missing. Tests that were
  skipped for want of a package, of Python too, are counted at the end, with the command that
  installs it; `--complete` then fails the run.
- `engine` marks tests in containers, which run with `--engine` alone (`make compose-test`).
- Laws that hypothesis checks get 15 examples in `make test`, the same in each run, and 200 that are
  drawn anew in `make test-all`.
"""

from __future__ import annotations

import argparse
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import packages
import pytest
from hypothesis import settings
from rooms import ROOMS, rooms_of

import harness.fixed_day  # noqa: F401 - importing it sets the day
from harness import tiers
from harness.suite.record import ROOT, Record

MOST_PARTS = 100
WANT = "needs the package "
PYTHON_WANTS = ("could not import", "needs shardwise[")
"""How the reason of a skip begins if one of our extras is missing."""
UNKNOWN_S = 30.0
"""A module that the last whole run did not have counts as so many seconds."""

# No deadlines, as other tests run beside; no folder of examples, which one process would write for
# another to read.
settings.register_profile("few", max_examples=15, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "many", max_examples=200, derandomize=False, print_blob=True, deadline=None, database=None
)
settings.load_profile("many" if tiers.WHOLE else "few")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardwise")
    group.addoption(
        "--part", type=part_of_all, metavar="K/N",
        help="of the tests marked full, only those of every Nth module, from the Kth on (0 to N-1)",
    )  # fmt: skip
    group.addoption(
        "--complete", action="store_true", help="fail if a test was skipped for want of a package"
    )
    group.addoption(
        "--engine", action="store_true", help="run tests in containers too, which take minutes"
    )


def part_of_all(text: str) -> tuple[int, int]:
    """Returns K and N of `K/N`."""
    first, _, parts = text.partition("/")
    known = first.isdigit() and parts.isdigit() and int(first) < int(parts) <= MOST_PARTS
    if not known:
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N, such as 0/12")
    return int(first), int(parts)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores Ctrl-C, and every process that a test starts would too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for room in ROOMS:
        config.addinivalue_line("markers", f"{room}: tests of the room {room} (tests/rooms.py)")


def pytest_report_header() -> list[str]:
    missing = packages.missing()
    if not missing:
        return []
    return [
        f"missing packages, whose tests are skipped: {', '.join(missing)} "
        f"({packages.command(missing)})"
    ]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    # Rooms before pytest looks at `-m`; parts when every conftest has marked what is full.
    for item in items:
        for room in rooms_of(item.path):
            item.add_marker(room)
    yield
    if not config.getoption("engine"):
        deselect(config, items, [i for i in items if i.get_closest_marker("engine")])
    keep_part(config, items)
    took = Record.read().whole
    seconds = took.modules if took else {}
    items.sort(key=lambda item: rank(item.path, seconds))


def keep_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests marked full that belong to another part."""
    part = config.getoption("part")
    if part is None:
        return
    first, parts = part
    modules = sorted({item.path for item in items if item.get_closest_marker("full")})
    mine = set(modules[first::parts])
    full = (item for item in items if item.get_closest_marker("full"))
    deselect(config, items, [item for item in full if item.path not in mine])


def deselect(config: pytest.Config, items: list[pytest.Item], others: list[pytest.Item]) -> None:
    """Takes tests out of those that run, and has pytest count them."""
    config.hook.pytest_deselected(items=others)
    left_out = {id(item) for item in others}
    items[:] = [item for item in items if id(item) not in left_out]


def rank(module: Path, seconds: dict[str, float]) -> tuple[float, str]:
    """Returns a sort key by which long modules come first, so that none is left for the end."""
    path = module.relative_to(ROOT).as_posix()
    return -seconds.get(path, UNKNOWN_S), path


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = {package for marker in item.iter_markers("needs") for package in marker.args}
    missing = [package for package in packages.missing() if package in needed] if needed else []
    if missing:
        pytest.skip(f"{WANT}{missing[0]}")


def skipped(config: pytest.Config) -> list[tuple[str, str]]:
    """Returns the test and the reason of each skip."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return [(report.nodeid, report.longrepr[2].removeprefix("Skipped: ")) for report in reports]


def wanted(config: pytest.Config) -> Counter[str]:
    """Counts the tests, or whole modules, that were skipped for want of each package."""
    reasons = (reason for _, reason in skipped(config))
    return Counter(
        reason.removeprefix(WANT) for reason in reasons if reason.startswith((WANT, *PYTHON_WANTS))
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = wanted(config)
    if not counts:
        return
    terminalreporter.section("skipped for want of a package")
    for reason, count in counts.most_common():
        terminalreporter.line(f"{count}: {reason}")
    of_system = [package for package in packages.PROGRAMS if package in counts]
    if of_system:
        terminalreporter.line(packages.command(of_system))
    if len(of_system) < len(counts):
        terminalreporter.line("pip install -e '.[dev,models]'")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("complete") and wanted(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
