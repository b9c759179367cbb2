"""One rank of the check of local operators: every case on real process groups, against the whole.

The whole operator runs on every rank from the same seeds, and each compares its own part.
"""

from __future__ import annotations

import random
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from harness.execute.local_examples import MORE
from shardwise.execute.collectives import all_reduce
from shardwise.execute.exchange import Exchange
from shardwise.execute.local import local_operator
from shardwise.execute.local.random_numbers import DRAWN
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.layout import PARTIAL, REPLICATE
from shardwise.tdl.example import Example
from shardwise.tdl.registry import analyse, descriptions
from shardwise.tdl.verification import examples_of
from shardwise.torch_operators import call, overload
from tools.execute_operators_table import is_legal

UNDEFINED = ("empty", "sym_", "resize_")
"""Parts of names of operators whose values are left undefined, or that give no tensor."""


@dataclass(frozen=True)
class Case:
    """An example of an operator under one split."""

    op: Operator
    tensors: dict[str, Tensor]
    semantics: OperatorSemantics
    example: Example
    arrays: list[np.ndarray]
    split: tuple[int | None, ...]

    @property
    def label(self) -> str:
        names = [None if v is None else self.semantics.variables[v].name for v in self.split]
        return f"{self.op.kind} {dict(self.example.shapes)} {dict(self.example.attributes)} {names}"


def whole_calls(
    wanted: str = "",
) -> Iterator[tuple[Operator, dict, OperatorSemantics, Example, list]]:
    """Yields every described kind with an example that runs here and has defined values."""
    numbers = np.random.default_rng(0)
    examples = [(entry.kind, example) for entry in descriptions() for example in examples_of(entry)]
    for kind, example in [*examples, *MORE]:
        if kind in DRAWN or any(part in kind for part in UNDEFINED) or example.needs == "cuda":
            continue
        if wanted and wanted not in kind:
            continue
        sized = example.sized(numbers)
        arrays = sized.draw(np.random.default_rng(zlib.crc32(kind.encode())))
        case = graph_of(kind, sized, arrays)
        if case is not None:
            yield *case, sized, arrays


def graph_of(kind, example, arrays):
    """Returns the example as an operator with its semantics; None where it makes no tensor."""
    tensors: dict[str, Tensor] = {}
    inputs = []
    values = inputs_of(example, arrays)
    for argument, value in values.items():
        inputs.append(f"in.{argument}")
        tensors[inputs[-1]] = Tensor(
            inputs[-1], tuple(value.shape), str(value.dtype).removeprefix("torch."), "activation"
        )
    with torch.no_grad():
        results = call(overload(kind), values, example.attributes)
    outputs = []
    for place, value in enumerate(results):
        outputs.append(f"out.{place}")
        tensors[outputs[-1]] = Tensor(
            outputs[-1], tuple(value.shape), str(value.dtype).removeprefix("torch."), "activation"
        )
    if not outputs:
        return None
    attributes = {"tensor_arguments": list(example.shapes), **example.attributes}
    op = Operator("op", kind, tuple(inputs), tuple(outputs), attributes)
    return op, tensors, analyse(op, tensors)


def inputs_of(example: Example, arrays: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, example.dtype)
    inputs = {}
    for name, array in zip(example.shapes, arrays, strict=True):
        value = torch.from_numpy(np.array(array))
        inputs[name] = value.to(dtype) if value.is_floating_point() else value
    return inputs


def splits(semantics, op, tensors, sizes, seed) -> list[tuple[int | None, ...]]:
    """Every legal variable alone on the first axis; of more axes random legal pairs."""
    variables = range(len(semantics.variables))
    if len(sizes) == 1:
        every = [(v,) for v in variables]
    else:
        pairs = [(v, w) for v in [*variables, None] for w in [*variables, None]]
        pairs.remove((None, None))
        random.Random(f"{seed} {op.kind}").shuffle(pairs)
        every = pairs
    legal = [s for s in every if is_legal(semantics, op, tensors, s, sizes)]
    return legal if len(sizes) == 1 else legal[:4]


