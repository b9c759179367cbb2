"""Named parts of a block that run again in backward while the rest is kept.

Megatron recomputes modules inside a layer by name (`--recompute-modules`). Here a part is the
groups of these, found in the graph by what they compute. A block's *children* are the modules right
below it: attention, feed-forward, mixture, norms.

    core_attn       products of two activations, and what lies between them
    layernorm       children without a product that read a parameter
    mla_up_proj     of attention all before its core but the first products: with latent attention
                    the projections up from the latent, and rotary positions
    mlp             feed-forward children without experts
    moe             children with experts, whole
    moe_act         what lies between two products with experts
    shared_experts  what is called so
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.documents.parallelism import Part
from shardwise.sharding.coarsen import Coarsened, Group, Member
from shardwise.sharding.recipes import WEIGHTED
from shardwise.sharding.routing import EXPERT_PRODUCT
from shardwise.sharding.segments import Blocks

_RECURRENT = ("scan", "conv")
_SHARED = "shared_expert"


def groups_of(parts: Iterable[Part], coarsened: Coarsened) -> NDArray[np.bool_]:
    """Returns which groups are in one of the parts of any block, shape (groups,)."""
    wanted, children = frozenset(parts), _children(coarsened)
    found = np.zeros(len(coarsened.groups), dtype=bool)
    for child in children:
        for part in wanted:
            found[list(child.groups_of(part))] = True
    return found


@dataclass(frozen=True)
class _Child:
    """The groups of one module right below a block, in the graph's order."""

    coarsened: Coarsened
    groups: Sequence[Group]

    def groups_of(self, part: Part) -> Iterable[int]:
        """Returns the groups of a part in this module."""
        every = [group.index for group in self.groups]
        if part == "layernorm":
            return every if not self._products and self._reads_parameter else ()
        if part == "core_attn":
            return self._core
        if part == "mla_up_proj":
            first = self._core[0] if self._core else 0
            return [i for i in every if i < first and i not in self._first_products]
        if part == "moe_act":
            return [i for i in every if self._is_between_experts(i)]
        if part == "shared_experts":
            return [g.index for g in self.groups if _SHARED in g.members[0].operator.scope]
        if part == "moe":
            return every if self._experts else ()
        return every if self._is_feed_forward else ()

    @property
    def _products(self) -> list[int]:
        """The groups with products by weights."""
        return [g.index for g in self.groups if any(m.operator.kind in WEIGHTED for m in g.members)]

    @property
    def _experts(self) -> list[int]:
        return [g.index for g in self.groups if any(_is_expert(m) for m in g.members)]

    @property
    def _core(self) -> list[int]:
        """The groups from the first product of two activations to the last one."""
        by_weights = set(self._products)
        heavy = [
            g.index
            for g in self.groups
            if g.index not in by_weights
            and any(m.semantics.category == "heavy" for m in g.members)
            and not any(word in m.operator.kind for m in g.members for word in _RECURRENT)
        ]
        return [g.index for g in self.groups if heavy and heavy[0] <= g.index <= heavy[-1]]

    @property
    def _is_feed_forward(self) -> bool:
        kinds = [m.operator.kind for g in self.groups for m in g.members]
        recurrent = any(word in kind for kind in kinds for word in _RECURRENT)
        return bool(self._products) and not (self._experts or self._core or recurrent)

    @property
    def _reads_parameter(self) -> bool:
        tensors = self.coarsened.graph.tensors
        return any(
            tensors[name].role == "parameter"
            for group in self.groups
            for member in group.members
            for name in member.operator.inputs
        )

    @property
    def _first_products(self) -> list[int]:
        """The products that read what comes from outside of the module."""
        own = {g.index for g in self.groups}
        return [i for i in self._products if not self._before(i) & own]

    def _before(self, group: int) -> set[int]:
        """The groups that a group reads."""
        graph, group_of = self.coarsened.graph, self.coarsened.group_of
        made = (
            graph.producer.get(name)
            for member in self.coarsened.groups[group].members
            for name in member.operator.inputs
        )
        return {group_of[op.name] for op in made if op is not None and op.name in group_of} - {
            group
        }

    def _is_between_experts(self, group: int) -> bool:
        experts = set(self._experts)
        reads = bool(self._before(group) & experts)
        read = any(group in self._before(later) for later in experts if later > group)
        return group not in experts and reads and read


def _is_expert(member: Member) -> bool:
    return member.operator.kind == EXPERT_PRODUCT


def _children(coarsened: Coarsened) -> list[_Child]:
    """Returns the modules right below the blocks, of every block in the graph's order."""
    blocks = Blocks.of_coarsened(coarsened)
    found: dict[tuple[str, str], list[Group]] = {}
    for group in coarsened.groups:
        block = blocks.of_group(group.members)
        name = None if block is None else _child(block, group.members)
        if block is not None and name is not None:
            found.setdefault((block, name), []).append(group)
    return [_Child(coarsened, groups) for groups in found.values()]


def _child(block: str, members: Sequence[Member]) -> str | None:
    """Returns the module right below a block that a group belongs to: that of a heavy operator,
    else of the last one that is in any and computes something."""
    heavy = [m for m in members if m.semantics.category == "heavy"]
    computing = [m for m in members if m.semantics.category != "view"]
    for member in (*heavy, *computing[::-1], *members):
        scope = member.operator.scope
        if scope.startswith(f"{block}."):
            return scope[len(block) + 1 :].split(".")[0]
    return None
