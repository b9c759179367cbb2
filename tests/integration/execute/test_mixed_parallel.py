"""`parallelize` with devices of several kinds: shares of the batch, the norm, checkpoints, servers,
what is absent, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.mixed import MixedStrategies, data_parallel  # noqa: E402
from harness.execute.remembered import capture_module, parallelize  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.cost.mixed.proportions import cut  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute.checkpoint import load, save  # noqa: E402
from shardwise.execute.communication import CommunicationClock  # noqa: E402
from shardwise.execute.parallel import ParallelModule, mesh_of  # noqa: E402
from shardwise.execute.parameters.norm import clip_grad_norm_  # noqa: E402
from shardwise.measure.slowed import Slowed  # noqa: E402

pytestmark = pytest.mark.torch
BATCH = 16
ADAM = {"lr": 1e-2, "eps": 1e-4}


def a_module() -> Any:
    """A user's module, with its loss, tied weights, running statistics and a buffer."""
    torch.manual_seed(3)

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(12, 20)
            self.norm = torch.nn.BatchNorm1d(20)
            self.second = torch.nn.Linear(20, 12)
            self.tied = torch.nn.Linear(12, 20)
            self.tied.weight = self.first.weight
            self.last = torch.nn.Linear(20, 8)
            self.register_buffer("scale", torch.full((20,), 0.5))

        def forward(self, features: Any, labels: Any) -> Any:
            x = torch.relu(self.norm(self.first(features))) * self.scale
            x = torch.tanh(self.tied(torch.relu(self.second(x))))
            return torch.nn.functional.cross_entropy(self.last(x), labels)

    return Net().double()


def a_batch() -> tuple[Any, Any]:
    """Features and labels."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 8, (BATCH,), generator=random)
    return torch.randn(BATCH, 12, generator=random, dtype=torch.float64), labels


@pytest.fixture(scope="module")
def strategies() -> MixedStrategies:
    """Random plans of the module; micro-batches would have running statistics of their own."""
    return MixedStrategies(capture_module(Model(a_module(), a_batch()), "net").graph, (1,))


def _trained(model: Any, optimizer: Any, clip: Any, steps: int, batch: Any = None) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*(batch or a_batch()))
        loss.backward()
        losses.append(float(loss.detach()))
        losses.append(float(clip(model)))
        optimizer.step()
    return losses


def _alone(steps: int) -> list[float]:
    module = a_module()
    optimizer = torch.optim.Adam(module.parameters(), **ADAM)

    def clip(module: Any) -> Any:
        return torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)

    return _trained(module, optimizer, clip, steps)


def _clip(model: Any) -> Any:
    return clip_grad_norm_(model.store, 0.1)


def _resumed(rank: int, plan: dict[str, Any], other: dict[str, Any], path: Path) -> list[float]:
    """Trains two steps by a plan, and two more by another from the checkpoint of the first."""
    model = parallelize(a_module(), a_batch(), plan)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    share, _ = model.share(*a_batch())
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in share)
    losses = _trained(model, optimizer, _clip, 2, share)
    model.sync_buffers()
    save(model, optimizer, path)
    model = parallelize(a_module(), a_batch(), other)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    load(model, optimizer, path)
    return losses + _trained(model, optimizer, _clip, 2)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.full) for n in range(4, 12))]
)
def test_a_checkpoint_is_trained_on_under_another_plan(
    four: SharedRanks, strategies: MixedStrategies, tmp_path: Path, seed: int
) -> None:
    # Single numbers under float32: the norm is summed in float32.
    wanted = pytest.approx(_alone(4), rel=1e-6)
    plan, other = strategies.plan(seed), strategies.plan(seed + 101)
    for losses in four(_resumed, plan, other, tmp_path / "state"):
        assert losses == wanted


def _rows(rank: int, plan: dict[str, Any]) -> tuple[int, int, int]:
    """This rank's rows of the batch, elements of parameters and elements of optimizer state."""
    model = parallelize(a_module(), a_batch(), plan)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    share, _ = model.share(*a_batch())
    _trained(model, optimizer, _clip, 1, share)
    state = sum(s["exp_avg"].numel() for s in optimizer.state.values())
    return share[0].shape[0], model.store.placement("last.weight").elements, state


def _uniform(
    strategies: MixedStrategies, bundle: int, proportion: int, **wanted: Any
) -> dict[str, Any]:
    """Returns the plan of data parallelism with one proportion, gradient sum and stage."""
    problem = strategies.problem(bundle)
    choices = data_parallel(problem, proportion, **wanted)
    return strategies.document(problem, choices, [0] * len(problem.edges), "uniform")


def _number(strategies: MixedStrategies, origin: str) -> tuple[int, list[int]]:
    """Returns the number and weights of a proportion of the second bundle."""
    proportions = strategies.problem(1).cluster.proportions
    number = next(n for n, p in enumerate(proportions) if p.origin == origin)
    return number, list(proportions[number].weights)


