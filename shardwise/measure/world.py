"""Which rank this process is: set by torchrun, by srun, or by the starter of local processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput

STORE_VARIABLE = "SHARDWISE_MEASURE_STORE"
"""The file through which processes started by `local.py` find each other."""

JOIN_S = 600.0
"""How long ranks may take to start and find each other: importing torch takes minutes on a loaded
machine, and the ranks of a job do not start together.
"""

PORT_BASE, PORT_RANGE = 20000, 20000


@dataclass(frozen=True)
class World:
    """`size` ranks on nodes of `ranks_per_node`, filled one after another; this one is `rank`.

    `meeting` is torch's `init_method`. Where nodes have unequal numbers of ranks, or a host has
    several nodes, `ranks_per_node` is that of this rank's own; `sharing` are the ranks that share
    this host where they are more than those of the node, else 0.
    """

    rank: int
    size: int
    local_rank: int
    ranks_per_node: int
    meeting: str
    sharing: int = 0

    @property
    def ranks_on_host(self) -> int:
        """Ranks that share this host's cores and memory."""
        return self.sharing or self.ranks_per_node

    @property
    def nodes(self) -> int:
        """The number of nodes, all equally full."""
        return self.size // self.ranks_per_node

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.rank // self.ranks_per_node


def find_world(
    environment: Mapping[str, str] = os.environ, *, is_even: bool = True
) -> World | None:
    """Returns the world that this process was started in, None if it was started alone.

    torchrun and `local.py` set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; srun sets
    SLURM_PROCID and related variables in every step of more than one task. Raises `BadInput` naming
    the variable that does not fit: also nodes with unequal numbers of ranks, if `is_even`.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        size = _number(environment, "WORLD_SIZE")
        store = environment.get(STORE_VARIABLE)
        return _checked(
            World(
                _number(environment, "RANK"),
                size,
                _number(environment, "LOCAL_RANK", 0 if size == 1 else None),
                _number(environment, "LOCAL_WORLD_SIZE", 1 if size == 1 else None),
                f"file://{store}" if store else "env://",
            ),
            is_even,
        )
    # A batch script without srun has SLURM_PROCID too, but no other ranks will come.
    if "SLURM_PROCID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS", 1) > 1:
        nodes = _number(environment, "SLURM_STEP_NUM_NODES", 1)
        size = _number(environment, "SLURM_STEP_NUM_TASKS")
        if size % nodes:
            raise BadInput(
                f"{size} tasks on {nodes} nodes",
                field="SLURM_STEP_NUM_TASKS",
                expected="the same number of tasks on every node (srun --ntasks-per-node)",
            )
        return _checked(
            World(
                _number(environment, "SLURM_PROCID"),
                size,
                _number(environment, "SLURM_LOCALID"),
                size // nodes,
                f"tcp://{_first_host(environment)}:{_port(environment)}",
            )
        )
    return None


def _checked(world: World, is_even: bool = True) -> World:
    if not 0 <= world.rank < world.size:
        raise BadInput(
            f"rank {world.rank} of {world.size}",
            field="RANK",
            expected="a number below the number of ranks",
        )
    if is_even:
        check_even(world)
    elif not 0 <= world.local_rank < world.ranks_per_node <= world.size:
        raise BadInput(
            f"rank {world.local_rank} of {world.ranks_per_node} on its node",
            field="LOCAL_RANK",
            expected="a number below the number of ranks on a node",
        )
    return world


def check_even(world: World) -> None:
    """Raises `BadInput` unless all nodes have as many ranks as this one, and are filled one after
    another."""
    if world.ranks_per_node < 1 or world.size % world.ranks_per_node:
        raise BadInput(
            f"{world.size} ranks on nodes of {world.ranks_per_node}",
            field="LOCAL_WORLD_SIZE",
            expected="the same number of ranks on every node",
        )
    if world.rank % world.ranks_per_node != world.local_rank:
        raise BadInput(
            f"rank {world.rank} is number {world.local_rank} on its node",
            field="LOCAL_RANK",
            expected="ranks that fill nodes one after another (srun --distribution=block)",
        )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise BadInput(f"got {text!r}", field=name, expected="a whole number in the environment")
    return int(text)


def _first_host(environment: Mapping[str, str]) -> str:
    """Returns MASTER_ADDR, else the first of `node[01-04,07],other`."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    match = re.match(r"([^,\[\]]+)(?:\[(\w+)[^\]]*\])?([^,\[\]]*)", hosts)
    if match is None:
        raise BadInput(f"got {hosts!r}", field="SLURM_STEP_NODELIST", expected="a list of nodes")
    return match[1] + (match[2] or "") + match[3]


def _port(environment: Mapping[str, str]) -> int:
    """Returns the same port on every rank: MASTER_PORT, else from the job and step numbers."""
    if "MASTER_PORT" in environment:
        return _number(environment, "MASTER_PORT")
    job = _number(environment, "SLURM_JOB_ID", 0)
    return PORT_BASE + (job * 31 + _number(environment, "SLURM_STEP_ID", 0)) % PORT_RANGE
