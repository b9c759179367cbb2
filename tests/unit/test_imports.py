"""What is imported when: torch by what needs it, apps by their commands; rooms: .importlinter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from harness.cases import every

ROOT = Path(__file__).parents[2]
TORCH = {"torch", "transformers", "timm", "diffusers"}
TORCH_ROOMS = {"capture", "execute", "measure", "policy", "torch_operators.py"}
TORCH_ALWAYS = "execute"
"""The room whose modules import torch at once; the others import it, if they do, when asked to."""

PACKAGES = ("shardwise", "service", "worker", "agent", "migrations")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def imports_of(path: Path) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    """Returns for each import its module, the names taken from it, and if it is at module level."""
    tree = ast.parse(path.read_text("utf-8"))
    top = set(map(id, tree.body))
    found: list[tuple[str, tuple[str, ...], bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += ((alias.name, (), id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = tuple(alias.name for alias in node.names)
            found.append((node.module, names, id(node) in top))
    return tuple(found)


def test_torch_is_imported_by_what_needs_it_alone() -> None:
    every(FILES, check_torch, lambda path: str(path.relative_to(ROOT)))


def check_torch(path: Path) -> None:
    package, room, *_ = (*path.relative_to(ROOT).parts, "")
    for module, _names, at_module_level in imports_of(path):
        if module.partition(".")[0] in TORCH:
            assert package == "shardwise" and room in TORCH_ROOMS
            assert not at_module_level or room == TORCH_ALWAYS


def test_rooms_take_the_solver_and_the_version_from_the_top_and_nothing_else() -> None:
    """The contracts cannot see it: .importlinter says why."""
    rooms = {path.stem for path in (ROOT / "shardwise").iterdir()}
    for path in (ROOT / "shardwise").glob("*/**/*.py"):
        for module, names, _ in imports_of(path):
            if module == "shardwise":
                assert set(names) - rooms <= {"_core", "__version__"}, path


def test_there_are_files_to_check() -> None:
    assert len(FILES) > 500


def test_the_list_of_commands_loads_no_app_and_no_command() -> None:
    code = (
        "import sys, click\n"
        "from shardwise.cli.main import cli\n"
        "try:\n"
        "    cli.main(['--help'], standalone_mode=False)\n"
        "finally:\n"
        "    heavy = {'service', 'worker', 'agent', 'numpy', 'msgspec', 'rich'}\n"
        "    bad = heavy & set(sys.modules)\n"
        "    assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "serve" in done.stdout


def pinned(target: str) -> set[str]:
    """Returns the distributions that an image's target installs."""
    text = (ROOT / "deploy" / "requirements" / f"{target}.txt").read_text()
    return set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("package", "target"), [("worker", "worker"), ("agent", "agent-without-torch")]
)
def test_an_app_is_imported_with_what_its_image_has(package: str, target: str) -> None:
    has = pinned(target)
    others = (pinned("service") | pinned("agent") | pinned("docs")) - has
    absent = {
        module
        for module, owners in packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} <= others
    }
    assert {"starlette", "torch"} <= absent
    modules = [f"{package}.{path.stem}" for path in (ROOT / package).glob("[!_]*.py")]
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(absent)}))\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_administration_loads_no_web_framework() -> None:
    code = (
        "import sys\n"
        "import service.host.commands, service.host.tenant_commands\n"
        "bad = {'fastapi', 'starlette', 'uvicorn'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_service_starts_without_the_protocol_of_tools() -> None:
    """Its packages take a second, which a service that is started again would be away longer."""
    code = "import sys\nimport service.host.serve\nassert 'mcp' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("absent", "arguments"), [("sqlalchemy", ["keys", "list"]), ("fastapi", ["serve"])]
)
def test_a_command_without_its_extra_says_what_to_install(
    absent: str, arguments: list[str]
) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{absent!r}] = None\n"
        f"sys.argv = ['shardwise', *{arguments}]\n"
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
        "import shardwise, shardwise.answers, shardwise.capture, shardwise.cli.main\n"
        "from shardwise.graph import read_graph\n"
        "from shardwise.hardware import load_hardware\n"
        "graph = read_graph(shardwise.capture.shipped_graph('vgg16'))\n"
        "found = shardwise.answers.frontier(graph, load_hardware('l4'), 1)\n"
        "assert found.points\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(("source", "extra"), [("zoo:mlp", "torch"), ("llama3-8b", "models")])
def test_capture_without_torch_says_what_to_install(source: str, extra: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from shardwise.capture import capture\n"
        "from shardwise.errors import CaptureError\n"
        "try:\n"
        f"    capture({source!r}, batch=4)\n"
        "except CaptureError as error:\n"
        f"    assert 'shardwise[{extra}]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('captured without torch')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("transformers", "models", "shardwise.capture.capture('gpt2', batch=1, seq=8)"),
        ("timm", "models", "shardwise.capture.capture('timm:resnet18', batch=1)"),
        ("diffusers", "models", "shardwise.capture.capture('sdxl-unet', batch=1)"),
        (
            "matplotlib",
            "plot",
            "__import__('shardwise.pictures.figure').pictures.figure.Picture('', (1, 1))",
        ),
    ],
)
def test_what_is_not_in_the_base_install_names_its_extra(
    package: str, extra: str, call: str
) -> None:
    """Here the package is hidden; the error is one line."""
    code = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = (\n"
        f"    lambda name, *rest: None if name == {package!r} else find(name, *rest)\n"
        ")\n"
        "import shardwise.capture, shardwise.pictures.figure\n"
        "from shardwise.errors import ShardwiseError\n"
        "try:\n"
        f"    {call}\n"
        "except ShardwiseError as error:\n"
        f"    assert 'shardwise[{extra}]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('it ran')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
