"""docs/reference/python.md is made of the source, without importing it."""

from __future__ import annotations

import ast
import importlib

import pytest

from tools.reference.python import MODULES, definition, page, public


@pytest.mark.parametrize("module", [m for m in MODULES if "execute" not in m])
def test_every_public_name_is_there_and_documented(module: str) -> None:
    imported = importlib.import_module(module)
    assert set(public(module)) >= {n for n in imported.__all__ if not n.startswith("_")}
    for name in public(module):
        node = definition(module, name).node
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            assert ast.get_docstring(node), f"{module}.{name}"


def test_what_needs_torch_is_read_without_it() -> None:
    assert {"parallelize", "Client", "AsyncClient", "BadInput"} <= set(public("shardwise"))
    shown = page()
    assert "example_inputs: Any," in shown and "### ParallelModule" in shown
    assert "await client." not in shown and "self" not in shown.partition("### Client")[2][:400]
