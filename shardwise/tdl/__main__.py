"""`python -m shardwise.tdl`: coverage of core ATen, checks of descriptions.

Exit codes are those of the `shardwise` command: 0 done, 1 not found or wrong, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from shardwise.errors import BadInput, ShardwiseError
from shardwise.tdl import claims, registry
from shardwise.tdl.core_aten import TORCH
from shardwise.tdl.coverage import coverage as measure
from shardwise.tdl.describe import kind_of
from shardwise.tdl.example import Example, read_shape
from shardwise.tdl.verification import PARTS, Verified, examples_of, verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Descriptions of operators (docs/tdl.md)."""


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--list", "listed", is_flag=True, help="Name every kind.")
def coverage(as_json: bool, listed: bool) -> None:
    """How much of the core ATen list is described."""
    core = measure()
    known = registry.descriptions()
    if as_json:
        document = {
            "torch": TORCH,
            "core": core.total,
            "described": core.described,
            "split": list(core.split),
            "replicated": list(core.replicated),
            "missing": list(core.missing),
            "descriptions": len(known),
        }
        print(json.dumps(document))
        return
    print(
        f"core ATen (torch {TORCH}): {core.described} of {core.total} described, "
        f"{len(core.split)} with their splits, {len(core.replicated)} never split; "
        f"{len(known)} descriptions in all"
    )
    for kind in core.missing:
        print(f"missing: {kind}")
    for kind in core.replicated if listed else ():
        described = registry.description(kind)
        print(f"never split: {kind}: {described.replicated if described else ''}")
    for kind in core.split if listed else ():
        print(f"split: {kind}")


@cli.command("verify")
@click.argument("kinds", nargs=-1)
@click.option("--tensor", "tensors", multiple=True, help="x=4,n,8: letters are drawn at random.")
@click.option("--attribute", "attributes", multiple=True, help="dim=1, in JSON.")
@click.option("--trials", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def verify_command(
    kinds: Sequence[str],
    tensors: Sequence[str],
    attributes: Sequence[str],
    trials: int,
    seed: int,
    as_json: bool,
) -> None:
    """Run real operators whole and in shares; without KINDS all that are described."""
    given = [_example(tensors, attributes)] if tensors else []
    if given and len(kinds) != 1:
        raise BadInput(
            "--tensor needs one operator",
            field="KINDS",
            expected="one kind of operator with --tensor",
        )
    results: list[dict[str, Any]] = []
    wrong = 0
    for kind in kinds or [d.kind for d in registry.descriptions() if examples_of(d)]:
        try:
            verified = _runnable(kind, given, trials, seed)
        except claims.Mismatch as error:
            wrong += 1
            results.append({"kind": kind_of(kind), "error": str(error)})
        else:
            results.append({"kind": kind_of(kind), "checks": _summary(verified)})
    if as_json:
        print(json.dumps({"operators": results, "wrong": wrong}))
    else:
        for result in results:
            print(f"{result['kind']}: {result.get('error') or result['checks'] or 'no splits'}")
    if wrong:
        sys.exit(1)


def _runnable(kind: str, given: Sequence[Example], trials: int, seed: int) -> list[Verified]:
    """Verifies a kind with all examples, or those that can run here."""
    description = registry.description(kind)
    examples = list(given or (examples_of(description) if description else ()))
    if any(e.needs for e in examples):
        from shardwise.torch_operators import has_cuda

        if not has_cuda():
            examples = [e for e in examples if not e.needs]
            if not examples:
                return []
    return verify(kind, *examples, trials=trials, seed=seed, parts=PARTS)


def _summary(verified: Sequence[Verified]) -> str:
    """Returns `batch in 2, 3, 4 (output); k in 2 (reduction)`."""
    parts: dict[tuple[str, str], set[int]] = {}
    for result in verified:
        for check in result.checks:
            parts.setdefault((check.variable, check.method), set()).add(check.parts)
    return "; ".join(
        f"{variable} in {', '.join(map(str, sorted(counts)))} ({method})"
        for (variable, method), counts in parts.items()
    )


def _example(tensors: Sequence[str], attributes: Sequence[str]) -> Example:
    values = {}
    for text in attributes:
        name, separator, value = text.partition("=")
        try:
            if not separator:
                raise ValueError
            values[name] = json.loads(value)
        except ValueError:
            raise BadInput(f"{text!r} is not an attribute", expected="name=value in JSON") from None
    return Example(dict(map(read_shape, tensors)), values)


def main() -> None:
    """Runs a command; an error is one line on standard error."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except ShardwiseError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 2)


def _fail(text: str, code: int) -> None:
    print(f"shardwise.tdl: error: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
