"""The local operator of a share: its form by kind, resolved once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch

from shardwise.execute.exchange import Exchange
from shardwise.execute.local.calling import Run
from shardwise.execute.local.gathered import gathered
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import FORMS
from shardwise.execute.local.rounded import rounded
from shardwise.execute.local.share import NotLocal, Share
from shardwise.execute.local.waiting import Deferral
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.recipes import Recipe

CLASSES = (
    *("attention", "convolution", "experts", "factories", "lookup", "losses", "normalisation"),
    *("plain", "pooling", "random_numbers", "recurrent", "reductions", "resampling", "scatter"),
    *("softmax", "views"),
)
"""The modules that register forms."""


COMMUNICATES = "ranks wait for each other in it"
DEPENDS_ON_DATA = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


@dataclass(frozen=True)
class LocalOperator:
    """`run` maps local inputs to local outputs, in the order of the operator.

    `form` says how: by the plain overload, by its own form, or gathered (`fallback` then
    says why). `communicates`: ranks wait for each other in it. `untraced` says why torch.compile
    leaves it out, if it does. `views`: torch may return a view of an input. `deferred` are the
    inputs whose gradients are left to a later pass (`deferred.py`).
    """

    run: Run
    form: Literal["plain", "own", "gathered"]
    communicates: bool
    fallback: str | None = None
    untraced: str | None = None
    views: bool = False
    deferred: tuple[int, ...] = ()

    def __call__(self, *inputs: Any) -> list[Any]:
        return self.run(*inputs)


def local_operator(
    op: Operator,
    tensors: Mapping[str, Tensor],
    semantics: OperatorSemantics,
    split: Sequence[int | None],
    mesh: RankMesh,
    exchange: Exchange,
    deferral: Deferral | None = None,
    recipe: Recipe | None = None,
) -> LocalOperator:
    """Returns the operator on this rank's share of it; see docs/reference/execute-operators.md.

    `tensors` have global shapes. With a `deferral` gradients of weights are left to it, where the
    operator allows. A linear layer may have a `recipe` that its products are rounded by. Raises
    BadInput if torch has no such operator.
    """
    _load()
    if recipe is not None:
        plain_op = local_operator(op, tensors, semantics, split, mesh, exchange)
        share = Share(op, tensors, semantics, split, mesh, exchange)
        run = rounded(share, plain_op.run, recipe)
        return LocalOperator(run, "own", True, untraced=COMMUNICATES)
    share = Share(op, tensors, semantics, split, mesh, exchange, deferral)
    chosen = FORMS.get(op.kind)
    try:
        run = (chosen or plain)(share)
    except NotLocal as refusal:
        share = Share(op, tensors, semantics, split, mesh, exchange)
        return LocalOperator(gathered(share), "gathered", True, str(refusal), COMMUNICATES)
    return LocalOperator(
        run,
        "plain" if share.is_plain else "own",
        share.communicates,
        untraced=_untraced(share),
        views=any(r.alias_info is not None for r in share.target._schema.returns),
        deferred=share.deferred,
    )


def _untraced(share: Share) -> str | None:
    """Returns why torch.compile leaves out the operator, which must not depend on the rank."""
    if share.communicates:
        return COMMUNICATES
    if share.draws:
        return "it draws random numbers from a seed of its own"
    if not share.op.kind.startswith("aten."):
        return "it is no operator of ATen"
    if DEPENDS_ON_DATA & set(share.target.tags):
        return "its shapes depend on data"
    return None


@cache
def _load() -> None:
    for name in CLASSES:
        import_module(f"shardwise.execute.local.{name}")
