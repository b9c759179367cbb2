"""Curves of parts: what is known is not computed again, and what is missing is named."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from harness.commands import shardwise
from harness.graph_builder import mlp
from shardwise import answers as advice
from shardwise.answers import Options, side_by_side
from shardwise.answers.count_limit import CountLimit, TooLong
from shardwise.answers.curve import STOPPED, compute_curve, curve_point, curve_question
from shardwise.answers.curve_assembly import computing_order
from shardwise.capture import load_graph
from shardwise.cli import processes
from shardwise.cost.options import quiet
from shardwise.documents import Curve
from shardwise.documents.curve import CurvePoint
from shardwise.errors import BadInput, Cancelled
from shardwise.hardware import load_hardware
from shardwise.search.search import Search
from shardwise.trainers.curve import curve_for

GRAPH, V100 = mlp(52), load_hardware("dgx-v100-16gb")
HETEROG = load_hardware("heterog-8")
QUICK = Options(micro_batches=(1,), time_limit_s=5.0)
BUNDLES = ("v100=2", "p100=1")


@pytest.fixture(scope="module")
def eight() -> Curve:
    return advice.curve(GRAPH, V100, 8)


def _document(curve: Curve) -> dict[str, object]:
    """A curve without its seconds, which no two computations share."""
    members: dict[str, object] = msgspec.to_builtins(replace(curve, search=Curve().search))
    return members


def _counter() -> tuple[list[object], Callable[[Curve], None]]:
    seen: list[object] = []

    def note(part: Curve) -> None:
        (point,) = part.points
        seen.append(point.bundle or point.gpus)

    return seen, note


def test_powers_of_two_come_first_and_then_the_counts_between() -> None:
    assert computing_order(range(1, 13)) == [1, 2, 4, 8, 12, 6, 10, 3, 5, 7, 9, 11]
    assert computing_order([24, 48, 64, 8]) == [8, 64, 48, 24]
    assert computing_order(["p100=1", "v100=2"]) == ["p100=1", "v100=2"]


def test_points_are_told_as_they_come_and_known_ones_are_not_computed_again(eight: Curve) -> None:
    seen, note = _counter()
    first = advice.curve(GRAPH, V100, 4, on_point=note)
    assert seen == [1, 2, 4, 3]
    again = advice.curve(GRAPH, V100, 8, known=[first], on_point=note)
    assert seen == [1, 2, 4, 3, 8, 6, 5, 7]
    assert _document(again) == _document(eight)


def test_devices_stay_idle_where_fewer_are_faster() -> None:
    """Of 7 GPUs that share 8 samples one stays idle, whether or not 7 were searched to the end."""
    graph, options = load_graph("gpt2:batch=8,seq=256"), Options(micro_batches=(1,))
    question = curve_question(graph, V100, counts=[4, 6, 7], options=options)
    six, seven = question.part(6).points[0], question.part(7).points[0]
    assert six.replayed_time_s is not None and seven.replayed_time_s is not None
    assert seven.replayed_time_s > six.replayed_time_s
    curve = compute_curve(question, quiet)
    assert [(point.best_gpus, point.idle) for point in curve.points] == [
        *((4, UNSET), (6, UNSET), (6, 1)),
    ]
    last = curve.points[-1]
    assert (last.plan_id, last.replayed_time_s) == (six.plan_id, six.replayed_time_s)
    assert last.speedup == curve.points[1].speedup
    apart = {place: question.part(place) for place in question.places}
    assert _document(question.assembled(apart)) == _document(curve)
    # What is known of 7 is known without the 6, and less need be found where they are known.
    alone = advice.curve(graph, V100, None, options, counts=[7], known=[curve])
    assert alone.points[0].idle == 1
    cut = question.part(7, cutoff_s=0.5 * six.replayed_time_s)
    assert not cut.points[0].feasible


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do not wait until a curve has taken long."""
    monkeypatch.setattr(side_by_side, "ALONE_S", 0.0)


@dataclasses.dataclass(frozen=True)
class Mortal:
    """A search of one count that kills each process but this one where it has 6 GPUs."""

    here: int

    def __call__(self, *asked: Any) -> tuple[CurvePoint, Search | None]:
        if os.getpid() != self.here and asked[2] == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return curve_point(*asked)


