"""Checkpoints: saved on four ranks, loaded on four, two and one, trained on with equal losses."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.split_mlp import Mlp, SplitMlp, train  # noqa: E402
from shardwise.errors import BadInput, ShardwiseError  # noqa: E402
from shardwise.execute.checkpoint import load, save  # noqa: E402
from shardwise.execute.checkpoint.boxes import stretch  # noqa: E402
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402

pytestmark = pytest.mark.torch

ADAM = partial(torch.optim.AdamW, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1)
SGD = partial(torch.optim.SGD, lr=0.02, momentum=0.9)
AXES = ("data", "model")


def model_on(rank: int, sizes: tuple[int, int], zero: int, axes: tuple[int, ...]) -> SplitMlp:
    return SplitMlp(RankMesh(AXES, sizes, rank), zero, axes)


def begin(rank: int, path: Path, make: Any, *plan: Any) -> list[float]:
    model = model_on(rank, *plan)
    optimizer = make(model.parameters())
    losses = train(model, optimizer, range(3))
    optimizer.param_groups[0]["lr"] = 0.01
    save(model, optimizer, path)
    return losses + train(model, optimizer, range(3, 6))


def go_on(rank: int, path: Path, make: Any, *plan: Any) -> tuple[list[float], int]:
    model = model_on(rank, *plan)
    optimizer = make(model.parameters())
    load(model, optimizer, path)
    return train(model, optimizer, range(3, 6)), int(model.seen)


def alone(path: Path | None, make: Any) -> list[float]:
    model = Mlp()
    optimizer = make(model.parameters())
    if path is not None:
        load(model, optimizer, path)
        assert optimizer.param_groups[0]["lr"] == 0.01
        assert int(model.seen) == 24
        return train(model, optimizer, range(3, 6))
    losses = train(model, optimizer, range(3))
    optimizer.param_groups[0]["lr"] = 0.01
    return losses + train(model, optimizer, range(3, 6))


@pytest.mark.parametrize(
    "make", [pytest.param(ADAM, id="adamw"), pytest.param(SGD, id="sgd", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_saved_on_four_ranks_loaded_on_two_and_one(
    four: SharedRanks, two: SharedRanks, tmp_path: Path, zero: int, make: Any
) -> None:
    wanted = pytest.approx(alone(None, make), rel=1e-5)
    path = tmp_path / "state"
    assert all(losses == wanted for losses in four(begin, path, make, (2, 2), zero, (0, 1)))
    on = pytest.approx(alone(None, make)[3:], rel=1e-5)
    assert alone(path, make) == on
    other = 3 - zero
    for losses, seen in two(go_on, path, make, (2, 1), other, (0,)):
        assert losses == on and seen == 24 + 24
    for losses, _ in two(go_on, path, make, (1, 2), zero, (0, 1)):
        assert losses == on
    for losses, _ in four(go_on, path, make, (2, 2), other, (0,)):
        assert losses == on


def test_saved_on_one_device_loaded_on_four(four: SharedRanks, tmp_path: Path) -> None:
    model = Mlp()
    optimizer = ADAM(model.parameters())
    train(model, optimizer, range(3))
    save(model, optimizer, tmp_path)
    wanted = pytest.approx(train(model, optimizer, range(3, 6)), rel=1e-5)
    for losses, _ in four(go_on, tmp_path, ADAM, (2, 2), 3, (0, 1)):
        assert losses == wanted


def killed_in_save(path: Path) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    dcp.FileSystemWriter.finish = die
    model = Mlp()
    torch.nn.init.zeros_(model.up)
    save(model, None, path)


def test_an_interrupted_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    model = Mlp()
    save(model, None, tmp_path)
    process = multiprocessing.get_context("forkserver").Process(
        target=killed_in_save, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    loaded = Mlp()
    torch.nn.init.ones_(loaded.up)
    load(loaded, None, tmp_path)
    assert torch.equal(loaded.up, model.up)
    torch.nn.init.ones_(model.up)
    save(model, None, tmp_path)
    load(loaded, None, tmp_path)
    assert torch.equal(loaded.up, model.up)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002", "latest"]


def test_a_failed_save_says_why_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mlp()
    save(model, None, tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", full)
    with pytest.raises(ShardwiseError, match=r"not saved: .*No space left on device"):
        save(model, None, tmp_path)
    monkeypatch.undo()
    load(model, None, tmp_path)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    model = Mlp()
    with pytest.raises(BadInput, match="holds no checkpoint"):
        load(model, None, tmp_path)
    save(model, None, tmp_path)
    other = Mlp()
    other.up = torch.nn.Parameter(torch.zeros(7, 5))
    with pytest.raises(BadInput, match=r"up: is torch.float32 \[7, 6\] in the checkpoint"):
        load(other, None, tmp_path)
    other = Mlp()
    other.more = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(BadInput, match="more: is not in the checkpoint"):
        load(other, None, tmp_path)
    load(other, None, tmp_path, strict=False)
    with pytest.raises(BadInput, match="not the model's"):
        save(model, ADAM(other.parameters()), tmp_path)


def test_groups_and_tied_parameters(tmp_path: Path) -> None:
    def built(first: str, second: str) -> tuple[Any, Any]:
        model = torch.nn.Module()
        weight = torch.nn.Parameter(torch.randn(3, 2))
        for name in (first, second):
            model.register_parameter(name, weight)
        model.bias = torch.nn.Parameter(torch.randn(()))
        return model, torch.optim.Adam(
            [{"params": [weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.25}]
        )

    model, optimizer = built("one", "two")
    (model.two.sum() * model.bias).backward()
    optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.125
    save(model, optimizer, tmp_path)
    restored, taken = built("two", "one")
    load(restored, taken, tmp_path)
    assert torch.equal(restored.one, model.one) and torch.equal(restored.bias, model.bias)
    assert [group["lr"] for group in taken.param_groups] == [0.5, 0.125]
    assert torch.equal(taken.state[restored.one]["exp_avg"], optimizer.state[model.one]["exp_avg"])
    assert torch.equal(
        taken.state[restored.bias]["exp_avg"], optimizer.state[model.bias]["exp_avg"]
    )


def test_stretches_cover_every_element_once() -> None:
    for shape in [(), (5,), (3, 4), (2, 3, 4), (3, 1, 2, 2)]:
        whole = torch.arange(int(torch.Size(shape).numel())).view(shape)
        for start in range(whole.numel() + 1):
            for stop in range(start, whole.numel() + 1):
                parts = [
                    whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].reshape(-1)
                    for box in stretch(shape, start, stop)
                ]
                assert len(parts) <= max(2 * len(shape) - 1, 1)
                assert torch.equal(torch.cat([torch.arange(0), *parts]), torch.arange(start, stop))
