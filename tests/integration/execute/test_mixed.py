"""Plans on devices of several kinds, executed: what one device computes, by uneven shares."""

from __future__ import annotations

import itertools
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

from harness.commands import shardwise  # noqa: E402
from harness.execute.bounds import equal  # noqa: E402
from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.mixed import profile  # noqa: E402
from harness.execute.swept import swept  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.cost.mixed.proportions import Proportion  # noqa: E402
from shardwise.execute import peers  # noqa: E402
from shardwise.execute.agreement import require_one_order  # noqa: E402
from shardwise.execute.block_mesh import BlockMesh  # noqa: E402
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402
from shardwise.execute.reshare import Reshare  # noqa: E402
from shardwise.sharding.layout import PARTIAL, REPLICATE  # noqa: E402

pytestmark = pytest.mark.torch

SEEDS = {"MLP": 20, "GPT-2": 10, "WideResNet": 10, "ResNet": 10, "LSTM": 5, "DLRM": 5, "T5": 5}
"""How many strategies of each family are run."""
ALWAYS = {"MLP": 5, "GPT-2": 5, "WideResNet": 5}
"""How many of them `make test` runs."""
CASES = [(family, first) for family, count in SEEDS.items() for first in range(0, count, 5)]
STEPS = 2


@pytest.mark.parametrize(
    ("family", "first"), some(CASES, lambda case: case[1] < ALWAYS.get(case[0], 0))
)
def test_random_strategies_compute_what_one_device_computes(family: str, first: int) -> None:
    """Among them blocks of weight 0, servers, uneven shards, ZeRO, recomputation, micro-batches."""
    cases = ["--mixed", "--cases", f"4:{first}:{first + 5}", "--steps", str(STEPS), family]
    lines = swept(*cases)
    assert [line["seed"] for line in lines] == list(range(first, first + 5))
    for line in lines:
        assert equal(line), line


ASKED = ("plan", "graph.json", "--hardware", "hardware.json", "--time-limit", "5")
SOURCE = "zoo:mlp:layers=4,inputs=64,hidden=128,classes=10,batch=32"
RUN = ("run", "plan.json", "--source", SOURCE, "--steps", "3")


@pytest.mark.full
@pytest.mark.parametrize("taken", ["a=2,b=2", "a=1,b=1,c=2"])
def test_a_plan_of_the_search_runs(tmp_path: Path, taken: str) -> None:
    (tmp_path / "hardware.json").write_text(json.dumps(profile()))
    for words in (
        ["capture", SOURCE, "-o", "graph.json"],
        [*ASKED, "--gpus", taken, "-o", "plan.json"],
        [*RUN, "--kinds", taken, "-o", "run.json"],
    ):
        done = shardwise(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "run.json").read_text())
    assert len(measured["peak_bytes"]["per_rank"]) == 4
    assert sum(measured["collectives"].values()) >= 1


WEIGHTS = ((1, 1, 1, 1), (5, 2, 0, 1), (0, 1, 0, 0), (0, 0, 3, 1), (4, 4, 1, 0))
EXTENT = 12


def _reshared(rank: int, size: int) -> list[str]:
    """Changes shares between all proportions, in all layouts; returns what came out wrong."""
    inside = 4 // size
    whole = RankMesh(("blocks", "m0"), (size, inside), rank)
    weights = dict.fromkeys(w[:size] for w in WEIGHTS if any(w[:size]))
    meshes = [BlockMesh(whole, Proportion(w, "")) for w in weights]
    states = (0, REPLICATE, PARTIAL)
    layouts = [(b, m) for b in states for m in (0, 1, REPLICATE)]
    tensor = torch.arange(EXTENT * 4, dtype=torch.float64).view(EXTENT, 4) + 1
    wrong, changes = [], []
    for here, there in itertools.permutations(meshes, 2):
        changes += [(here, there, Reshare(here, there, way, tensor.shape)) for way in layouts]
    peers.create({c.members for _, _, c in changes if c.concerns and c.sends})
    for number, (here, there, moved) in enumerate(changes):
        layout = layouts[number % len(layouts)]
        for dtype in (torch.float64, torch.bool) if PARTIAL not in layout else (torch.float64,):
            given = _part(tensor, here, layout).to(dtype)
            got = moved(given) if moved.concerns else given.new_empty(0)
            if PARTIAL in layout:
                # Terms add up to the whole along the blocks.
                total = torch.zeros_like(tensor)
                if there.present:
                    total[there.local_slices(tensor.shape, layout)] = got
                torch.distributed.all_reduce(total)
                copies = 1 if layout[1] >= 0 else inside
                good = torch.allclose(total, tensor * copies)
            else:
                wanted = _part(tensor, there, layout).to(dtype)
                good = got.dtype == dtype and torch.equal(got, wanted)
            if not good:
                wrong.append(f"{here.weights} → {there.weights} {layout} {dtype}")
    return wrong


def _part(tensor: Any, mesh: BlockMesh, layout: tuple[int, ...]) -> Any:
    if not mesh.present:
        return tensor.new_empty(0)
    part = tensor[mesh.local_slices(tensor.shape, layout)]
    if PARTIAL not in layout:
        return part
    weights = [1.0 + place for place in range(mesh.sizes[0])]
    return part * (weights[mesh.coordinates[0]] / sum(weights)) if len(weights) > 1 else part


@pytest.mark.parametrize("size", [2, 4])
def test_changes_of_shares_bring_every_rank_its_part(four: SharedRanks, size: int) -> None:
    for wrong in four(_reshared, size):
        assert not wrong


def _compared(rank: int, names: list[list[str]]) -> str:
    try:
        require_one_order(names[rank])
    except Exception as error:
        return str(error)
    return ""


def test_ranks_with_instructions_in_another_order_refuse(four: SharedRanks) -> None:
    same = ["a", "move b", "c"]
    assert four(_compared, [same] * 4) == [""] * 4
    said = four(_compared, [same, same, ["a", "c"], same])
    assert said == ["instruction 1 is 'move b' on rank 0 and 'c' on rank 2"] * 4


def test_proportions_cover_all_ranks_once() -> None:
    for size in (2, 4):
        for weights in (w[:size] for w in WEIGHTS if any(w[:size])):
            rows = 0
            for rank in range(4):
                whole = RankMesh(("blocks", "m0"), (size, 4 // size), rank)
                mesh = BlockMesh(whole, Proportion(weights, ""))
                rows += prod(mesh.local_shape((EXTENT,), (0, 0))) if mesh.present else 0
            assert rows == EXTENT
