"""Parameters on ranks: five steps of an optimizer leave what one device would have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.execute.keeper import SharedRanks  # noqa: E402
from shardwise.execute.parameters import (  # noqa: E402
    ParameterSpec,
    ParameterStore,
    clip_grad_norm_,
)
from shardwise.execute.rank_mesh import RankMesh  # noqa: E402
from shardwise.execute.saved import SavedTensors  # noqa: E402
from shardwise.sharding.layout import PARTIAL, REPLICATE  # noqa: E402

pytestmark = pytest.mark.torch

NAMES, SIZES = ("data", "model"), (2, 2)
R, P = REPLICATE, PARTIAL
SPECS = (
    ParameterSpec("whole", (5, 3), "float32", (R, R), (P, P)),
    ParameterSpec("rows", (7, 4), "float32", (R, 0), (P, 0)),
    ParameterSpec("columns", (3, 9), "float32", (R, 1), (P, 1)),
    ParameterSpec("alike", (4,), "float32", (R, R), (P, R)),
    ParameterSpec("positions", (5, 2), "float32", (R, R), (R, R)),
    ParameterSpec("cut first", (3, 5), "float32", (R, R), (R, P)),
    ParameterSpec("equal rows", (9, 2), "float32", (R, 0), (R, 0)),
    ParameterSpec("both", (6, 5), "float32", (0, 1), (0, 1)),
    ParameterSpec("nested", (7,), "float32", (0, 0), (0, 0)),
    ParameterSpec("scalar", (), "float32", (R, R), (P, P)),
    ParameterSpec("short", (1, 3), "float32", (R, 0), (P, 0)),
    ParameterSpec("unused", (3, 3), "float32", (R, R), (P, P)),
    ParameterSpec("frozen", (4, 3), "float32", (R, 1), None),
    ParameterSpec("counter", (), "int64", (R, R), None, buffer=True),
)
"""Shares of all kinds: uneven, nested, empty; terms of a sum along both axes, one or none, equal
gradients along both, the first, the second."""

STEPS = 5


def start(spec: ParameterSpec) -> Any:
    """The initial value of a parameter, the same on every rank."""
    generator = torch.Generator().manual_seed(len(spec.name) * 100 + sum(map(ord, spec.name)))
    if spec.dtype == "int64":
        return torch.zeros(spec.shape, dtype=torch.int64)
    return torch.randn(spec.shape, generator=generator).to(getattr(torch, str(spec.dtype)))


def target(spec: ParameterSpec, place: tuple[int, ...], step: int) -> tuple[Any, Any]:
    """Data of whole shape for the ranks at `place` along the axes of the sum."""
    generator = torch.Generator().manual_seed(hash((spec.name == "rows", place, step)) % 2**31)
    return tuple(
        torch.randn(spec.shape, generator=generator).to(start(spec).dtype) for _ in range(2)
    )


def loss_of(weight: Any, data: tuple[Any, Any]) -> Any:
    scale, aim = data
    return ((weight * scale - aim) ** 2).sum() * 0.1 + (weight * scale).sin().sum()


def places(spec: ParameterSpec) -> Iterator[tuple[int, ...]]:
    """All coordinates along axes that hold terms of the sum; 0 along others."""
    sizes = [range(n) if s == P else range(1) for n, s in zip(SIZES, spec.gradient, strict=True)]
    return ((a, b) for a in sizes[0] for b in sizes[1])


def trained(spec: ParameterSpec) -> bool:
    return spec.gradient is not None and spec.name != "unused"


def one_device(
    specs: Any, make: Any, micro: int, clip: float | None, calls: int
) -> tuple[dict[str, Any], list[float]]:
    """The same steps on one device."""
    weights = {
        s.name: torch.nn.Parameter(start(s), s.gradient is not None) for s in specs if not s.buffer
    }
    optimizer, norms = make(list(weights.values())), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for batch in range(micro * calls):
            data = partial(target, step=step * 10 + batch)
            sum(
                loss_of(weights[s.name], data(s, place))
                for s in specs
                if trained(s)
                for place in places(s)
            ).backward()
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), clip)))
        optimizer.step()
    return {name: w.detach() for name, w in weights.items()}, norms


def run_store(
    rank: int,
    specs: Any,
    make: Any,
    micro: int = 1,
    clip: float | None = None,
    calls: int = 1,
    to_none: bool = True,
    twice: bool = False,
    bucket_bytes: int = 25 * 2**20,
) -> tuple[float, float]:
    """Greatest differences of weights and of norms from one device."""
    mesh = RankMesh(NAMES, SIZES, rank)
    store = ParameterStore(specs, mesh, micro_batches=micro, bucket_bytes=bucket_bytes)
    saved = store.saved = SavedTensors()
    store.load({s.name: start(s) for s in specs})
    optimizer, norms = make(list(store.parameters().values())), []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        for batch in range(micro * calls):
            terms = []
            with saved.hooks():
                for spec in specs:
                    if not trained(spec):
                        continue
                    here = tuple(
                        c if s == P else 0
                        for c, s in zip(mesh.coordinates, spec.gradient, strict=True)
                    )
                    data = target(spec, here, step * 10 + batch)
                    cut = tuple(store.placement(spec.name).cut(d) for d in data)
                    if twice:
                        half = (cut[0], cut[1])
                        terms += [
                            loss_of(store.use(spec.name), half) * 0.25,
                            loss_of(store.use(spec.name), half) * 0.75,
                        ]
                    else:
                        terms.append(loss_of(store.use(spec.name), cut))
                total = sum(terms)
            saved.clear()
            total.backward()
        for name, parameter in store.parameters().items():
            if name in ("unused", "frozen"):
                assert parameter.grad is None or not parameter.grad.any()
            else:
                assert parameter.grad is not None and parameter.grad.shape == parameter.shape
        if clip is not None:
            norms.append(float(clip_grad_norm_(store, clip)))
        optimizer.step()
    weights, wanted = one_device(specs, make, micro, clip, calls)
    far = 0.0
    for spec in specs:
        if not spec.buffer:
            full = store.full(spec.name)
            assert full.dtype == weights[spec.name].dtype
            far = max(far, float((full - weights[spec.name]).abs().max()))
    return far, max((abs(a - b) for a, b in zip(norms, wanted, strict=True)), default=0.0)


def under(stage: int, axes: tuple[int, ...] = (0, 1)) -> tuple[ParameterSpec, ...]:
    return tuple(replace(s, zero=stage, zero_axes=axes if stage else ()) for s in SPECS)


ADAM = partial(torch.optim.Adam, lr=1e-2)


def near(answers: list[tuple[float, float]], bound: float = 1e-6) -> None:
    assert max(far for far, _ in answers) <= bound
    assert max(norm for _, norm in answers) <= 1e-4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("axes", [(0, 1), (0,), (1,)], ids=["all", "data", "model"])
def test_stages_and_hybrid_axes(four: SharedRanks, stage: int, axes: tuple[int, ...]) -> None:
    near(four(run_store, under(stage, axes), ADAM))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_micro_batches(four: SharedRanks, stage: int) -> None:
    near(four(run_store, under(stage, (0,)), ADAM, 3))


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_backward_calls_before_a_step(four: SharedRanks, stage: int, to_none: bool) -> None:
    near(four(run_store, under(stage, (0,)), ADAM, 2, None, 2, to_none))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_parameter_used_by_two_operators(four: SharedRanks, stage: int) -> None:
    near(four(run_store, under(stage), ADAM, 1, None, 1, True, True))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_clipping(four: SharedRanks, stage: int) -> None:
    near(four(run_store, under(stage, (0,)), ADAM, 1, 0.5))


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=1e-2, momentum=0.9, foreach=True),
        partial(torch.optim.Adam, lr=1e-2, fused=True),
        partial(torch.optim.AdamW, lr=1e-2, foreach=True),
        partial(torch.optim.AdamW, lr=1e-2, foreach=False),
    ],
    ids=["sgd", "adam-fused", "adamw-foreach", "adamw-loop"],
)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_ordinary_optimizers(four: SharedRanks, stage: int, make: Any) -> None:
    near(four(run_store, under(stage), make))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_bucket_per_parameter(four: SharedRanks, stage: int) -> None:
    near(four(run_store, under(stage, (0,)), ADAM, 2, None, 1, True, False, 0))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bfloat16(four: SharedRanks, stage: int) -> None:
    """Sums of bfloat16 gradients round in another order: SGD's steps stay within a few units."""
    specs = tuple(replace(s, dtype="bfloat16") if not s.buffer else s for s in under(stage))
    near(four(run_store, specs, partial(torch.optim.SGD, lr=1e-3)), 2**-5)


