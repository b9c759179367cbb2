"""The kept splits of operators and the core ATen list are what registry and torch say."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("torch")
from shardwise.tdl.__main__ import main
from shardwise.tdl.core_aten import CORE_ATEN, TORCH
from shardwise.tdl.coverage import coverage, shipped
from shardwise.torch_operators import core_kinds, version
from tools.operators_table import FILE, splits_of, text_of
from tools.reference import operators

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
Tdl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tdl(monkeypatch: pytest.MonkeyPatch) -> Tdl:
    """Runs the command in this process, which has imported torch."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["shardwise.tdl", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


def test_the_table_is_up_to_date() -> None:
    assert FILE.read_text("utf-8") == text_of(splits_of(shipped())), "run make tables"
    assert FILE.stat().st_size < 100_000


def test_the_page_has_every_operator_once() -> None:
    text = operators.page()
    for described in shipped():
        assert text.count(f"`{described.kind}`") == 1, described.kind
    assert "| `aten.mm.default`" in text and "## Never split" in text


def test_the_core_list_is_that_of_torch() -> None:
    if version() != TORCH:
        pytest.skip(f"the list was read from torch {TORCH}")
    assert list(CORE_ATEN) == core_kinds()


def test_core_aten_is_described() -> None:
    covered = coverage()
    assert covered.missing == ()
    assert covered.total == len(CORE_ATEN)
    assert set(covered.replicated) == {
        "aten._local_scalar_dense.default",
        "aten.as_strided.default",
        "aten.nonzero.default",
        "aten.randperm.default",
        "aten.resize_.default",
        "aten.sym_is_contiguous.default",
        "aten.sym_numel.default",
        "aten.sym_size.int",
        "aten.sym_storage_offset.default",
        "aten.sym_stride.int",
    }


def test_what_is_named_is_what_torch_has() -> None:
    from shardwise.torch_operators import overload

    for entry in shipped():
        assert overload(entry.kind) is not None


def test_coverage_is_printed(tdl: Tdl) -> None:
    command = [sys.executable, "-m", "shardwise.tdl", "coverage"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    covered = coverage()
    assert done.returncode == 0, done.stderr
    assert f"{covered.described} of {covered.total} described" in done.stdout
    listed = tdl("coverage", "--list").stdout
    assert "never split: aten.nonzero.default: the shape of its output depends on" in listed
    assert json.loads(tdl("coverage", "--json").stdout)["described"] == covered.described


def test_coverage_of_a_list_names_what_is_missing() -> None:
    covered = coverage(["aten.mm.default", "aten.nonzero.default", "mylib.mystery.default"])
    assert covered.split == ("aten.mm.default",)
    assert covered.replicated == ("aten.nonzero.default",)
    assert covered.missing == ("mylib.mystery.default",)


def test_an_operator_is_verified_on_shapes_that_are_given(tdl: Tdl) -> None:
    done = tdl(
        "verify", "aten::cumsum", "--tensor", "self=n,m", "--attribute", "dim=1", "--trials", "2"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("aten.cumsum.default: d0 in 2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "mylib::mystery"], "mylib::mystery has no description"),
        (["verify", "aten::mm", "--tensor", "self"], "name=4,n,8"),
        (["verify", "aten::mm", "--tensor", "self=4,-1"], "'-1' is not an extent"),
        (["verify", "--tensor", "self=4"], "needs one operator"),
        (
            ["verify", "aten::mm", "--tensor", "self=4,4", "--attribute", "dim"],
            "is not an attribute",
        ),
        (["verify", "aten::empty_like"], "has no example"),
    ],
)
def test_a_wrong_call_prints_one_line(arguments: list[str], said: str, tdl: Tdl) -> None:
    done = tdl(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
