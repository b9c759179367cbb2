"""docs/reference/python.md: what programs may import, from signatures and docstrings.

The source is read and not imported, so that neither torch nor httpx is needed and the page is the
same with every release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = (
    "shardwise",
    "shardwise.answers",
    "shardwise.graph",
    "shardwise.capture",
    "shardwise.hardware",
    "shardwise.client",
    "shardwise.execute.checkpoint",
    "shardwise.tdl",
)
"""Modules whose `__all__`, and lazy names (under TYPE_CHECKING), are public."""

ALSO = {"shardwise": ("shardwise.execute.parallel", "ParallelModule")}
"""Results of public functions that are not imported directly."""

WIDTH = 92
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Located:
    """A definition with the module that contains it."""

    module: str
    node: Definition


@dataclass(frozen=True)
class LocatedClass:
    """A class with the module that contains it."""

    module: str
    node: ast.ClassDef


@cache
def tree(module: str) -> ast.Module:
    """Returns a module's syntax tree."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def public(module: str) -> list[str]:
    """Returns the names that a module offers, sorted."""
    names: set[str] = set()
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            names |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            names |= {alias.name for inner in node.body for alias in _imported(inner)}
    return sorted(name for name in names if not name.startswith("_"))


def definition(module: str, name: str) -> Located:
    """Returns where a name is defined, through imports; raises `KeyError` if it is not."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("shardwise"):
                    return definition(node.module, alias.name)
    # After its overloads comes the function that has the docstring.
    for statement in reversed(tree(module).body):
        if isinstance(statement, Definition) and name in _names(statement):
            return Located(module, statement)
    raise KeyError(f"{module}.{name}")


def _imported(node: ast.stmt) -> list[ast.alias]:
    return node.names if isinstance(node, ast.ImportFrom) else []


def _names(node: Definition) -> list[str]:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else [node.name]


def page() -> str:
    """Returns the whole page."""
    parts = [
        "# Python",
        "",
        "Made by `make reference` from signatures and docstrings.",
        "",
    ]
    shown: set[Located] = set()
    for module in MODULES:
        text = (ast.get_docstring(tree(module)) or "").partition("\n\n")[0]
        parts += [f"## {module}", "", _text(text), ""]
        located = {name: definition(module, name) for name in public(module)}
        if module in ALSO:
            located[ALSO[module][1]] = definition(*ALSO[module])
        constants = []
        for name, one in located.items():
            if isinstance(one.node, ast.Assign | ast.AnnAssign):
                constants.append(f"`{name}`")
            elif one in shown:
                parts += [f"### {module}.{name}", "", f"The same as [{name}](#{name.lower()}).", ""]
            else:
                shown.add(one)
                parts += [f"### {name}", ""]
                if isinstance(one.node, ast.ClassDef):
                    parts += _class_part(name, LocatedClass(one.module, one.node))
                else:
                    parts += _documented(one.node)
        if constants:
            parts += [f"Constants: {', '.join(constants)}.", ""]
    return "\n".join(parts)


def _class_part(name: str, located: LocatedClass) -> Iterator[str]:
    """Yields a class's part of the page, below its heading."""
    node = located.node
    bases = [ast.unparse(base) for base in node.bases]
    methods, fields = _methods(located), _fields(located)
    init = methods.pop("__init__", None)
    if init is not None:
        yield from (_fenced(_signature(init, name, bound=True)), "")
    elif fields:
        shown = [ast.unparse(one) for one in fields.values()]
        yield from (_fenced(_wrapped(f"{name}(", shown, ")")), "")
    elif bases:
        yield from (_fenced(f"class {name}({', '.join(bases)})"), "")
    yield from (_text(ast.get_docstring(node) or ""), "")
    for method in methods.values():
        yield from _documented(method, bound=True)


def _bases(located: LocatedClass) -> Iterator[LocatedClass]:
    """Yields the class and our classes that it extends, the furthest first."""
    for base in located.node.bases:
        try:
            inner = definition(located.module, ast.unparse(base))
        except KeyError:
            continue
        if isinstance(inner.node, ast.ClassDef):
            yield from _bases(LocatedClass(inner.module, inner.node))
    yield located


def _methods(located: LocatedClass) -> dict[str, Function]:
    """Returns public methods with a docstring, and the constructor."""
    methods = {}
    for one in _bases(located):
        for node in one.node.body:
            if not isinstance(node, Function):
                continue
            shown = not node.name.startswith("_") and ast.get_docstring(node)
            if shown or node.name == "__init__":
                methods[node.name] = node
    return methods


def _fields(located: LocatedClass) -> dict[str, ast.AnnAssign]:
    """Returns the fields of a dataclass, its bases' first."""
    fields = {}
    for one in _bases(located):
        if any("dataclass" in ast.unparse(mark) for mark in one.node.decorator_list):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign):
                    fields[ast.unparse(node.target)] = node
    return fields


def _documented(node: Function, *, bound: bool = False) -> Iterator[str]:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    if marks & {"property", "cached_property"}:
        shown = f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    else:
        shown = _signature(node, node.name, bound=bound and "staticmethod" not in marks)
    yield from (_fenced(shown), "", _text(ast.get_docstring(node) or ""), "")


def _signature(node: Function, name: str, *, bound: bool = False) -> str:
    """Returns `name(arguments) -> result`, with one argument per line if it is long."""
    parts = [ast.unparse(arg) for arg in _arguments(node.args)]
    if bound:
        parts = parts[1:]
    word = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    shown = name != "__init__" and node.name != "__init__" and node.returns is not None
    result = f" -> {ast.unparse(node.returns)}" if shown and node.returns else ""
    return _wrapped(f"{word}{name}(", parts, f"){result}")


def _arguments(given: ast.arguments) -> Iterator[ast.AST]:
    """Yields every argument as written, with `/` and `*` in their places."""
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    for i, (arg, default) in enumerate(zip(places, defaults, strict=True)):
        yield _with(arg, default)
        if given.posonlyargs and i + 1 == len(given.posonlyargs):
            yield ast.Name("/")
    if given.vararg is not None:
        yield ast.Name(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        yield ast.Name("*")
    for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _with(arg, default)
    if given.kwarg is not None:
        yield ast.Name(f"**{ast.unparse(given.kwarg)}")


def _with(arg: ast.arg, default: ast.expr | None) -> ast.AST:
    shown = ast.unparse(arg)
    if default is None:
        return ast.Name(shown)
    space = " " if arg.annotation is not None else ""
    return ast.Name(f"{shown}{space}={space}{ast.unparse(default)}")


def _wrapped(head: str, parts: list[str], tail: str) -> str:
    line = f"{head}{', '.join(parts)}{tail}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{head}\n{inner}{tail}"


def _fenced(code: str) -> str:
    # `py`, since blocks of `python` in the documentation are programs that run.
    return f"```py\n{code}\n```"


def _text(docstring: str) -> str:
    """Returns a docstring as Markdown: pages that it names are links."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](../\1.md)", docstring)