def large_alone(rank: int, to_none: bool, stage: int, columns: int) -> bool:
    """A gradient over a MiB is summed where autograd left it; two backward calls add up."""
    mesh, zero = RankMesh(("data",), (4,), rank), (stage, (0,) if stage else ())
    shape = (512, columns)
    store = ParameterStore([ParameterSpec("w", shape, "float32", (R,), (P,), *zero)], mesh)
    store.load({"w": torch.ones(shape)})
    weight = store.parameters()["w"]
    well = True
    for _ in range(3):
        for call in range(2):
            (store.use("w") * (rank + 1)).sum().backward()
            well &= bool((weight.grad == 10 * (call + 1)).all())
        if to_none:
            weight.grad = None
        else:
            weight.grad.zero_()
    return well


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
# With 1025 columns four ranks have shards of another size than the last.
@pytest.mark.parametrize("columns", [513, 1025])
def test_a_large_gradient_goes_alone(
    four: SharedRanks, to_none: bool, stage: int, columns: int
) -> None:
    assert all(four(large_alone, to_none, stage, columns))


def after_a_failure(rank: int) -> list[float]:
    """A backward pass that raises leaves nothing behind for the next."""
    mesh = RankMesh(("data",), (4,), rank)
    specs = [ParameterSpec(n, (3,), "float32", (R,), (P,)) for n in ("first", "second")]
    store = ParameterStore(specs, mesh)
    store.load({n: torch.ones(3) for n in ("first", "second")})

    def refuse(gradient: Any) -> Any:
        raise ValueError("no")

    for fails in (False, True, False):
        for weight in store.parameters().values():
            weight.grad = None
        between = store.use("first") * 1.0
        if fails:
            between.register_hook(refuse)
        loss = (between * store.use("second")).sum()
        if fails:
            with pytest.raises(ValueError, match="no"):
                loss.backward()
        else:
            loss.backward()
    return [float(weight.grad.sum()) for weight in store.parameters().values()]


