"""Training of policies, and the search with one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.policy import FAMILY, cluster, joined, raw, task, untrained
from shardwise.answers import Options, curve, plan
from shardwise.cli import policy_families
from shardwise.cli.main import cli
from shardwise.cli.policy_families import FAMILIES, HELD_OUT, training_names
from shardwise.client.questions import options_document
from shardwise.cost.named_options import options_from_request
from shardwise.cost.options import quiet
from shardwise.errors import BadInput
from shardwise.hardware import load_hardware
from shardwise.policy.architecture import STANDARD, initial
from shardwise.policy.features import Inputs
from shardwise.policy.proposals import Proposals, proposer
from shardwise.policy.teaching import OPTIONS
from shardwise.policy.weights import read_policy, write_policy
from shardwise.search.fitting import search_fitting
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.search import Subject
from shardwise.search.watch import Watch

# Training.


def settings(**changes: Any) -> Any:
    from shardwise.policy.training import Settings

    small = Settings(STANDARD, seed=3, tasks=1, imitation=1, rounds=3, samples=3)
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
    """One round imitates and two reinforce: once in one go, once with a break between these."""
    whole = trained(tmp_path)
    assert read_policy(str(tmp_path / "w.npz")).description.rounds == 3
    trained(tmp_path, rounds=2)
    assert trained(tmp_path, resume=True) == whole
    with pytest.raises(BadInput, match="another training"):
        trained(tmp_path, seed=4, resume=True)


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
    short(own.search, own.improver, Watch(quiet, 0.3))
    assert short.report.rounds < 10**6 and short.report.tuning_s < 2.0


def test_a_plan_takes_a_policy(weights: str) -> None:
    hardware, bundle = cluster()
    options = replace(OPTIONS, micro_batches=(1,), policy=weights, time_limit_s=20.0)
    assert plan(FAMILY.graph, hardware, bundle, options=options).predicted.replayed_time_s > 0.0


def test_what_takes_no_policy_says_so(weights: str) -> None:
    options = Options(policy=weights, micro_batches=(1,))
    with pytest.raises(BadInput, match="a policy on devices of one kind"):
        plan(FAMILY.graph, load_hardware("l4"), 1, options=options)
    with pytest.raises(BadInput, match="a policy of another question"):
        curve(FAMILY.graph, load_hardware("heterog-8"), bundles=["usual"], options=options)
    assert proposer(Options()) is None


def test_a_policy_is_read_before_the_search(tmp_path: Path) -> None:
    hardware, bundle = cluster()
    with pytest.raises(BadInput, match="no such file"):
        plan(FAMILY.graph, hardware, bundle, options=Options(policy=str(tmp_path / "none.npz")))


def test_services_take_no_policy() -> None:
    with pytest.raises(BadInput, match="policy"):
        options_from_request({"policy": "/etc/passwd"})
    with pytest.raises(BadInput, match="cannot be sent to a server"):
        options_document(Options(policy="w.npz"))


@pytest.mark.torch
def test_an_evaluation_compares_both_searches() -> None:
    pytest.importorskip("torch")
    from shardwise.policy.evaluation import evaluate

    found = evaluate(untrained(), [FAMILY], clusters=2, seconds=1.0)
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
