"""What `shardwise run` passes to torchrun besides the user's own arguments."""

from __future__ import annotations

import msgspec
import pytest

from harness.stored import stored
from shardwise.cli.run import launcher_arguments
from shardwise.errors import BadInput

PLAN = msgspec.structs.replace(stored("plan"), nodes=2)


def test_on_one_host_a_store_that_is_slow_to_answer_is_waited_for() -> None:
    """torchrun's own minute is over where other processes take all cores."""
    added = launcher_arguments(PLAN, [])
    assert added == ["--standalone", "--nproc-per-node=4", "--rdzv-conf=read_timeout=600"]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (["--rdzv-conf", "read_timeout=5"], ["--standalone", "--nproc-per-node=4"]),
        (["--nnodes=2"], ["--nproc-per-node=2"]),
        (["--nnodes=2", "--nproc_per_node", "8"], []),
    ],
)
def test_the_users_arguments_come_last(given: list[str], added: list[str]) -> None:
    assert launcher_arguments(PLAN, given) == [*added, *given]


def test_nodes_with_unequal_numbers_of_ranks_are_for_the_user_to_say() -> None:
    plan = msgspec.structs.replace(PLAN, nodes=3)
    with pytest.raises(BadInput, match="not as many on each"):
        launcher_arguments(plan, ["--nnodes=3"])
    given = ["--nnodes=3", "--nproc-per-node=2"]
    assert launcher_arguments(plan, given) == given
    assert "--nproc-per-node=4" in launcher_arguments(plan, [])
