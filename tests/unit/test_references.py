"""Every file, module and section that a comment, a docstring or a page names is there."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

from harness.cases import every

ROOT = Path(__file__).parents[2]
CODE = (
    "shardwise",
    "service",
    "worker",
    "agent",
    "migrations",
    "tools",
    "solver",
    "deploy",
    "harness",
)
TEXTS = ("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", ".importlinter")
REFERENCE = ("agent-settings", "cli", "execute-operators", "http", "metrics", "operators", "paper",
             "published-steps", "python", "refusals", "settings")  # fmt: skip
BUILT = {f"docs/reference/{name}.md" for name in REFERENCE}
"""What `make reference` writes; tests/unit/service/test_reference_pages.py holds the list."""

ELSEWHERE = {
    "adaptdl_sched/policy/pollux.py",
    "deepspeed/runtime/config_utils.py",
    "megatron/core/parallel_state.py",
    "megatron/core/transformer/moe/README.md",
    "megatron/training/arguments.py",
    "torchtitan/config/configs.py",
    "torchtitan/config/job_config.py",
    "torchtitan/config_manager.py",
    "benchmarks/llama3_h100_202412_torchtitan.md",
    "create_configs.py",
    "doc/PERFORMANCE.md",
    "docs/performance.md",
    "pretrain_gpt.py",
    "run_train.py",
    "scheduler/utils.py",
    "site/content/en/docs/tasks/run/jobs.md",
    "sitecustomize.py",
    "sky/admin_policy.py",
    "src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py",
    "src/megatron/bridge/recipes/gpt/h100/gpt3_175b.py",
    "src/megatron/bridge/recipes/llama/h100/llama2.py",
    "src/megatron/bridge/recipes/llama/h100/llama3.py",
    "src/megatron/bridge/recipes/qwen/h100/qwen3.py",
    "src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py",
    "template/base_config.py",
    "torchtitan/models/llama3/config_registry.py",
    "torchtitan/models/qwen3/config_registry.py",
}
"""Files of other projects, named as sources."""

EXAMPLES = {
    "mymodel.py",
    "file.py",
    "m.py",
    "mylib/__init__.py",
    "mylib/shardwise_operators.py",
    "net.py",
    "parallelize.py",
    "receiver.py",
    "train.py",
}
"""Files that a reader would write."""

NO_MODULES = {
    "shardwise.sink_attention",
    "shardwise.sink_attention.default",
    "shardwise.chunk_scan.default",
    "shardwise.gated_delta_rule.default",
    "shardwise.commands",
    "shardwise.expert_linear.default",
    "shardwise.operators",
    "shardwise.run",
    "shardwise.selective_scan.default",
}
"""Groups of entry points, operators, an agent's entry point."""

LINKED = re.compile(r"\[[^\]]*\]\(https?://[^)]*\)")
FILE = re.compile(
    r"(?<![\w/.:$}{*<>~\\-])((?:\.\./)*[\w.-]+(?:/[\w.-]+)*\.(?:py|pyi|rs|md))(?![\w/*])"
)
MODULE = re.compile(
    r"`(?:python (?:-P )?-m )?((?:shardwise|service|worker|agent|tools)(?:\.\w+)+)`"
)
SECTION = re.compile(r'docs/([\w-]+)\.md, "([^"]+)"')


@cache
def tracked() -> tuple[str, ...]:
    """Returns every file of the repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(name for name in done.stdout.splitlines() if (ROOT / name).is_file())


@cache
def endings() -> frozenset[str]:
    """Returns every path by which a file can be named: whole, or from any folder on."""
    names = {*tracked(), *BUILT}
    parts = [name.split("/") for name in names]
    return frozenset("/".join(of[i:]) for of in parts for i in range(len(of)))


FILES = sorted(
    name
    for name in tracked()
    if name.startswith(tuple(f"{folder}/" for folder in CODE) + TEXTS)
    and (Path(name).suffix in (".py", ".pyi", ".rs", ".md", ".toml", ".yml") or "." not in name[1:])
)


def test_what_is_named_is_there() -> None:
    every(FILES, check)


def check(name: str) -> None:
    # What the text of a link to another site names is there.
    text = LINKED.sub("", (ROOT / name).read_text("utf-8"))
    for match in FILE.finditer(text):
        named = match[1].replace("../", "")
        known = named in endings() or named in ELSEWHERE or named in EXAMPLES
        assert known, f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[1]}"
    for match in MODULE.finditer(text):
        assert match[1] in NO_MODULES or is_there(match[1]), f"{name}: {match[1]}"
    for page, section in SECTION.findall(text):
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / f"{page}.md").read_text(), re.M)
        assert section in headings, f"{name}: {page}.md, {section}"


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name that its module defines or offers."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        files = (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi"))
        if file := next((file for file in files if file.is_file()), None):
            return count == len(parts) or parts[count] in names_of(file)
    return False


@cache
def names_of(file: Path) -> frozenset[str]:
    """Returns the names that a module defines or imports, late ones included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 700
    assert not is_there("shardwise.nothing") and is_there("shardwise.answers.plan")