def check(case: Case, mesh: RankMesh, exchange: Exchange) -> tuple[str, str | None, str | None]:
    """Returns the form, its reason if it gathers, and what is wrong with it."""
    values = inputs_of(case.example, case.arrays)
    names = list(case.example.shapes)
    whole_in = [leaf(x, name) for name, x in values.items()]
    attributes = {k: v for k, v in case.op.attributes.items() if k != "tensor_arguments"}
    target = overload(case.op.kind)
    in_place = target._schema.name.endswith("_")
    given = [x.clone() if in_place else x for x in whole_in]
    by_name = dict(zip(names, given, strict=True))
    try:
        whole_out = call(target, by_name, attributes)
        differentiable = True
    except (RuntimeError, NotImplementedError):
        # Some overloads have no gradient at all: their results alone are compared.
        differentiable = False
        with torch.no_grad():
            whole_out = call(target, by_name, attributes)
    local = local_operator(case.op, case.tensors, case.semantics, case.split, mesh, exchange)
    in_layouts = [layout(case, a, False) for a in case.semantics.inputs]
    out_layouts = [layout(case, a, True) for a in case.semantics.outputs]
    local_in = []
    for (name, x), where in zip(values.items(), in_layouts, strict=True):
        local_in.append(leaf(x[mesh.local_slices(x.shape, where)].clone(), name))
    with torch.set_grad_enabled(differentiable):
        local_out = local(*local_in)
    if len(local_out) != len(whole_out):
        return local.form, local.fallback, f"{len(local_out)} outputs, not {len(whole_out)}"
    tolerance = max(case.example.tolerance, 1e-9) * 10
    if case.example.dtype != "float64":
        tolerance = max(tolerance, 2e-2 if case.example.dtype == "bfloat16" else 1e-4)
    own_books = "embedding_bag" in case.op.kind
    upstream, whole_upstream, chosen, whole_chosen = [], [], [], []
    numbers = torch.Generator().manual_seed(7)
    for o, (y, whole, where) in enumerate(zip(local_out, whole_out, out_layouts, strict=True)):
        if own_books and o:
            continue
        shown = y.detach()
        partial = axes_of(where, PARTIAL)
        if partial:
            shown = summed(shown, mesh, partial)
        slices = mesh.local_slices(whole.shape, where)
        wrong = differs(shown, whole.detach()[slices], tolerance)
        if wrong:
            return local.form, local.fallback, f"output {o}: {wrong}"
        if differentiable and whole.requires_grad:
            g = torch.randn(whole.shape, dtype=torch.float64, generator=numbers).to(whole.dtype)
            whole_upstream.append(g)
            whole_chosen.append(whole)
            if y.requires_grad:
                upstream.append(g[slices].clone())
                chosen.append(y)
            else:
                return local.form, local.fallback, f"output {o} has no gradient"
    wanted = [x for x in whole_in if x.requires_grad]
    if wanted and whole_chosen:
        try:
            right = torch.autograd.grad(whole_chosen, wanted, whole_upstream, allow_unused=True)
        except (RuntimeError, NotImplementedError):
            return local.form, local.fallback, None  # torch itself has no gradient
        mine = torch.autograd.grad(
            chosen, [x for x in local_in if x.requires_grad], upstream, allow_unused=True
        )
        at = iter(zip(right, mine, strict=True))
        for i, x in enumerate(local_in):
            if not x.requires_grad:
                continue
            whole, got = next(at)
            whole = torch.zeros_like(whole_in[i]) if whole is None else whole
            got = torch.zeros_like(x) if got is None else got
            partial = [
                a
                for a, v in enumerate(case.split)
                if v is not None and case.semantics.inputs[i].get(v) is None
            ]
            got = summed(got, mesh, partial) if partial else got
            wrong = differs(got, whole[mesh.local_slices(whole.shape, in_layouts[i])], tolerance)
            if wrong:
                return local.form, local.fallback, f"gradient of {names[i]}: {wrong}"
    for i, name in enumerate(names):
        if name.startswith("running"):
            wrong = differs(
                local_in[i].detach(),
                whole_in[i].detach()[mesh.local_slices(whole_in[i].shape, in_layouts[i])],
                tolerance,
            )
            if wrong:
                return local.form, local.fallback, f"{name} afterwards: {wrong}"
    return local.form, local.fallback, None


def layout(case: Case, accesses, output: bool) -> Layout:
    placements = []
    for v in case.split:
        access = accesses.get(v) if v is not None else None
        if access is not None:
            placements.append(access.dim)
        elif output and v is not None and case.semantics.variables[v].is_reduction:
            placements.append(PARTIAL)
        else:
            placements.append(REPLICATE)
    return tuple(placements)


def leaf(x: torch.Tensor, name: str) -> torch.Tensor:
    x = x.clone()
    floating = x.is_floating_point() or x.is_complex()
    return x.requires_grad_() if floating and not name.startswith("running") else x


def summed(x: torch.Tensor, mesh: RankMesh, axes: Sequence[int]) -> torch.Tensor:
    if x.dtype is torch.bool:
        return all_reduce(x.to(torch.int64), mesh, axes) > 0
    if x.is_complex():
        return torch.view_as_complex(all_reduce(torch.view_as_real(x), mesh, axes))
    return all_reduce(x, mesh, axes)


def differs(got: torch.Tensor, right: torch.Tensor, tolerance: float) -> str | None:
    if got.shape != right.shape:
        return f"shape {list(got.shape)}, not {list(right.shape)}"
    if got.dtype != right.dtype:
        return f"{got.dtype}, not {right.dtype}"
    if not torch.allclose(got, right, rtol=tolerance, atol=tolerance, equal_nan=True):
        return f"off by {float((got.to(torch.complex128) - right).abs().max()):.2g}"
    return None


def checked(rank: int, sizes: Sequence[int], wanted: str = "", seed: int = 0) -> dict:
    """Returns what this rank finds on a mesh of `sizes`: of kinds with `wanted` in their name."""
    names = ("x", "y", "z")[: len(sizes)]
    mesh = RankMesh(names, sizes, rank)
    for axes in [(a,) for a in range(len(sizes))]:
        mesh.group(axes)
    exchange = Exchange(mesh)
    forms: dict[str, int] = {"plain": 0, "own": 0, "gathered": 0}
    wrong = []
    for op, tensors, semantics, example, arrays in whole_calls(wanted):
        for split in splits(semantics, op, tensors, sizes, seed):
            case = Case(op, tensors, semantics, example, arrays, split)
            try:
                form, _, mistake = check(case, mesh, exchange)
            except Exception as error:  # every mistake of a rank is a finding to report
                form, mistake = "plain", f"{type(error).__name__}: {error}"
                if wanted:
                    traceback.print_exc()
            forms[form] += 1
            bad = torch.tensor([float(mistake is not None)])
            dist.all_reduce(bad)
            if mistake is not None:
                wrong.append(f"{case.label}: {mistake}")
    dist.barrier()
    return {"rank": rank, "forms": forms, "wrong": wrong}
