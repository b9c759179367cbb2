"""What is checked in a command that is not run: the shell's syntax, and for `shardwise` that the
command and every option of it exist; for Python the syntax, and that names it takes from us exist.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess

import click

from harness.docs.fences import ROOT, Block
from shardwise.cli.main import cli

_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"}


def check(block: Block) -> None:
    """Raises AssertionError that names the place if something cannot be right."""
    if block.language == "python":
        _check_python(block)
        return
    done = subprocess.run(
        ["bash", "-n"], input=block.commands, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{block.where}: {done.stderr}"
    for line in block.commands.replace("\\\n", " ").splitlines():
        for words in shardwise_calls(line):
            problem = unknown_option(words)
            assert problem is None, f"{block.where}: {line.strip()}: {problem}"
        for script in re.findall(r"python ((?:benchmarks|deploy|examples)/\S*\.py)", line):
            assert (ROOT / script).exists(), f"{block.where}: there is no {script}"
        for target in re.findall(r"^make (\w+)", line):
            makefile = (ROOT / "Makefile").read_text("utf-8")
            assert f"\n{target}:" in makefile, f"{block.where}: make has no target {target}"


def shardwise_calls(line: str) -> list[list[str]]:
    """Returns the words after `shardwise` of every call of it in a line of shell."""
    if "shardwise" not in line:
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    calls = []
    for at, word in enumerate(words):
        if word == "shardwise" or word.endswith("/bin/shardwise"):
            end = next((i for i, w in enumerate(words) if i > at and w in _ENDS), len(words))
            calls.append(words[at + 1 : end])
    return calls


def unknown_option(words: list[str]) -> str | None:
    """Returns why `shardwise WORDS` is wrong: no such command, or no such option; else None."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = iter(words)
    for word in rest:
        if word == "--":
            return None
        if word.startswith("-") and len(word) > 1 and not re.match(r"-\d", word):
            name = word.partition("=")[0]
            known = {n for p in command.params for n in (*p.opts, *p.secondary_opts)}
            if name not in known | {"--help", "-h"}:
                return f"`{command.name}` has no option {name}"
        elif isinstance(command, click.Group):
            subcommand = command.get_command(context, word)
            if subcommand is None:
                return f"`{command.name}` has no command {word}"
            command = subcommand
    return None


def _check_python(block: Block) -> None:
    tree = ast.parse(block.text, block.where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def inline_commands(text: str) -> list[str]:
    """Returns calls of `shardwise` in a page's text: `` `shardwise frontier --plot F` ``."""
    bare = re.sub(r"^ *(`{3,})[^`\n]*\n.*?^ *\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?<!`)`(shardwise [a-z][^`\n]*)`(?!`)", bare)