def test_after_a_failed_backward(four: SharedRanks) -> None:
    assert four(after_a_failure) == [[12.0, 12.0]] * 4


def scaled(rank: int, stage: int) -> tuple[list[bool], float]:
    """torch.amp: autocast, and a scaler that all ranks let skip the same steps."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    mesh = RankMesh(("data",), (4,), rank)
    shape, zero = (5, 3), (stage, (0,) if stage else ())
    store = ParameterStore([ParameterSpec("w", shape, "float32", (R,), (P,), *zero)], mesh)
    saved = store.saved = SavedTensors()
    store.load({"w": torch.ones(shape)})
    optimizer = torch.optim.SGD(store.parameters().values(), lr=0.5)
    scaler = ShardedGradScaler(device="cpu", init_scale=4.0)
    skipped = []
    for step in range(3):
        optimizer.zero_grad()
        x = torch.full((2, 3), float("inf") if step == 1 and rank == 2 else 1.0)
        with torch.autocast("cpu", torch.bfloat16), saved.hooks():
            loss = torch.nn.functional.linear(x, store.use("w")).sum() / 64
        scaler.scale(loss).backward()
        before = store.full("w")
        scaler.step(optimizer)
        scaler.update()
        skipped.append(bool(torch.equal(before, store.full("w"))))
    return skipped, float(store.full("w").mean())


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_mixed_precision_with_a_scaler(four: SharedRanks, stage: int) -> None:
    # Four ranks with two rows of ones: the gradient of each element is 8 / 64.
    assert four(scaled, stage) == [([False, True, False], 1 - 2 * 0.5 / 8)] * 4


def test_what_a_spec_may_not_say() -> None:
    from shardwise.errors import BadInput

    mesh = RankMesh(NAMES, SIZES, 0)
    good = ParameterSpec("w", (4,), "float32", (R, 0), (P, 0))
    for wrong, what in [
        (replace(good, layout=(P, 0)), "term of a sum"),
        (replace(good, gradient=(0, 0)), "gradient comes in"),
        (replace(good, zero=4), "ZeRO stage"),
        (replace(good, layout=(R,)), "another mesh"),
        (replace(good, dtype="float31"), "not a dtype"),
    ]:
        with pytest.raises(BadInput, match=what):
            ParameterStore([wrong], mesh)
    store = ParameterStore([replace(good, gradient=None)], mesh)
    with pytest.raises(BadInput, match="missing"):
        store.load({})
    with pytest.raises(BadInput, match=r"shape \[5\]"):
        store.load({"w": torch.zeros(5)})


def kept_alive(rank: int) -> bool:
    """A store without references is freed, and its optimizer hook with it."""
    import gc
    import weakref

    from torch.optim import optimizer as optimizers

    gc.collect()  # what other tests have left
    mesh, before = RankMesh(("data",), (4,), rank), len(optimizers._global_optimizer_post_hooks)
    specs = [ParameterSpec(f"w{z}", (4,), "float32", (R,), (P,), z, (0,)) for z in (1, 2, 3)]
    store = ParameterStore(specs, mesh)
    gone = weakref.ref(store)
    del store
    gc.collect()
    return gone() is None and len(optimizers._global_optimizer_post_hooks) == before


def test_a_store_goes_with_its_last_user(four: SharedRanks) -> None:
    assert all(four(kept_alive))
