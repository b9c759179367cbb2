"""Tests how a run of the tests ends: tests that fail run once more alone (harness/suite)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.suite import changed, results
from harness.suite.record import ROOT, RUNS, Record

FAILS_FIRST = """
from pathlib import Path

def test_unsteady():
    mark = Path("{name}.ran")
    ran = mark.exists()
    mark.touch()
    assert ran, "the first time"
"""
PASSES = "def test_passes():\n    pass\n"
FAILS = "def test_fails():\n    assert 'apple' == 'pear'\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a folder as `make test` does."""
    command = [
        sys.executable, "-m", "harness.suite", "make test", "--whole",
        "--folder", "kept", "--record", "record.json", "--",
        "-p", "no:cacheprovider", *arguments,
    ]  # fmt: skip
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text.replace("{name}", name), "utf-8")


def last_lines(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout[done.stdout.index("make test: ") :]


def test_a_run_that_passes_is_kept(tmp_path: Path) -> None:
    write(tmp_path, a=PASSES, b=PASSES)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert last_lines(done).startswith("make test: 2 passed, 0 failed, 0 skipped in ")
    whole = Record.read(tmp_path / "record.json").whole
    assert whole is not None
    assert (whole.passed, whole.failed) == (2, 0)
    assert whole.modules.keys() == {"test_a.py", "test_b.py"}


def test_an_unsteady_test_costs_a_line(tmp_path: Path) -> None:
    write(tmp_path, a=PASSES, b=FAILS_FIRST)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 0 failed" in last_lines(done)
    assert "unsteady" in last_lines(done)
    assert "test_b.py::test_unsteady" in last_lines(done)
    assert "the first time" in (tmp_path / "kept" / "1-first.txt").read_text("utf-8")
    assert "1 passed" in (tmp_path / "kept" / "1-alone.txt").read_text("utf-8")
    assert Record.read(tmp_path / "record.json").unsteady == [["test_b.py::test_unsteady"]]


def test_a_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    write(tmp_path, a=FAILS_FIRST, b=FAILS)
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout
    failed = last_lines(done).partition("failed twice:")[2]
    assert "test_b.py::test_fails" in failed
    assert "test_a.py" not in failed
    assert "'apple' == 'pear'" in done.stdout.partition("failed again")[2]


def test_unsteady_twice_in_ten_runs_fails_the_run(tmp_path: Path) -> None:
    write(tmp_path, a=FAILS_FIRST)
    assert run(tmp_path).returncode == 0
    (tmp_path / "a.ran").unlink()
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "unsteady in the last ten runs already" in last_lines(done)


def test_what_was_unsteady_long_ago_is_forgotten() -> None:
    record = Record()
    assert record.add_run(["a"]) == []
    for _ in range(RUNS - 1):
        assert record.add_run([]) == []
    assert record.add_run(["a"]) == []
    assert record.add_run(["a"]) == ["a"]
    assert len(record.unsteady) == RUNS


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    write(tmp_path, **dict.fromkeys("abcd", FAILS_FIRST))
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout
    assert last_lines(done).count("::test_unsteady") == 4
    assert not list((tmp_path / "kept").glob("*-alone.txt"))


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    write(tmp_path, a=PASSES, b="import nothing_of_the_kind\n")
    assert run(tmp_path).returncode == 2


def test_a_run_side_by_side_has_the_same_outcome(tmp_path: Path) -> None:
    write(tmp_path, a=PASSES, b=FAILS_FIRST)
    done = run(tmp_path, "-p", "xdist", "-n", "2", "--dist", "loadfile")
    assert done.returncode == 0, done.stdout
    outcome = json.loads((tmp_path / "kept" / "outcome.json").read_text("utf-8"))
    assert (outcome["passed"], list(outcome["failed"])) == (1, ["test_b.py::test_unsteady"])
    assert outcome["modules"].keys() == {"test_a.py", "test_b.py"}


def test_a_row_of_the_last_results_replaces_its_own_alone() -> None:
    page = f"before\n{results.BEGIN}\n{results.END}\nafter\n"
    one = results.with_row(page, "make b", "| `make b` | one |")
    two = results.with_row(one, "make a", "| `make a` | two |")
    three = results.with_row(two, "make b", "| `make b` | three |")
    rows = [line for line in three.splitlines() if line.startswith("| `")]
    assert rows == ["| `make a` | two |", "| `make b` | three |"]
    assert three.startswith("before\n")
    assert three.endswith("\nafter\n")
    with pytest.raises(ValueError, match="last results"):
        results.with_row("no table", "make a", "| `make a` | two |")


def test_the_page_has_a_place_for_results() -> None:
    text = results.PAGE.read_text("utf-8")
    assert "| `make x` | 1 |" in results.with_row(text, "make x", "| `make x` | 1 |")


def test_a_change_of_a_command_runs_no_server() -> None:
    tests = changed.tests_of(["shardwise/cli/plan.py"])
    assert "tests/end_to_end/test_cli.py" in tests
    assert "tests/unit/test_options.py" in tests
    assert [test for test in tests if "/integration/" in test] == []


def test_a_change_reaches_the_rooms_that_import_it() -> None:
    tests = changed.tests_of(["shardwise/hardware/offers.py"])
    assert {"tests/unit/test_offers.py", "tests/unit/test_advice.py"} <= set(tests)
    assert "tests/unit/trainers/test_files.py" not in changed.tests_of(["shardwise/mcp/tools.py"])


def test_a_change_of_the_harness_runs_the_tests_that_import_it() -> None:
    tests = changed.tests_of(["harness/models/onnx_files.py"])
    assert tests
    assert all("onnx_files" in (ROOT / t).read_text("utf-8") for t in tests if "unit" in t)


def test_a_test_module_runs_itself_and_others_are_named() -> None:
    assert changed.tests_of(["tests/unit/test_sizes.py"]) == ["tests/unit/test_sizes.py"]
    with pytest.raises(changed.WholeSuite, match="Makefile"):
        changed.tests_of(["Makefile"])
    with pytest.raises(ValueError, match="no commit 'nowhere'"):
        changed.changed_files("nowhere")
