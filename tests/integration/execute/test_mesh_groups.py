"""Process groups of meshes: one for the same ranks, whatever the mesh; gone with torch's own."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from harness.execute.keeper import SharedRanks, keeper  # noqa: E402
from harness.execute.ranks import Ranks  # noqa: E402
from harness.execute.split_mlp import SplitMlp, train  # noqa: E402
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402

pytestmark = pytest.mark.torch


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _shared(rank: int) -> tuple[bool, bool, list[int], int]:
    first, second = RankMesh(("a", "b"), (2, 2), rank), RankMesh(("x", "y"), (2, 2), rank)
    mine, other = first.group((0,)), first.group((1,))
    before = _threads()
    same = second.group((0,)) is mine and second.group((1,)) is other
    return same, mine is not other, dist.get_process_group_ranks(mine), _threads() - before


def test_meshes_share_groups(four: SharedRanks) -> None:
    assert four(_shared) == [
        (True, True, [0, 2], 0),
        (True, True, [1, 3], 0),
        (True, True, [0, 2], 0),
        (True, True, [1, 3], 0),
    ]


def _sum(mesh: RankMesh) -> float:
    x = torch.full((3,), float(mesh.rank))
    dist.all_reduce(x, group=mesh.group((0,)))
    return float(x[0])


def _anew(rank: int, folder: str) -> tuple[float, float, bool]:
    first = RankMesh(("a", "b"), (2, 2), rank)
    before = _sum(first)
    dist.destroy_process_group()
    store: Any = dist.FileStore(f"{folder}/store", 4)
    dist.init_process_group("gloo", rank=rank, world_size=4, store=store)
    second = RankMesh(("a", "b"), (2, 2), rank)
    after = _sum(second)
    return before, after, second.group((0,)) is first.group((0,))


def test_after_everything_ended_groups_are_new(four: SharedRanks, tmp_path: Path) -> None:
    found = four(_anew, str(tmp_path))
    four.stop()  # their group is not the one that they were started with
    assert found == [(2.0, 2.0, False), (4.0, 4.0, False)] * 2


def _gloo_threads() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            count += (task / "comm").read_text().strip() == "pt_gloo_runloop"
    return count


def _at_exit(rank: int) -> tuple[int, int, int]:
    at_first = _gloo_threads()
    models = []
    for zero in range(4):
        models.append(SplitMlp(RankMesh(("data", "model"), (2, 2), rank), zero, (0,)))
        train(models[-1], torch.optim.SGD(models[-1].parameters(), lr=0.1), range(2))
    most = _gloo_threads()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    # A thread that has been joined may be listed for a moment more.
    until = time.monotonic() + 30.0
    while (left := _gloo_threads()) > at_first and time.monotonic() < until:
        time.sleep(0.02)
    # The models are still there, as a script's globals are.
    assert all(model.training for model in models)
    return at_first, most, left


def _on_ranks_of_their_own() -> list[tuple[int, int, int]]:
    ranks = Ranks(4, inherit=True)
    try:
        return ranks(_at_exit)
    finally:
        ranks.stop(kill=True)


def test_no_thread_of_a_mesh_outlives_the_interpreter() -> None:
    answers = keeper().run(_on_ranks_of_their_own)
    for at_first, most, left in answers:
        assert most > at_first
        # Functions of torch may have the group of all ranks as a default.
        assert left <= at_first
