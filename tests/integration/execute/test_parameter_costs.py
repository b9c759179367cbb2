"""What parameters on ranks cost is what cost/parameters.py prices: collectives and memory."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from harness.execute.keeper import SharedRanks  # noqa: E402
from shardwise.execute.parameters import ParameterSpec, ParameterStore  # noqa: E402
from shardwise.execute.parameters.gathering import GatheredParameter  # noqa: E402
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402
from shardwise.execute.saved import SavedTensors  # noqa: E402
from shardwise.measure import scatter  # noqa: E402
from shardwise.sharding.layout import PARTIAL as P  # noqa: E402
from shardwise.sharding.layout import REPLICATE as R  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS, WIDTH = 8, 16
BYTES = WIDTH * WIDTH * 4


def store_and_step(
    rank: int,
    zero: int,
    micro: int,
    bucket_bytes: int,
    gradient: tuple[int, ...] = (P, P),
    axes: tuple[int, ...] = (0,),
) -> tuple[ParameterStore, Any]:
    """A chain of square layers on a mesh of 2 x 2, ZeRO over the first axis; its step."""
    specs = [
        ParameterSpec(f"w{n}", (WIDTH, WIDTH), "float32", (R, R), gradient, zero, axes)
        for n in range(LAYERS)
    ]
    mesh = RankMesh(("outer", "inner"), (2, 2), rank)
    store = ParameterStore(specs, mesh, micro_batches=micro, bucket_bytes=bucket_bytes)
    saved = store.saved = SavedTensors()
    store.load({spec.name: torch.randn(spec.shape) for spec in specs})
    optimizer = torch.optim.Adam(store.parameters().values(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micro):
            x = torch.ones(4, WIDTH, requires_grad=True)
            with saved.hooks():
                for spec in specs:
                    x = torch.tanh(x @ store.use(spec.name))
            saved.clear()
            x.sum().backward()
        optimizer.step()

    return store, step


def counted(rank: int, zero: int, micro: int, *others: Any) -> dict[Any, tuple[int, int]]:
    """Calls and bytes of each collective in the third step, by operation and ranks."""
    calls: Counter[Any] = Counter()
    volume: Counter[Any] = Counter()
    _, step = store_and_step(rank, zero, micro, *others)
    step()
    step()
    with pytest.MonkeyPatch.context() as patch:

        def count(name: str, group: Any, tensor: torch.Tensor) -> None:
            key = (name, dist.get_world_size(group))
            calls[key] += 1
            volume[key] += tensor.numel() * tensor.element_size()

        def counting(name: str) -> Any:
            real = getattr(dist, name)

            def call(first: Any, *others: Any, **options: Any) -> Any:
                count(name, options["group"], first)
                return real(first, *others, **options)

            return call

        # On gloo it ends in an all_reduce, which is not to be counted, too.
        scattering, summing = scatter.reduce_scatter, dist.all_reduce

        def reduce_scatter(_: Any, part: Any, whole: Any, group: Any, **options: Any) -> Any:
            count("reduce_scatter", group, whole)
            with pytest.MonkeyPatch.context() as uncounted:
                uncounted.setattr(dist, "all_reduce", summing)
                return scattering(dist, part, whole, group, **options)

        for name in ("all_reduce", "all_gather_into_tensor"):
            patch.setattr(dist, name, counting(name))
        patch.setattr(scatter, "reduce_scatter", reduce_scatter)
        step()
    return {key: (calls[key], volume[key]) for key in calls}


def priced(zero: int, micro: int) -> dict[Any, tuple[int, int]]:
    """The table of cost/parameters.py, for LAYERS parameters of BYTES over 2 of 2 x 2 ranks."""
    n, whole, shard = LAYERS, LAYERS * BYTES, LAYERS * BYTES // 2
    if zero == 0:
        return {("all_reduce", 4): (n, whole)}
    times = micro if zero >= 2 else 1
    # Under ZeRO 3 the parameter that forward read last is there when backward begins.
    gathers = micro * (2 * n - 1) if zero == 3 else n
    return {
        ("reduce_scatter", 2): (times * n, times * whole),
        ("all_reduce", 2): (n, shard),
        ("all_gather_into_tensor", 2): (gathers, gathers * BYTES),
    }


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_collectives_are_those_priced(four: SharedRanks, zero: int, micro: int) -> None:
    for counts in four(counted, zero, micro, 0):
        assert counts == priced(zero, micro)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_equal_gradients_are_cut_and_not_summed(four: SharedRanks, zero: int) -> None:
    """Over the second axis all ranks have the same gradient: half of it is scattered over two."""
    n, times = LAYERS, 3 if zero >= 2 else 1
    gathers = 3 * (2 * n - 1) if zero == 3 else n
    for counts in four(counted, zero, 3, 0, (P, R), (0, 1)):
        assert counts == {
            ("reduce_scatter", 2): (times * n, times * n * BYTES // 2),
            ("all_gather_into_tensor", 4): (gathers, gathers * BYTES),
        }
    for counts in four(counted, zero, 3, 0, (R, R), (0, 1)):
        assert counts == {("all_gather_into_tensor", 4): (gathers, gathers * BYTES)}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_buckets_carry_the_same_bytes_in_fewer_calls(four: SharedRanks, zero: int) -> None:
    wanted = priced(zero, 1)
    for counts in four(counted, zero, 1, 3 * BYTES):
        for key, (calls, volume) in wanted.items():
            assert counts[key][1] == volume
            assert counts[key][0] == (calls if key[0] == "all_gather_into_tensor" else 3)


def kept_whole(rank: int, hooked: bool) -> tuple[int, bool]:
    """The most whole parameters at once, and whether none is left after the step.

    The least of three steps: on a busy machine a communication thread lets go late in one.
    """
    store, step = store_and_step(rank, 3, 1, 2**20)
    if not hooked:
        store.saved = None
    gathered: list[Any] = []
    most = 0
    real = GatheredParameter.gather

    def gather(self: GatheredParameter) -> Any:
        nonlocal most
        flat = real(self)
        gathered.append(StorageWeakRef(flat.untyped_storage()))
        most = max(most, sum(not memory.expired() for memory in gathered))
        return flat

    GatheredParameter.gather = gather  # type: ignore[method-assign]
    steps = []
    try:
        for _ in range(3):
            gathered.clear()
            most = 0
            step()
            dist.barrier()
            steps.append(most)
    finally:
        GatheredParameter.gather = real  # type: ignore[method-assign]
    state = sum(p.numel() for p in store.parameters().values())
    assert state == LAYERS * WIDTH * WIDTH // 2
    assert all(leaf.leaf.untyped_storage().nbytes() == 0 for leaf in store._stored.values())
    return min(steps), all(p.grad.numel() == p.numel() for p in store.parameters().values())


def test_under_zero_3_parameters_are_whole_only_while_used(four: SharedRanks) -> None:
    # One in use, one that its last operator or a communication thread has not let go of yet.
    for most, shards in four(kept_whole, True):
        assert most <= 3 and shards
    assert min(most for most, _ in four(kept_whole, False)) == LAYERS


def whole_gradients(rank: int, zero: int, micro: int) -> int:
    """The most buffers of whole gradients at once, when a reduction of one begins.

    The least of three steps, as above.
    """
    _, step = store_and_step(rank, zero, micro, 0)
    step()
    scattered: list[Any] = []
    most = 0
    real = scatter.reduce_scatter

    def reduce_scatter(_: Any, shard: Any, whole: Any, *others: Any, **options: Any) -> Any:
        nonlocal most
        scattered.append(StorageWeakRef(whole.untyped_storage()))
        most = max(most, sum(not memory.expired() for memory in scattered))
        return real(dist, shard, whole, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "reduce_scatter", reduce_scatter)
        steps = []
        for _ in range(3):
            scattered.clear()
            most = 0
            step()
            assert len(scattered) == LAYERS * (micro if zero >= 2 else 1)
            steps.append(most)
    return min(steps)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("zero", [2, 3])
def test_whole_gradients_go_when_the_next_are_on_their_way(
    four: SharedRanks, zero: int, micro: int
) -> None:
    # One begins, one is on its way, one that a communication thread has not let go of yet.
    assert max(four(whole_gradients, zero, micro)) <= 3


def held_gradients(rank: int) -> list[int]:
    """Bytes in gradients' storages under ZeRO 0 after backward and after zero_grad."""
    store, step = store_and_step(rank, 0, 1, 2**20)
    step()
    step()
    first = next(iter(store.parameters().values()))
    memory = StorageWeakRef(first.grad.untyped_storage())
    size = first.grad.untyped_storage().nbytes()
    for parameter in store.parameters().values():
        parameter.grad = None
    del first
    # A communication thread lets go of what it has sent a moment later.
    until = time.monotonic() + 30.0
    while not memory.expired() and time.monotonic() < until:
        time.sleep(0.02)
    return [size, int(memory.expired())]


def test_under_zero_0_buckets_go_with_the_gradients(four: SharedRanks) -> None:
    assert four(held_gradients) == [[LAYERS * BYTES, 1]] * 4