def test_ranks_load_their_shares_and_blocks_without_any_have_no_parameters(
    four: SharedRanks, strategies: MixedStrategies
) -> None:
    number, weights = _number(strategies, "proportional to peaks")
    rows = four(_rows, _uniform(strategies, 1, number))
    assert [n for n, _, _ in rows] == list(cut(BATCH, weights))
    number, weights = _number(strategies, "c alone")
    shares = four(_rows, _uniform(strategies, 1, number))
    assert weights == [0, 0, 1, 1]
    assert [n for n, _, _ in shares] == [0, 0, 8, 8]
    assert [n for _, n, _ in shares] == [0, 0, 160, 160]
    assert [bool(n) for _, _, n in shares] == [False, False, True, True]


def test_a_server_alone_has_the_state_and_uneven_shards_have_their_shares(
    four: SharedRanks, strategies: MixedStrategies
) -> None:
    cluster = strategies.problem(1).cluster
    sums = strategies.problem(1).context.mesh.gradient_sums
    names = [None if s is None else s.name for s in sums]
    server = names.index("server b")
    plan = _uniform(strategies, 1, 0, gradient_sum=server, zero=1)
    _, _, state = zip(*four(_rows, plan), strict=True)
    total = sum(p.numel() for p in a_module().parameters())
    assert state == (0, total, 0, 0)
    plan = _uniform(strategies, 1, 0, gradient_sum=server, zero=0)
    assert [n for _, _, n in four(_rows, plan)] == [total] * 4
    plan = _uniform(strategies, 1, 0, gradient_sum=names.index("by memory"), zero=2)
    _, _, state = zip(*four(_rows, plan), strict=True)
    weights = cluster.states[0].weights
    assert sum(state) == total
    for elements, weight in zip(state, weights, strict=True):
        assert elements == pytest.approx(total * weight / sum(weights), abs=8)


def _slowed(rank: int, plan: dict[str, Any], times: list[float]) -> list[float]:
    captured = capture_module(Model(a_module(), a_batch()), "net")
    checked = documents.read(plan, documents.Plan)
    slowed = Slowed(times[rank])
    model = ParallelModule(captured, checked, mesh_of(checked, rank), slowed=slowed)
    return _trained(model, torch.optim.Adam(model.parameters(), **ADAM), _clip, 3)


@pytest.mark.parametrize("seed", [0, 1])
def test_slowed_ranks_compute_the_same(
    four: SharedRanks, strategies: MixedStrategies, seed: int
) -> None:
    wanted = pytest.approx(_alone(3), rel=1e-6)
    for losses in four(_slowed, strategies.plan(seed), [1.0, 2.25, 1.0, 3.5]):
        assert losses == wanted


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts calls of operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _counted(rank: int, plan: dict[str, Any], times: float) -> tuple[Counter[str], dict[str, int]]:
    """Returns how often operators run in one step of a slowed rank, and collectives."""
    captured = capture_module(Model(a_module(), a_batch()), "net")
    checked = documents.read(plan, documents.Plan)
    slowed = Slowed(times)
    model = ParallelModule(captured, checked, mesh_of(checked, rank), slowed=slowed)
    with CommunicationClock(torch.device("cpu"), everyone=False) as clock, _Counting() as counting:
        model(*a_batch()).backward()
    slowed.active = False
    with _Counting() as plain:
        model(*a_batch()).backward()
    return counting.calls, {"tanh, not active": plain.calls["tanh"], **clock.calls}


def test_slowed_ranks_run_operators_so_many_times_and_send_as_much(
    four: SharedRanks, strategies: MixedStrategies
) -> None:
    number, _ = _number(strategies, "proportional to peaks")
    plan = _uniform(strategies, 1, number, zero=0)
    (slow, sent), (once, expected) = (four(_counted, plan, times)[0] for times in (3.0, 1.0))
    assert sent == expected and sent["all_reduce"] > 0
    for name in ("tanh", "tanh_backward", "threshold_backward"):
        assert slow[name] == 3 * once[name] > 0, name
    # Moments of a batch normalisation, inside which ranks sum: the same, without the sums.
    assert slow["rsqrt"] == 3 * once["rsqrt"] > 0


def _refusal(rank: int, plan: dict[str, Any]) -> str:
    try:
        parallelize(a_module(), a_batch(), plan)
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan["groups"][0].update(proportion=99), "no proportion 99"),
        (lambda plan: plan["groups"][0].update(gradient_sum="server x"), "by 'server x'"),
        (lambda plan: plan["cluster"]["proportions"][0].update(weights=[1, 1]), "4 blocks"),
        (lambda plan: plan["cluster"]["proportions"][0].update(weights=[0] * 4), "4 blocks"),
    ],
)
def test_what_does_not_fit_is_refused(
    four: SharedRanks, strategies: MixedStrategies, change: Any, said: str
) -> None:
    plan = strategies.plan(1)
    change(plan)
    for refusal in four(_refusal, plan):
        assert said in refusal
