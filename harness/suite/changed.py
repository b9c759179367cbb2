"""Runs the tests of what changed since another commit, for the loop of edit and run.

The rooms that own a changed file run all their tests of `make test`; rooms that import it, directly
or through others (import-linter's graph), run their unit tests, laws and goldens. A changed test
module runs itself, a changed module of the harness runs the test modules that import it. What
belongs to no room (the Makefile, `tests/conftest.py`) asks for `make test`.

usage: python -m harness.suite.changed [--since main] [--list] [PYTEST'S ARGUMENTS]
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

import grimp

from harness.suite.__main__ import environment
from harness.suite.record import ROOT

PACKAGES = ("shardwise", "service", "worker", "agent", "migrations")
ROOMS_OF_FOLDERS = {
    "benchmarks": ("benchmarks",),
    "deploy": ("deploy",),
    "docs": ("docs",),
    "migrations": ("service",),
    "tools": ("docs", "tests"),
}
"""Rooms of files that are in no room of the code."""
QUICK = ("unit/", "property/", "golden/", "fuzz/")
"""Where the tests are that run without servers, ranks, browsers or whole models."""
EVERYTHING = ("Makefile", "pyproject.toml", ".importlinter", "tests/conftest.py", ".ci/run")
PROSE = (".md", ".txt")


class WholeSuite(Exception):
    """A change that only `make test` can judge; the message is the file's path."""


def changed_files(since: str) -> list[str]:
    """Returns the paths that differ from a commit, or are new; raises ValueError without it."""
    named = ["git", "diff", "--name-only", "--merge-base", since]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    paths: set[str] = set()
    for command in (named, new):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"git knows no commit {since!r}: {done.stderr.strip()[:200]}")
        paths.update(done.stdout.split())
    return sorted(paths)


def module_of(path: str) -> str:
    """Returns a Python file's module, dotted: `shardwise/cli/main.py` is shardwise.cli.main."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of_code(module: str) -> str:
    """Returns the room of a module of the library, or of an app."""
    parts = module.split(".")
    if parts[0] == "shardwise":
        return parts[1] if len(parts) > 1 else "cli"
    return "service" if parts[0] == "migrations" else parts[0]


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def importing_rooms(module: str) -> set[str]:
    """Returns the rooms with a module that imports this one, directly or not.

    A module that is gone counts as its package. Importing the package `shardwise` says nothing,
    since its names are looked up late.
    """
    while module not in graph().modules:
        module = module.rpartition(".")[0]
    if module in PACKAGES:
        return set()
    seen, todo = {module, "shardwise"}, [module]
    while todo:
        for importer in graph().find_modules_that_directly_import(todo.pop()) - seen:
            seen.add(importer)
            todo.append(importer)
    return {room_of_code(importer) for importer in seen - {"shardwise"}}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Returns all that a file of the tests or of the harness imports, late imports too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def users_of_harness(modules: set[str]) -> list[str]:
    """Returns the test modules that import any of these modules of the harness, directly or not."""
    files = {module_of(p.relative_to(ROOT).as_posix()): p for p in ROOT.glob("harness/**/*.py")}
    reached = set(modules)
    while more := {m for m, p in files.items() if imports_of(p) & reached} - reached:
        reached |= more
    tests = sorted(ROOT.glob("tests/**/test_*.py"))
    return [p.relative_to(ROOT).as_posix() for p in tests if imports_of(p) & reached]


def rooms_of_tests() -> dict[str, list[str]]:
    """Returns the test modules, each with its rooms (tests/rooms.py)."""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "tests" / "rooms.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(ROOT / "tests" / "rooms.py")
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    modules = sorted(ROOT.glob("tests/**/test_*.py"))
    return {path.relative_to(ROOT).as_posix(): rooms.rooms_of(path) for path in modules}


def tests_of(paths: Iterable[str]) -> list[str]:
    """Returns the test modules of changed files; raises WholeSuite if only all of them will do."""
    whole, quick, chosen, harness = set[str](), set[str](), set[str](), set[str]()
    for path in paths:
        top = path.split("/")[0]
        if path in EVERYTHING:
            raise WholeSuite(path)
        if top == "tests":
            if PurePosixPath(path).match("test_*.py"):
                chosen.add(path)
            else:
                chosen.update(beside(path))
        elif top == "harness" and path.endswith(".py"):
            harness.add(module_of(path))
        elif top in ("solver", "examples"):
            whole.add("solver" if top == "solver" else "docs")
            quick.update({"search"} if top == "solver" else ())
        elif top in ROOMS_OF_FOLDERS:
            whole.update(ROOMS_OF_FOLDERS[top])
        elif top in PACKAGES:
            module = module_of(path)
            whole.add(room_of_code(module))
            quick.update(importing_rooms(module) if path.endswith(".py") else ())
        elif path.endswith(PROSE):
            whole.add("docs")
    for test, rooms in rooms_of_tests().items():
        kind = test.removeprefix("tests/")
        if whole & set(rooms) or (quick & set(rooms) and kind.startswith(QUICK)):
            chosen.add(test)
    chosen.update(users_of_harness(harness) if harness else ())
    return sorted(test for test in chosen if (ROOT / test).exists())


def beside(path: str) -> list[str]:
    """Returns the test modules in the folder of a file that is no test, and below it."""
    folder = (ROOT / path).parent
    return [p.relative_to(ROOT).as_posix() for p in sorted(folder.glob("**/test_*.py"))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.suite.changed", allow_abbrev=False)
    parser.add_argument("--since", default="main", metavar="COMMIT")
    parser.add_argument("--list", action="store_true", help="print the test modules alone")
    asked, for_pytest = parser.parse_known_args(arguments)
    try:
        paths = changed_files(asked.since)
        tests = tests_of(paths)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except WholeSuite as whole:
        print(f"{whole} concerns every test: run `make test`.", file=sys.stderr)
        return 2
    if asked.list or not tests:
        print(*tests or [f"No test belongs to what changed since {asked.since}."], sep="\n")
        return 0
    print(f"{len(tests)} test modules of what changed since {asked.since}", flush=True)
    command = [sys.executable, "-m", "pytest", *for_pytest, *tests]
    if any(path.startswith("solver/") for path in paths):
        cargo = ["cargo", "test", "--package", "frontier"]
        if code := subprocess.run(cargo, cwd=ROOT / "solver", check=False).returncode:
            return code
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
