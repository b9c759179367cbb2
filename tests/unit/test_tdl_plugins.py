"""Operators of other packages: the example of docs/tdl.md is installed and runs, and errors name
whose they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "tdl.md"


def _documented_files() -> dict[str, str]:
    """Returns the code blocks of docs/tdl.md that follow the name of a file."""
    text = DOCUMENT.read_text("utf-8")
    files = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return dict(files)


def _install(files: dict[str, str], tmp_path: Path) -> Path:
    """Build and install a package as a user would, without a network; the folder it is in."""
    source, target = tmp_path / "source", tmp_path / "installed"
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def _tdl(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(installed, "-m", "shardwise.tdl", *arguments)


def _python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{installed}:{ROOT}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=installed,
    )


def _plugin(module: str, tmp_path: Path) -> Path:
    """An installed package as importlib.metadata sees it, with one entry point."""
    (tmp_path / "someone.py").write_text(dedent(module), "utf-8")
    info = tmp_path / "someone-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[shardwise.operators]\ntheirs = someone\n")
    return tmp_path


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("setuptools")
    files = _documented_files()
    assert {"pyproject.toml", "mylib/__init__.py", "mylib/shardwise_operators.py"} <= set(files)
    return _install(files, tmp_path_factory.mktemp("package"))


@pytest.mark.torch
def test_the_documented_package_is_installed_found_and_verified(documented: Path) -> None:
    done = _tdl(documented, "verify", "mylib::decay_scan", "--trials", "3", "--json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["operators"]
    assert result["kind"] == "mylib.decay_scan.default"
    assert "batch in 2" in result["checks"]
    assert "channel in 2" in result["checks"]
    assert "time" not in result["checks"]


@pytest.mark.torch
def test_the_documented_package_is_found_in_a_captured_model(
    documented: Path, tmp_path: Path
) -> None:
    graph = tmp_path / "graph.json"
    main = ("-m", "shardwise.cli.main")
    done = _python(documented, *main, "capture", "mylib:model", "--batch", "4", "-o", str(graph))
    assert done.returncode == 0, done.stderr
    shown = _python(documented, *main, "inspect", str(graph), "--json")
    assert shown.returncode == 0, shown.stderr
    rows = {row["kind"]: row for row in json.loads(shown.stdout)["operators"]["by_kind"]}
    assert rows["mylib.decay_scan.default"]["described"]
    assert not json.loads(shown.stdout)["undescribed_operators"]


def test_a_wrong_description_is_found_out(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    installed = _plugin(
        """
        import torch
        from shardwise import tdl

        @torch.library.custom_op("someone::running_sum", mutates_args=())
        def running_sum(x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

        @tdl.op("someone::running_sum", examples=[tdl.Example({"x": (4, "n")})])
        def described(x):
            return lambda i, j: tdl.apply(x[i, j])
        """,
        tmp_path,
    )
    done = _tdl(installed, "verify", "someone::running_sum")
    assert done.returncode == 1
    assert "output variable j cannot be split in 2" in done.stdout


def test_an_entry_point_that_fails_is_named(tmp_path: Path) -> None:
    installed = _plugin("import a_module_that_is_not_there\n", tmp_path)
    done = _tdl(installed, "coverage")
    assert done.returncode == 2
    assert "entry point 'theirs' of someone 1.5 (shardwise.operators: someone)" in done.stderr
    assert "ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_entry_point_may_be_a_function(tmp_path: Path) -> None:
    installed = _plugin(
        """
        def register():
            from shardwise import tdl

            @tdl.op("someone::twice.int")
            def described(x):
                return lambda *i: tdl.apply(x[i])
        """,
        tmp_path,
    )
    points = installed / "someone-1.5.dist-info" / "entry_points.txt"
    points.write_text("[shardwise.operators]\ntheirs = someone:register\n")
    code = "from shardwise import tdl; print(tdl.description('someone.twice.int').kind)"
    done = _python(installed, "-c", code)
    assert done.stdout.strip() == "someone.twice.int", done.stderr


def test_another_package_may_not_silently_replace_a_description(tmp_path: Path) -> None:
    module = """
        from shardwise import tdl

        @tdl.op("aten::mm"{more})
        def described(self, mat2):
            return lambda i, j: tdl.Sum(lambda k: self[i, k] * mat2[k, j])
        """
    installed = _plugin(module.format(more=""), tmp_path)
    done = _tdl(installed, "coverage")
    assert done.returncode == 2
    assert "aten.mm.default is described already" in done.stderr
    (tmp_path / "someone.py").write_text(dedent(module.format(more=", replace=True")), "utf-8")
    code = "from shardwise import tdl; print(tdl.description('aten::mm').function.__module__)"
    done = _python(installed, "-c", code)
    assert done.stdout.strip() == "someone", done.stderr


def test_entry_points_are_loaded_only_when_the_registry_is_asked(tmp_path: Path) -> None:
    installed = _plugin("raise RuntimeError('loaded')\n", tmp_path)
    assert _python(installed, "-c", "import shardwise.tdl, shardwise.answers").returncode == 0
    code = "from shardwise import tdl; tdl.described_kinds()"
    assert "RuntimeError: loaded" in _python(installed, "-c", code).stderr
