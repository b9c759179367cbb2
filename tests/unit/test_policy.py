"""The learned strategy maker: what it sees, what it computes, its files, and the search with it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import GraphBuilder
from service.questions.search_options import options_from_request
from shardwise.advise import Options, curve, plan
from shardwise.cli import policy_families
from shardwise.cli.main import cli
from shardwise.cli.policy_families import FAMILIES, HELD_OUT, training_names
from shardwise.client.questions import options_document
from shardwise.cost.options import quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Bundle, Hardware, load_hardware
from shardwise.policy.architecture import PAPER, SIZES, STANDARD, initial, shapes
from shardwise.policy.arithmetic import NumpyArithmetic, Segments
from shardwise.policy.clusters import MOST_BLOCKS, MOST_GROUPS, random_cluster
from shardwise.policy.features import Inputs, inputs_of
from shardwise.policy.grouping import unit_of
from shardwise.policy.network import scores
from shardwise.policy.proposals import Proposals, proposer
from shardwise.policy.sampling import probabilities, sampled
from shardwise.policy.task import OUT_OF_MEMORY, Task
from shardwise.policy.teaching import OPTIONS, Family, Joined, bare_task, joined_of
from shardwise.policy.weights import (
    SCHEMA,
    Description,
    Policy,
    packed,
    read_policy,
    write_policy,
)
from shardwise.search.fitting import search_fitting
from shardwise.search.improve import Pool
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.mixed.search import limits_of
from shardwise.search.search import Subject
from shardwise.search.watch import Watch

NAMES = ["mlp"]


def deep_mlp(layers: int = 3, width: int = 256, batch: int = 48) -> Graph:
    builder = GraphBuilder("mlp")
    data = builder.input("x", batch, width)
    for n in range(layers):
        builder.parameter(f"w{n}", width, width)
        data = builder.linear(f"layers.{n}.linear", data, f"w{n}", f"h{n}")
        data = builder.relu(f"layers.{n}.relu", data, f"a{n}")
    return builder.graph()


FAMILY = Family("mlp", deep_mlp())


@cache
def joined(seed: int = 4) -> Joined:
    return joined_of(FAMILY, (seed,), OPTIONS)


@cache
def task(seed: int = 4) -> Task:
    return bare_task(joined(seed), STANDARD)


def described(rounds: int = 0, **changes: Any) -> Description:
    return msgspec.structs.replace(
        Description(SCHEMA, "standard", 0, rounds, NAMES, ["bert"]), **changes
    )


def untrained(seed: int = 0) -> Policy:
    return Policy(STANDARD, initial(STANDARD, seed), described())


def cluster(seed: int = 4) -> tuple[Hardware, Bundle]:
    return random_cluster(np.random.default_rng((seed,)))


# What units are.


def test_like_layers_are_one_unit() -> None:
    assert unit_of([3, 7, 3, 7, 9], [1.0] * 5, [], 10).tolist() == [0, 1, 0, 1, 2]


def test_without_classes_every_group_is_a_unit() -> None:
    assert unit_of([3, 3, 3], [1.0] * 3, [], 10, by_class=False).tolist() == [0, 1, 2]


def test_groups_join_the_centre_with_the_fewest_hops() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    seconds = [9.0, 1.0, 1.0, 1.0, 1.0, 8.0]
    units = unit_of(range(6), seconds, edges, 2, by_class=False)
    assert units.tolist() == [0, 0, 0, 1, 1, 1]


def test_of_equally_near_centres_the_longer_one_wins() -> None:
    units = unit_of(range(3), [1.0, 0.1, 2.0], [(0, 1), (1, 2)], 2, by_class=False)
    assert units.tolist() == [0, 1, 1]


def test_groups_apart_from_all_centres_join_the_longest() -> None:
    assert unit_of(range(3), [1.0, 0.1, 2.0], [], 1, by_class=False).tolist() == [0, 0, 0]


@given(st.integers(1, 30), st.integers(1, 12), st.randoms(use_true_random=False))
def test_units_are_numbered_without_gaps(count: int, most: int, random: Any) -> None:
    edges = [(random.randrange(i), i) for i in range(1, count)]
    seconds = [random.random() for _ in range(count)]
    units = unit_of(range(count), seconds, edges, most, by_class=False)
    assert set(units.tolist()) == set(range(min(count, most)))


# What the network computes.


def raw(draw: np.random.Generator, groups: int, places: int, actions: int) -> dict[str, Any]:
    """Returns random arguments of `Inputs.of`."""
    policy = shapes(STANDARD)
    units = max(groups // 2, 1)
    nodes = groups + places
    edges = [
        (int(a), int(b), int(draw.integers(1, 6)), float(draw.normal()), float(draw.normal()))
        for a, b in draw.integers(nodes, size=(3 * nodes, 2))
    ]
    weights = draw.random(places)
    return {
        "groups": draw.normal(size=(groups, policy["group.w"][0])),
        "places": draw.normal(size=(places, policy["place.w"][0])),
        "edges": edges,
        "unit": np.concatenate([np.arange(units), draw.integers(units, size=groups - units)]),
        "unit_features": draw.normal(size=(units, policy["unit.features"][0])),
        "actions": (
            draw.normal(size=(actions, places, policy["action.share.w"][0])),
            draw.normal(size=(actions, policy["action.w"][0])),
        ),
        "place_weights": weights / weights.sum(),
    }


def scored(arguments: dict[str, Any]) -> np.ndarray[Any, Any]:
    weights = initial(STANDARD, 3)
    found: np.ndarray[Any, Any] = scores(
        weights, Inputs.of(**arguments), STANDARD, NumpyArithmetic()
    )
    return found


def test_permuting_groups_changes_nothing() -> None:
    draw = np.random.default_rng(1)
    given = raw(draw, 11, 4, 9)
    order = draw.permutation(11)
    where = np.concatenate([np.argsort(order), np.arange(11, 15)])
    moved = given | {
        "groups": given["groups"][order],
        "unit": given["unit"][order],
        "edges": [(int(where[a]), int(where[b]), *rest) for a, b, *rest in given["edges"]],
    }
    assert scored(moved) == pytest.approx(scored(given), abs=1e-5)


def test_permuting_units_and_actions_permutes_scores() -> None:
    draw = np.random.default_rng(2)
    given = raw(draw, 11, 4, 9)
    units, actions = draw.permutation(5), draw.permutation(9)
    moved = given | {
        "unit": np.argsort(units)[given["unit"]],
        "unit_features": given["unit_features"][units],
        "actions": tuple(part[actions] for part in given["actions"]),
    }
    assert scored(moved) == pytest.approx(scored(given)[units][:, actions], abs=1e-5)


def test_permuting_places_changes_nothing() -> None:
    draw = np.random.default_rng(5)
    given = raw(draw, 11, 4, 9)
    order = draw.permutation(4)
    where = np.concatenate([np.arange(11), 11 + np.argsort(order)])
    moved = given | {
        "places": given["places"][order],
        "edges": [(int(where[a]), int(where[b]), *rest) for a, b, *rest in given["edges"]],
        "actions": (given["actions"][0][:, order], given["actions"][1]),
        "place_weights": given["place_weights"][order],
    }
    assert scored(moved) == pytest.approx(scored(given), abs=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
def test_numpy_equals_torch(size: str) -> None:
    torch = pytest.importorskip("torch")
    from shardwise.policy.torch_arithmetic import TorchArithmetic

    weights = initial(SIZES[size], 0)
    inputs = Inputs.of(**raw(np.random.default_rng(7), 30, 5, 40))
    ours = scores(weights, inputs, SIZES[size], NumpyArithmetic())
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    theirs = scores(tensors, inputs, SIZES[size], TorchArithmetic()).numpy()
    assert ours.dtype == theirs.dtype == np.float32
    assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    assert float(np.abs(ours).max()) > 1e-2


@pytest.mark.parametrize("seed", [4, 9, 11])
def test_one_policy_decides_for_any_number_of_devices_and_actions(seed: int) -> None:
    own = task(seed)
    shares = probabilities(untrained(), own.inputs)
    assert shares.shape == (own.units, len(own.actions.wishes))
    assert shares.sum(axis=1) == pytest.approx(1.0)


def test_the_clusters_of_these_tests_differ() -> None:
    assert len({len(task(seed).inputs.places) for seed in (4, 9, 11)}) > 1
    assert len({len(task(seed).actions.wishes) for seed in (4, 9, 11)}) > 1


def test_it_has_about_a_million_weights() -> None:
    assert sum(int(np.prod(shape)) for shape in shapes(STANDARD).values()) == pytest.approx(
        1e6, rel=0.25
    )
    assert (PAPER.attention_layers, PAPER.attention_heads, PAPER.layers) == (12, 8, 8)


def test_segments_must_ascend_and_have_no_gaps() -> None:
    for index in ([0, 2, 2], [1, 0, 2]):
        with pytest.raises(ValueError, match="ascend"):
            Segments.of(np.array(index), 3)


# What units may be told, and what it is worth.


def test_features_are_relative() -> None:
    """Twice the memory on every device changes no feature but what fits."""
    own, search = task(), joined().search
    limits = limits_of(search.problem, search.options)
    inputs, unit = inputs_of(search.problem, own.actions, 2.0 * limits, STANDARD)
    assert unit.tolist() == own.unit.tolist()
    assert inputs.shares == pytest.approx(own.inputs.shares, abs=1e-6)
    assert inputs.actions == pytest.approx(own.inputs.actions, abs=1e-6)
    assert np.isfinite(inputs.groups).all() and np.isfinite(inputs.edges).all()


def test_an_action_fits_its_own_strategy_best() -> None:
    own = task()
    for number in range(0, len(own.actions.wishes), 17):
        decisions = np.full((1, own.units), number)
        shares = own.fitting(own.choices(decisions)[0])
        assert (shares[:, number] == shares.max(axis=1)).all()
        assert shares.sum(axis=1) == pytest.approx(1.0)


def test_what_does_not_fit_is_rewarded_ten_times_worse() -> None:
    own = replace(task(), scale_s=2.0)
    limit = own.search.limit_bytes
    none = np.zeros((2, 0), dtype=np.uint32)
    pool = Pool(none, none, np.array([limit, 1.01 * limit]), np.array([8.0, 8.0]))
    assert own.rewards(pool).tolist() == pytest.approx([-2.0, -2.0 * OUT_OF_MEMORY])


def test_the_first_sample_is_the_likeliest_and_others_follow_the_shares() -> None:
    shares = np.array([[0.1, 0.9, 0.0], [0.5, 0.25, 0.25]])
    found = sampled(shares, 4000, np.random.default_rng(0))
    assert found.shape == (4001, 2) and found[0].tolist() == [1, 0]
    assert np.bincount(found[1:, 0], minlength=3) / 4000 == pytest.approx(shares[0], abs=0.03)
    assert np.bincount(found[1:, 1], minlength=3) / 4000 == pytest.approx(shares[1], abs=0.03)


def test_random_clusters_are_those_of_their_seed() -> None:
    for seed in range(40):
        (hardware, bundle), (other, _) = cluster(seed), cluster(seed)
        assert hardware.id == other.id
        assert 2 <= len(bundle.counts) <= MOST_GROUPS
        assert bundle.gpus <= 2 * MOST_BLOCKS


# Files.


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    before, path = untrained(2), tmp_path / "w.npz"
    write_policy(before, str(path))
    after = read_policy(str(path))
    assert after.description == before.description and path.stat().st_size < 4e6
    for name, array in before.weights.items():
        np.testing.assert_allclose(after.weights[name], array, rtol=1e-3, atol=1e-6)


def halves() -> dict[str, Any]:
    return {name: array.astype(np.float16) for name, array in untrained().weights.items()}


BROKEN = [
    ("schema", described(schema="shardwise.policy/2"), {}, "unknown schema 'shardwise.policy/2'"),
    ("size", described(size="huge"), {}, "unknown size 'huge'"),
    ("size", {"schema": SCHEMA}, {}, "missing"),
    ("extra", described(), {"extra": np.zeros(1, np.float16)}, "unknown array"),
    ("group.w", described(), {"group.w": np.zeros((2, 2), np.float16)}, r"shape \(2, 2\)"),
    ("group.b", described(), {"group.b": np.zeros(64, np.float32)}, "of float32"),
    ("group.b", described(), {"group.b": np.full(64, np.nan, np.float16)}, "not all finite"),
    ("group.b", described(), {"group.b": None}, "missing"),
]


@pytest.mark.parametrize(("field", "description", "changes", "match"), BROKEN)
def test_broken_files_are_refused(
    tmp_path: Path, field: str, description: Any, changes: dict[str, Any], match: str
) -> None:
    path = tmp_path / "w.npz"
    arrays = {name: one for name, one in (halves() | changes).items() if one is not None}
    path.write_bytes(packed(arrays, description))
    with pytest.raises(BadInput, match=match) as refused:
        read_policy(str(path))
    assert refused.value.field == field and refused.value.file == str(path)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a file was unpickled",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    out = io.BytesIO()
    np.savez(out, harmful=np.array([Harmful()], dtype=object))
    path.write_bytes(out.getvalue())
    with pytest.raises(BadInput, match=r"not an \.npz of numbers"):
        read_policy(str(path))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no zip", b"\x93NUMPY"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.npz"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"not an \.npz of numbers"):
        read_policy(str(path))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_policy("/nowhere/w.npz")


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, small = tmp_path / "w.npz", tmp_path / "small.npz"
    with path.open("wb") as out:
        out.truncate(16 * 2**20 + 1)
    np.savez_compressed(small, zeros=np.zeros(32 * 2**20, np.uint8))
    assert small.stat().st_size < 2**20
    for one in (path, small):
        with pytest.raises(BadInput, match="at most 16777216 bytes"):
            read_policy(str(one))


# Training.


def settings(**changes: Any) -> Any:
    from shardwise.policy.training import Settings

    small = Settings(STANDARD, seed=3, tasks=2, imitation=2, rounds=8, samples=3)
    return replace(small, **changes)


def trained(path: Path, **changes: Any) -> bytes:
    from shardwise.policy.training import train

    pytest.importorskip("torch")
    resume = changes.pop("resume", False)
    checkpoint = str(path / "c.npz")
    policy = train([FAMILY], ["bert"], settings(**changes), checkpoint=checkpoint, resume=resume)
    write_policy(policy, str(path / "w.npz"))
    return (path / "w.npz").read_bytes()


@pytest.mark.torch
def test_the_same_seed_gives_the_same_bytes_and_resumed_training_too(tmp_path: Path) -> None:
    whole = trained(tmp_path)
    assert trained(tmp_path) == whole
    for rounds in (1, 5):
        trained(tmp_path, rounds=rounds, resume=rounds > 1)
    assert trained(tmp_path, resume=True) == whole
    assert trained(tmp_path, seed=4) != whole
    with pytest.raises(BadInput, match="another training"):
        trained(tmp_path, resume=True)
    assert read_policy(str(tmp_path / "w.npz")).description.rounds == 8


@pytest.mark.torch
def test_a_training_learns_what_it_imitates() -> None:
    pytest.importorskip("torch")
    from shardwise.policy.learner import Learner
    from shardwise.policy.teaching import lesson_of

    own, lesson = task(), lesson_of(joined(), task())
    learner = Learner(initial(STANDARD, 0), STANDARD, 1e-3)
    losses = [learner.imitate(own.inputs, lesson.shares) for _ in range(60)]
    least = -(lesson.shares * np.log(np.maximum(lesson.shares, 1e-12))).sum(axis=1).mean()
    assert losses[-1] - least < 0.5 * (losses[0] - least)


@pytest.mark.torch
def test_reinforcement_prefers_what_is_rewarded() -> None:
    pytest.importorskip("torch")
    from shardwise.policy.learner import Learner

    inputs = Inputs.of(**raw(np.random.default_rng(3), 6, 3, 5))
    learner = Learner(initial(STANDARD, 0), STANDARD, 1e-3)
    before = learner.probabilities(inputs)[:, 2]
    decisions = np.array([[2] * len(before), [1] * len(before)])
    for _ in range(10):
        learner.reinforce(inputs, decisions, np.array([1.0, -1.0]), 0.0)
    assert (learner.probabilities(inputs)[:, 2] > before).all()


@pytest.mark.torch
def test_a_time_limit_ends_a_training_with_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from shardwise.policy.training import train

    path = str(tmp_path / "c.npz")
    policy = train([FAMILY], [], settings(rounds=10**6), checkpoint=path, time_limit_s=1.0)
    assert 0 < policy.description.rounds < 10**6
    assert Path(path).exists()


def test_without_torch_training_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwise.policy.training import train

    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(BadInput, match=r"shardwise\[torch\]"):
        train([FAMILY], [], settings())


@pytest.mark.torch
def test_the_pool_keeps_the_best() -> None:
    from shardwise.policy.reinforcing import MOST_GOOD, Standing

    own = task()
    standing = Standing.of(own, own.seeds())
    assert (np.diff(standing.rewards) <= 0.0).all()
    many = np.random.default_rng(0).integers(len(own.actions.wishes), size=(40, own.units))
    standing.join(many, own.rewards(own.replayed(many)))
    assert len(standing.good) == MOST_GOOD and (np.diff(standing.rewards) <= 0.0).all()
    assert len(np.unique(standing.good, axis=0)) == MOST_GOOD


def test_families_are_held_out_whole() -> None:
    names = training_names((), HELD_OUT)
    assert not {*names} & {*HELD_OUT} and {*names, *HELD_OUT} == {*FAMILIES}
    with pytest.raises(BadInput, match="unknown family 'gpt9'"):
        training_names((), ("gpt9",))


# The search with a policy.


@pytest.fixture
def weights(tmp_path: Path) -> str:
    write_policy(untrained(), str(tmp_path / "w.npz"))
    return str(tmp_path / "w.npz")


def test_an_answer_is_no_worse_than_any_proposal_or_incumbent(weights: str) -> None:
    hardware, bundle = cluster()
    options = replace(OPTIONS, micro_batches=(1,))
    proposals, own = Proposals(read_policy(weights), rounds=0), task()
    starts = [
        proposals(own.search, own.improver, Watch(quiet)),
        incumbents(own.search.problem),
    ]
    limit = own.search.limit_bytes
    best_s = min(own.improver.replayed(some).time_within(limit) for some in starts)
    found = search_fitting(Subject.of(FAMILY.graph), hardware, bundle, options, quiet, proposals)
    assert min(found[0].ranking_s[found[0].fits]) <= best_s
    assert 0.0 < proposals.report.inference_s < 2.0


@pytest.mark.torch
def test_tuning_to_a_problem_is_bounded_and_not_worse() -> None:
    pytest.importorskip("torch")
    own = task()
    one, two = (
        Proposals(untrained(), rounds=4, samples=8),
        Proposals(untrained(), rounds=4, samples=8),
    )
    found = one(own.search, own.improver, Watch(quiet))
    assert found.tolist() == two(own.search, own.improver, Watch(quiet)).tolist()
    assert one.report.rounds == 4
    assert one.report.tuned_time_s <= one.report.sampled_time_s
    short = Proposals(untrained(), rounds=10**6)
    short(own.search, own.improver, Watch(quiet, 1.0))
    assert short.report.rounds < 10**6 and short.report.tuning_s < 2.0


def test_a_plan_takes_a_policy(weights: str) -> None:
    hardware, bundle = cluster()
    options = replace(OPTIONS, micro_batches=(1,), policy=weights, time_limit_s=20.0)
    assert plan(FAMILY.graph, hardware, bundle, options=options).predicted.replayed_time_s > 0.0


def test_what_takes_no_policy_says_so(weights: str) -> None:
    options = Options(policy=weights, micro_batches=(1,))
    with pytest.raises(BadInput, match="several kinds only"):
        plan(FAMILY.graph, load_hardware("l4"), 1, options=options)
    with pytest.raises(BadInput, match="takes no policy"):
        curve(FAMILY.graph, load_hardware("l4"), max_gpus=1, options=options)
    assert proposer(Options(), 2) is None


def test_a_policy_is_read_before_the_search(tmp_path: Path) -> None:
    hardware, bundle = cluster()
    with pytest.raises(BadInput, match="no such file"):
        plan(FAMILY.graph, hardware, bundle, options=Options(policy=str(tmp_path / "none.npz")))


def test_services_take_no_policy() -> None:
    with pytest.raises(BadInput, match="policy"):
        options_from_request({"policy": "/etc/passwd"})
    with pytest.raises(BadInput, match="a file of this machine"):
        options_document(Options(policy="w.npz"))


@pytest.mark.torch
def test_an_evaluation_compares_both_searches() -> None:
    pytest.importorskip("torch")
    from shardwise.policy.evaluation import evaluate

    found = evaluate(untrained(), [FAMILY], clusters=2, seconds=2.0)
    assert found.policy_wins + found.search_wins + found.ties == len(found.cases) == 2
    for case in found.cases:
        assert case.search_time_s is not None and case.incumbent_time_s is not None
        assert case.search_time_s <= case.incumbent_time_s
        assert max(case.search_s, case.policy_s) < 6.0


@pytest.mark.torch
def test_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(
        policy_families, "families", lambda names: [replace(FAMILY, name=n) for n in names]
    )
    weights, checkpoint = str(tmp_path / "w.npz"), str(tmp_path / "c.npz")
    small = ["--tasks", "1", "--imitation", "1", "--samples", "2", "--family", "mlp", "--json"]
    train = ["policy", "train", "-o", weights, "--checkpoint", checkpoint, *small]
    run = CliRunner().invoke
    report = json.loads(run(cli, [*train, "--rounds", "2"], catch_exceptions=False).stdout)
    assert (report["rounds"], report["families"]) == (2, ["mlp"])
    report = json.loads(run(cli, [*train, "--rounds", "3", "--resume"]).stdout)
    assert report["rounds"] == 3 and report["held_out"] == list(HELD_OUT)
    evaluate = ["policy", "evaluate", weights, "--clusters", "1", "--seconds", "1"]
    with pytest.raises(BadInput, match="mlp: the policy was trained on it"):
        run(cli, [*evaluate, "--family", "mlp"], catch_exceptions=False)
    shown = run(cli, [*evaluate, "--family", "bert", "--quiet"], catch_exceptions=False).stdout
    assert "bert" in shown and "median ratio" in shown
