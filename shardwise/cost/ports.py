"""How a member of a group reads one of its inputs: with neighbours' rows, by taps, as a table."""

from __future__ import annotations

from shardwise.sharding.coarsen import Member


def halos(member: Member, port: int) -> list[tuple[int, int, int]]:
    """Returns variables whose shares of an input also read neighbours' rows: variable, dimension,
    rows."""
    return [
        (member.variables[v], access.dim, access.halo_before + access.halo_after)
        for v, access in member.semantics.inputs[port].items()
        if access.halo_before + access.halo_after
    ]


def taps(member: Member, port: int) -> list[int]:
    """Returns variables of the windows through which an input is read, as far as they are summed
    over."""
    if not halos(member, port):
        return []
    sem = member.semantics
    return [
        member.variables[v]
        for v, variable in enumerate(sem.variables)
        if variable.is_reduction and v not in sem.inputs[port]
    ]


def looked_up(member: Member, name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether a tensor is a table of which only the rows that are written are read."""
    return (
        member.operator.kind.startswith("aten.embedding")
        and len(shape) == 2
        and (name == member.operator.inputs[0])
    )