@pytest.mark.usefixtures("at_once")
def test_several_processes_find_the_same_curve(eight: Curve) -> None:
    """In whatever order they are done; points are told as they are known."""
    seen, note = _counter()
    curve = advice.curve(GRAPH, V100, 8, on_point=note, processes=2)
    assert _document(curve) == _document(eight)
    assert sorted(seen, key=str) == list(range(1, 9))
    _none_are_left()


@pytest.mark.parametrize("stages", [None, ()])
def test_processes_take_over_where_one_has_begun(
    monkeypatch: pytest.MonkeyPatch, stages: tuple[int, ...] | None
) -> None:
    """What this process knows of the graph by then need not be sendable."""
    question = curve_question(GRAPH, V100, 3, QUICK, stages=stages)
    expected = _document(compute_curve(question, quiet))
    monkeypatch.setattr(side_by_side, "ALONE_S", 1e-9)
    sent: list[object] = []
    begun = side_by_side.Parts._side_by_side

    def noted(self: side_by_side.Parts[Any, Any], places: Any, *others: Any) -> Any:
        sent.append(list(places))
        return begun(self, places, *others)

    monkeypatch.setattr(side_by_side.Parts, "_side_by_side", noted)
    times = iter([0.0, 0.0])
    monkeypatch.setattr(side_by_side, "monotonic", lambda: next(times, 1.0))
    question = curve_question(GRAPH, V100, 3, QUICK, stages=stages)
    assert _document(compute_curve(question, quiet, processes=2)) == expected
    assert sent == [[2, 3]]
    _none_are_left()


@pytest.mark.usefixtures("at_once")
def test_what_a_killed_process_leaves_is_computed_all_the_same(eight: Curve) -> None:
    question = curve_question(GRAPH, V100, 8)
    killed = dataclasses.replace(question, of_count=Mortal(os.getpid()))
    assert _document(compute_curve(killed, quiet, processes=2)) == _document(eight)


@pytest.mark.usefixtures("at_once")
def test_processes_end_with_a_curve_that_is_cancelled() -> None:
    known: list[Curve] = []
    curve = advice.curve(
        GRAPH, V100, 8, progress=lambda *_: len(known) < 3, on_point=known.append, processes=2
    )
    assert len(curve.points) >= 3 and curve.missing
    assert {one.reason for one in curve.missing} == {STOPPED}
    _none_are_left()


def _none_are_left() -> None:
    """Processes of other tests, which are forked, may be there."""
    deadline = time.monotonic() + 10.0
    while _spawned() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _spawned()


def _spawned() -> list[str]:
    names = (type(process).__name__ for process in multiprocessing.active_children())
    return [name for name in names if name == "SpawnProcess"]


def test_processes_are_as_many_as_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_AVPHYS_PAGES": 7 * processes.MEMORY_OF_PROCESS // 2, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert [processes.processes_for(threads) for threads in (0, 1, 2, 64)] == [3, 1, 2, 3]
    pages["SC_AVPHYS_PAGES"] = 1
    assert processes.processes_for(0) == 1


def test_devices_that_do_not_exist_are_not_idle() -> None:
    first, last = advice.curve(GRAPH, V100, counts=[1, 9999]).points
    assert first.feasible and not last.feasible
    assert last.idle is UNSET and "not 9999" in str(last.reason)


def test_a_curve_of_several_bundles_is_made_of_the_curves_of_each() -> None:
    def ask(*bundles: str, known: tuple[Curve, ...] = ()) -> Curve:
        return advice.curve(GRAPH, HETEROG, None, QUICK, bundles=bundles, known=known)

    seen, note = _counter()
    apart = tuple(ask(bundle) for bundle in BUNDLES)
    both = advice.curve(GRAPH, HETEROG, None, QUICK, bundles=BUNDLES, known=apart, on_point=note)
    assert not seen
    assert both.bundles == ["p100=1", "v100=2"]
    assert [point.bundle for point in both.points] == both.bundles
    assert all(point.speedup is UNSET for point in both.points)
    whole = ask(*BUNDLES)
    assert _document(both) == _document(whole)


def test_counts_alone_are_a_curve_too_and_say_which_they_are(eight: Curve) -> None:
    some = advice.curve(GRAPH, V100, counts=[8, 2, 4, 2], known=[eight])
    assert some.counts == [2, 4, 8]
    assert (some.max_gpus, some.speedup_from) == (8, 2)
    assert [point.gpus for point in some.points] == [2, 4, 8]
    first, _, last = some.points
    assert first.speedup == first.efficiency == 1.0
    assert last.speedup == pytest.approx(first.replayed_time_s / last.replayed_time_s)
    assert last.efficiency == pytest.approx(last.speedup / 4)
    assert all(point.label for point in some.points)


