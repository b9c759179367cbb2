"""Local operators on real process groups against the whole operator, and random ones."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from harness.execute.keeper import SharedRanks, keeper
from harness.execute.local_ranks import checked
from shardwise.execute.exchange import Exchange
from shardwise.execute.local import local_operator
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Operator, Tensor
from shardwise.tdl.registry import analyse
from tools.execute_operators_table import FILE, forms_of, rows, text_of

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _compare(reports: list[dict[str, Any]], cases: int) -> None:
    for rank in reports:
        assert rank["wrong"] == [], f"rank {rank['rank']}: " + "\n".join(rank["wrong"][:20])
        assert sum(rank["forms"].values()) > cases


def test_every_loop_of_every_operator_on_two_ranks(two: SharedRanks) -> None:
    _compare(two(checked, (2,)), 1900)


@pytest.mark.full
def test_uneven_shares_on_three_ranks() -> None:
    _compare(SharedRanks(keeper(), 3)(checked, (3,)), 800)


@pytest.mark.full
def test_pairs_of_loops_on_four_ranks(four: SharedRanks) -> None:
    _compare(four(checked, (2, 2)), 3000)


def test_the_forms_are_up_to_date() -> None:
    assert text_of(forms_of(rows())) == FILE.read_text("utf-8"), "run make tables"


# Random operators: no process group is needed to see who draws what.


def _draw(
    kind: str,
    shapes: dict[str, tuple[int, ...]],
    attributes: dict[str, Any],
    split: tuple[int | None, ...],
    rank: int,
    step: int = 0,
    values: torch.Tensor | None = None,
) -> torch.Tensor:
    tensors = {name: Tensor(name, shape, "float32", "activation") for name, shape in shapes.items()}
    inputs = tuple(n for n in shapes if n != "y")
    op = Operator("drop", kind, inputs, ("y",), attributes)
    mesh = RankMesh(("x", "y"), (2, 2), rank)
    exchange = Exchange(mesh)
    exchange.step = step
    local = local_operator(op, tensors, analyse(op, tensors), split, mesh, exchange)
    assert local.fallback is None
    given = [values] if values is not None else []
    return local(*given)[0]


def _dropped(split: tuple[int | None, ...], rank: int, step: int = 0) -> torch.Tensor:
    shapes = {"input": (64, 32), "y": (64, 32)}
    local = torch.ones([n // (2 ** split.count(d)) for d, n in enumerate((64, 32))])
    attributes = {"p": 0.25, "train": True}
    return _draw("aten.dropout.default", shapes, attributes, split, rank, step, local)


def test_replicas_drop_the_same_and_shares_do_not() -> None:
    whole = [_dropped((None, None), rank) for rank in range(4)]
    assert all(torch.equal(whole[0], other) for other in whole[1:])
    by_rows = [_dropped((0, None), rank) for rank in range(4)]
    assert torch.equal(by_rows[0], by_rows[1]) and torch.equal(by_rows[2], by_rows[3])
    assert not torch.equal(by_rows[0], by_rows[2])


def test_a_second_run_of_a_step_drops_the_same_and_another_step_does_not() -> None:
    first, again, later = (_dropped((0, 1), 3, step) for step in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_dropout_keeps_the_mean() -> None:
    kept = torch.cat([_dropped((None, None), 0, step).flatten() for step in range(64)])
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float((kept > 0).float().mean()) == pytest.approx(0.75, abs=0.005)


def test_shares_of_a_factory_are_shares_of_the_same_numbers() -> None:
    parts = [
        _draw("aten.rand.default", {"y": (8, 6)}, {"size": [8, 6]}, (0, 1), rank)
        for rank in range(4)
    ]
    whole = _draw("aten.rand.default", {"y": (8, 6)}, {"size": [8, 6]}, (None, None), 0)
    rows = [torch.cat(parts[:2], 1), torch.cat(parts[2:], 1)]
    assert torch.equal(torch.cat(rows), whole)


def test_channels_are_dropped_on_all_shares_of_their_elements() -> None:
    shapes = {"input": (4, 16, 8), "y": (4, 16, 8)}
    attributes = {"p": 0.5, "train": True}
    halves = [
        _draw(
            "aten.feature_dropout.default", shapes, attributes, (2, None), rank, 0,
            torch.ones(4, 16, 4),
        )
        for rank in (0, 2)
    ]  # fmt: skip
    assert torch.equal(halves[0], halves[1])


def test_the_random_stream_of_the_program_is_left_alone() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    _dropped((0, None), 0)
    _draw("aten.rand.default", {"y": (8, 6)}, {"size": [8, 6]}, (0, None), 0)
    assert torch.equal(torch.rand(4), wanted)
