"""Who may import whom (ARCHITECTURE.md, Rooms), and that the base install needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APPS = {"service", "worker", "agent"}
TORCH_ROOMS = {"capture", "execute", "measure"}
TORCH_ALWAYS = "execute"
"""The room whose modules import torch at once; the others import it, if they do, when asked to."""


def _imports(path: Path) -> list[tuple[str, bool]]:
    """(top-level package, whether at module level) of each import."""
    tree = ast.parse(path.read_text("utf-8"))
    found = []
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module.split(".")[0], id(node) in top))
    return found


FILES = sorted((ROOT / "shardwise").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_library_imports_no_app_and_torch_only_when_used(path: Path) -> None:
    room = path.relative_to(ROOT / "shardwise").parts[0]
    for package, at_module_level in _imports(path):
        assert package not in APPS
        if package in ("torch", "transformers", "timm"):
            assert room in TORCH_ROOMS
            assert not at_module_level or room == TORCH_ALWAYS


APP_FILES = [
    path
    for app in ("service", "worker", "agent", "migrations")
    for path in (ROOT / app).rglob("*.py")
]
MAY_IMPORT = {
    "service": {"shardwise", "migrations", "service"},
    "worker": {"shardwise", "service", "worker"},
    "agent": {"shardwise", "agent"},
    "migrations": {"service"},
}


@pytest.mark.parametrize("path", APP_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_who_of_the_apps_imports_whom(path: Path) -> None:
    app = path.relative_to(ROOT).parts[0]
    for package, _ in _imports(path):
        if package in {*APPS, "shardwise", "migrations"}:
            assert package in MAY_IMPORT[app], package
        assert package not in ("torch", "transformers", "timm")


def test_there_are_files_to_check() -> None:
    assert len(FILES) > 50
    assert len(APP_FILES) > 60


def test_the_base_command_line_loads_no_app() -> None:
    code = (
        "import sys, click\n"
        "from shardwise.cli.main import cli\n"
        "try:\n"
        "    cli.main(['--help'], standalone_mode=False)\n"
        "finally:\n"
        "    apps = {'service', 'worker', 'agent', 'httpx', 'fastapi', 'celery', 'sqlalchemy'}\n"
        "    bad = apps & set(sys.modules)\n"
        "    assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "serve" in done.stdout


def test_a_command_without_its_extra_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['fastapi'] = sys.modules['sqlalchemy'] = None\n"
        "sys.argv = ['shardwise', 'keys', 'list']\n"
        "from shardwise.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'shardwise[service]'" in done.stderr


def test_advice_and_the_command_line_work_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import shardwise, shardwise.advise, shardwise.capture, shardwise.cli.main\n"
        "from shardwise.graph import read_graph\n"
        "from shardwise.hardware import load_hardware\n"
        "graph = read_graph(shardwise.capture.shipped_graph('vgg16'))\n"
        "found = shardwise.advise.frontier(graph, load_hardware('l4'), 1)\n"
        "assert found['points']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_capture_without_torch_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from shardwise.capture import capture\n"
        "from shardwise.errors import CaptureError\n"
        "try:\n"
        "    capture('zoo:mlp', batch=4)\n"
        "except CaptureError as error:\n"
        "    assert 'shardwise[torch]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('captured without torch')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