def test_a_curve_of_what_does_not_fit_is_the_same_in_parts() -> None:
    tight = Options(memory_limit_bytes=2**16)
    whole = advice.curve(GRAPH, V100, 6, tight)
    assert [(run.first, run.last) for run in whole.does_not_fit] == [(1, 2)]
    parts = [advice.curve(GRAPH, V100, counts=[gpus], options=tight) for gpus in range(1, 7)]
    assert _document(advice.curve(GRAPH, V100, 6, tight, known=parts)) == _document(whole)
    assert _document(advice.curve(GRAPH, V100, 6, tight, known=[whole])) == _document(whole)


def test_a_count_that_takes_too_long_is_missing_and_the_next_one_is_computed(
    eight: Curve,
) -> None:
    some = advice.curve(GRAPH, V100, counts=[2, 4, 64], known=[eight], count_limit_s=1e-9)
    assert [point.gpus for point in some.points] == [2, 4]
    (missing,) = some.missing or ()
    assert (missing.gpus, missing.reason) == (64, "more than 1e-09 s were needed")


def test_a_gap_in_a_curve_parts_the_ranges_that_do_not_fit() -> None:
    tight = Options(memory_limit_bytes=2**14)
    known = [advice.curve(GRAPH, V100, counts=[1, 3], options=tight)]
    some = advice.curve(GRAPH, V100, 3, tight, known=known, count_limit_s=1e-9)
    assert [(run.first, run.last) for run in some.does_not_fit] == [(1, 1), (3, 3)]


def test_a_limit_of_a_count_ends_its_search_but_no_cancellation() -> None:
    with pytest.raises(TooLong), CountLimit(lambda *_: True, 0.0) as limited:
        assert not limited("", 0.0)
    with pytest.raises(Cancelled), CountLimit(lambda *_: False, 60.0) as limited:
        assert not limited("", 0.0)
        raise Cancelled
    with CountLimit(lambda *_: True, 60.0) as limited:
        assert limited("", 0.0)


def test_a_curve_that_is_stopped_has_what_was_known(eight: Curve) -> None:
    seen, note = _counter()
    some = advice.curve(GRAPH, V100, 8, progress=lambda *_: len(seen) < 3, on_point=note)
    assert [point.gpus for point in some.points] == sorted(seen) == [1, 2, 4]
    assert {one.gpus: one.reason for one in some.missing or ()} == dict.fromkeys(
        (3, 5, 6, 7, 8), "stopped"
    )
    whole = advice.curve(GRAPH, V100, 8, known=[some])
    assert _document(whole) == _document(eight)


def test_a_trainer_has_a_curve_of_its_own_strategies(eight: Curve) -> None:
    torchtitan = curve_for(
        GRAPH, V100, counts=[2, 4], trainer="torchtitan", given=("framework", "kernels")
    )
    assert torchtitan.space == "torchtitan"
    for point in torchtitan.points:
        (any_kind,) = [other for other in eight.points if other.gpus == point.gpus]
        assert point.feasible
        assert point.replayed_time_s >= any_kind.replayed_time_s * 0.999
        assert "DP" in point.label or "FSDP" in point.label or "TP" in point.label


def test_what_a_curve_cannot_be_asked_is_refused(eight: Curve) -> None:
    def refused(text: str, *arguments: Any, **keywords: Any) -> None:
        with pytest.raises(BadInput, match=text):
            advice.curve(GRAPH, V100, *arguments, **keywords)

    refused("max_gpus 4 and counts", 4, counts=[2])
    refused("counts: 0 GPUs", counts=[0, 2])
    refused("max_gpus: missing")
    refused("a curve of another graph", 2, known=[replace(eight, graph="sha256:0")])


def test_the_command_takes_counts_and_a_space() -> None:
    done = shardwise(
        "curve", "shipped:vgg16", "--hardware", "dgx-v100-16gb", "--counts", "2,4",
        "--count-limit", "1e-9", "--micro-batches", "1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "not known: 2, 4: more than 1e-09 s were needed" in done.stdout
    done = shardwise(
        "curve", "shipped:vgg16", "--hardware", "dgx-v100-16gb", "--counts", "2,x",
    )  # fmt: skip
    assert done.returncode == 2
    assert "--counts: '2,x' names no numbers of GPUs" in done.stderr
