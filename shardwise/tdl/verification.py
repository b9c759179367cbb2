"""A description against the real operator, on random small inputs, whole and in shares.

`verify` draws an example's extents and inputs, asks the description for the splits, and lets
`claims` compare: halos, reductions, statistics. What a description does not promise (a variable
that it leaves out) is not checked; `missing` variables are not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput, UnknownOperator
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.tdl.claims import Arrays, Check, check_claims
from shardwise.tdl.describe import Description
from shardwise.tdl.example import Example
from shardwise.tdl.registry import analyse_strictly, description

Run = Callable[[Example, Arrays], Sequence[NDArray[Any]]]
"""An implementation: the outputs for an example's inputs."""

PARTS = (2, 3, 4)


@dataclass(frozen=True)
class Verified:
    """What was verified: one entry per example and trial."""

    kind: str
    example: Example
    semantics: OperatorSemantics
    checks: tuple[Check, ...]


def verify(
    kind: str,
    *examples: Example,
    run: Run | None = None,
    trials: int = 1,
    parts: Iterable[int] = PARTS,
    seed: int = 0,
) -> list[Verified]:
    """Checks the description of `kind` (`mylib::my_op`) against the real operator.

    Without `examples` those of the description are run, each `trials` times with new random
    inputs, its variables in each number of shares in `parts`. Without `run` the operator is that
    of `torch.ops`. Raises `Mismatch` at the first split that the operator does not allow,
    `NotCovered` for an example that the description does not cover, `UnknownOperator` where
    there is no description and `BadInput` where there is no example.
    """
    described = description(kind)
    if described is None:
        raise UnknownOperator(f"{kind} has no description")
    used = examples or examples_of(described)
    if not used:
        raise BadInput(
            f"{described.kind} has no example",
            expected="@tdl.op(…, examples=[tdl.Example(shapes)]), or an example to verify",
        )
    random = np.random.default_rng(seed)
    implementation = run or run_with_torch(described.kind)
    counts = tuple(parts)
    return [
        _verify_one(described.kind, example.sized(random), implementation, counts, random)
        for example in used
        for _ in range(trials)
    ]


def examples_of(described: Description) -> tuple[Example, ...]:
    """Returns the examples of a description, with those in `tdl.examples` if it is shipped."""
    from shardwise.tdl.examples.cases import EXAMPLES  # with its package, which fills it

    if not described.function.__module__.startswith("shardwise.tdl."):
        return described.examples
    return described.examples + EXAMPLES.get(described.kind, ())


def _verify_one(
    kind: str, example: Example, run: Run, parts: tuple[int, ...], random: np.random.Generator
) -> Verified:
    operator, tensors = graph_of(kind, example, run)
    semantics = analyse_strictly(operator, tensors)
    checks = check_claims(
        operator,
        tensors,
        lambda arrays: run(example, arrays),
        parts=parts,
        draw=example.draw,
        semantics=semantics,
        seed=int(random.integers(2**31)),
        tolerance=example.tolerance,
    )
    return Verified(kind, example, semantics, checks)


def run_with_torch(kind: str) -> Run:
    """Returns the implementation of `torch.ops`."""
    from shardwise.torch_operators import run_on_arrays

    def run(example: Example, arrays: Arrays) -> Sequence[NDArray[Any]]:
        device = "cuda" if example.needs == "cuda" else "cpu"
        return run_on_arrays(
            kind,
            list(example.shapes),
            example.attributes,
            arrays,
            dtype=example.dtype,
            device=device,
        )

    return run


def shapes_with_torch(kind: str) -> Run:
    """Returns zeros of the shapes that the operator of `torch.ops` gives, by its rule for shapes
    alone."""
    from shardwise.torch_operators import shapes_of_outputs

    def run(example: Example, arrays: Arrays) -> Sequence[NDArray[Any]]:
        shapes = shapes_of_outputs(
            kind, list(example.shapes), example.attributes, arrays, dtype=example.dtype
        )
        return [np.zeros(shape) for shape in shapes]

    return run


def graph_of(kind: str, example: Example, run: Run) -> tuple[Operator, dict[str, Tensor]]:
    """Returns the example as one operator of a graph.

    Output shapes are those of the real operator.
    """
    arrays = example.draw(np.random.default_rng(0))
    tensors: dict[str, Tensor] = {}
    for argument, array in zip(example.shapes, arrays, strict=True):
        name = f"in.{argument}"
        tensors[name] = Tensor(name, array.shape, array.dtype.name, "activation")
    inputs = tuple(tensors)
    outputs = []
    for position, array in enumerate(run(example, arrays)):
        outputs.append(f"out.{position}")
        tensors[outputs[-1]] = Tensor(outputs[-1], array.shape, array.dtype.name, "activation")
    attributes: Mapping[str, Any] = {
        "tensor_arguments": list(example.shapes),
        **example.attributes,
    }
    return Operator("op", kind, inputs, tuple(outputs), attributes), tensors
