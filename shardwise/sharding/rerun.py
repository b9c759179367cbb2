"""What of a segment runs again in backward: up to the last tensor that backward needs.

torch's checkpoint stops a segment's second run when it has made everything that the first run would
have saved (`torch.utils.checkpoint`, early stop). Operators after the last one that saves anything
made in the segment do not run again; if that one is a product, which saves its factors before it
computes, it does not compute again either: the down projection of a transformer's layer.

A group may begin with light operators of the block before: the residual addition that ends a layer
is in the group of the next layer's normalisation. These do not run again with the next layer's
segment; what they have made enters it.

All this follows from the graph, as if all of a segment ran again. Where some of its groups keep
what they have made, a run may end earlier still; it is taken to end here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.sharding.coarsen import Coarsened, Member
from shardwise.sharding.pattern import GroupPattern, Patterns
from shardwise.sharding.recipes import WEIGHTED
from shardwise.sharding.segments import Blocks

MATRIX_PRODUCTS = frozenset(
    {
        "aten.linear.default",
        "aten.mm.default",
        "aten.bmm.default",
        "aten.matmul.default",
        "aten.addmm.default",
        "aten.baddbmm.default",
    }
)
"""Operators that save nothing but their factors, and those before they compute."""


@dataclass(frozen=True)
class Rerun:
    """Names of operators that do not compute again; of these `reads` still read their inputs.

    With `discards` what a group makes is not kept for its readers' backward either, whether they
    run again or not (`discarded`).
    """

    skipped: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    discards: bool = False

    def discarded(self, pattern: GroupPattern) -> bool:
        """Returns whether readers get what a group that runs again has made from that run: as
        Megatron's checkpoints without output, of all but attention's core."""
        return self.discards and not any(
            m.semantics.category == "heavy" and m.operator.kind not in WEIGHTED
            for m in pattern.members
        )

    def computes(self, member: Member) -> bool:
        """Returns whether an operator computes again where its group runs again."""
        return member.operator.name not in self.skipped

    def takes_part(self, member: Member) -> bool:
        """Returns whether an operator reads its inputs again, computing or not."""
        return self.computes(member) or member.operator.name in self.reads

    def reads_again(self, pattern: GroupPattern, tensor: str) -> bool:
        """Returns whether a group that runs again reads a tensor for it."""
        return any(self.takes_part(m) and tensor in m.operator.inputs for m in pattern.members)

    def makes_again(self, pattern: GroupPattern, tensor: str) -> bool:
        """Returns whether a group that runs again makes one of its tensors for it."""
        return any(self.computes(m) and tensor in m.operator.outputs for m in pattern.members)

    def kept(self, pattern: GroupPattern, patterns: Patterns) -> frozenset[str]:
        """Returns the storages made by a group that it keeps although it runs again: what was made
        by members that do not, and is read by others or by backward."""
        stay = [m for m in pattern.members if not self.computes(m)]
        made = {name for m in stay for name in m.operator.outputs}
        read = {n for m in pattern.members if self.takes_part(m) for n in m.operator.inputs}
        saved = {n for m in stay if patterns.has_backward(m) for n in patterns.saved(m)}
        return frozenset(patterns.storage_of(name) for name in made & (read | saved))


def rerun_of(
    coarsened: Coarsened, patterns: Patterns, segments: Sequence[int], *, early_stop: bool = True
) -> Rerun:
    """Returns what does not run again of each segment.

    `segments` gives each group's. Without `early_stop` a segment runs to its end, and what it has
    made again serves all that read it, as Megatron-LM has it.
    """
    blocks = Blocks.of_coarsened(coarsened)
    members: dict[int, dict[str, Member]] = defaultdict(dict)
    before: set[str] = set()
    for group in coarsened.groups:
        inside = members[segments[group.index]]
        for member in group.members:
            inside[member.operator.name] = member
        before |= _of_the_block_before(blocks, group.members, patterns)
    order = {op.name: number for number, op in enumerate(coarsened.graph.operators)}
    skipped, reads = set(before), set[str]()
    for inside in members.values() if early_stop else ():
        names = [name for name in sorted(inside, key=order.__getitem__) if name not in before]
        made = {patterns.storage_of(o) for n in names for o in inside[n].operator.outputs}
        savers = [name for name in names if _saves(patterns, inside[name], made)]
        if not savers:
            continue
        skipped.update(names[names.index(savers[-1]) + 1 :])
        if inside[savers[-1]].operator.kind in MATRIX_PRODUCTS:
            skipped.add(savers[-1])
            reads.add(savers[-1])
    return Rerun(frozenset(skipped), frozenset(reads), discards=not early_stop)


def _of_the_block_before(
    blocks: Blocks, members: Sequence[Member], patterns: Patterns
) -> frozenset[str]:
    """Returns a group's first members up to its own block, if they save nothing for backward."""
    own = blocks.of_group(members)
    leading: set[str] = set()
    for member in members:
        if own is None or blocks.of(member.operator) == own or _has_saved(patterns, member):
            break
        leading.add(member.operator.name)
    return frozenset(leading)


def _has_saved(patterns: Patterns, member: Member) -> bool:
    return patterns.has_backward(member) and bool(patterns.described(member))


def _saves(patterns: Patterns, member: Member, made: set[str]) -> bool:
    """Returns whether backward of an operator needs something that was made in the segment."""
    saved = patterns.described(member) if patterns.has_backward(member) else ()
    return any(patterns.storage_of(name) in made for name in saved)
