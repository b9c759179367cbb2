"""Curves keep what they know: over killed workers, limits, and questions that overlap."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.answers import curve
from harness.service.curve_jobs import CurveJobs
from harness.service.service_harness import children, command_of, wait_until
from harness.service.steps import HARDWARE, mlp
from service.base.settings import Settings
from service.host.app import create_app
from service.questions.question import Question
from service.store.curve_answers import goes_on
from service.store.curve_points import MOST_LOST
from service.store.database import Database
from service.store.graphs import delete_graph
from service.store.retention import throw_away
from shardwise.hardware import load_hardware

SOLVER, WORKER = "solver", "worker"
LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"count_time_s": 1e-9}, "time-limit"),
    ({"solve_memory_bytes": 200 * 2**20}, "memory-limit"),
]


@pytest.fixture
def jobs(database: Database) -> CurveJobs:
    return CurveJobs(database)


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "search"}


def solver_pids_of(worker: int) -> list[int]:
    return [pid for pid in children(worker) if "worker.child" in command_of(pid)]


def _new_solver_of(worker: int, killed: list[int]) -> int | None:
    alive = [pid for pid in solver_pids_of(worker) if pid not in killed]
    return alive[0] if alive else None


def _knows_more_than(jobs: CurveJobs, question: Question, before: int) -> bool:
    return len(jobs.known(question)) > before


def test_a_curve_whose_workers_are_killed_computes_each_count_once(jobs: CurveJobs) -> None:
    """More kills than a job has attempts: each count that becomes known forgives those before."""
    jobs.quick["lease_s"] = 2.0
    question = jobs.question(40)
    job_id = jobs.ask(question)
    kept: dict[Any, bytes] = {}
    killed: list[int] = []
    for victim in (SOLVER, WORKER, SOLVER, WORKER):
        if victim == SOLVER:
            worker = jobs.start_worker()
        solver = wait_until(partial(_new_solver_of, worker.pid, killed), "a new solver")
        # What the solver before it made known may have been stored after it was killed.
        before = len(jobs.known(question))
        more = partial(_knows_more_than, jobs, question, before)
        wait_until(more, "the new solver has made another count known")
        killed.append(solver)
        os.kill(worker.pid if victim == WORKER else solver, signal.SIGKILL)
        found = jobs.known(question)
        assert kept.items() <= found.items(), "no count was computed twice"
        kept = found
        if victim == WORKER:
            worker.wait()
    assert len(kept) < 40
    wait_until(lambda: jobs.worker().solve_next() == "done", "the last worker has ended it")
    job, found = jobs.job(job_id), jobs.known(question)
    assert (job.state, job.attempts) == ("done", 5), job.error
    assert kept.items() <= found.items()
    assert len(found) == 40
    assert sum(jobs.attempts(question).values()) <= 40 + 4, "each kill costs one count"
    assert _timeless(jobs.answer(question)) == _timeless(curve(mlp(), load_hardware(HARDWARE), 40))


def test_questions_that_overlap_share_their_counts(jobs: CurveJobs) -> None:
    first, second = jobs.question(counts=[2, 4]), jobs.question(counts=[2, 4, 8])
    jobs.ask(first)
    solving = [threading.Thread(target=jobs.worker().solve_next)]
    solving[0].start()
    [solver] = wait_until(lambda: solver_pids_of(os.getpid()), "a solver has begun with 2 GPUs")
    os.kill(solver, signal.SIGSTOP)
    jobs.ask(second)
    solving.append(threading.Thread(target=jobs.worker().solve_next))
    solving[1].start()
    wait_until(lambda: jobs.known(second).keys() == {4, 8}, "the other has computed the rest")
    assert jobs.attempts(second)[2] == 1, "and leaves alone what is being computed"
    os.kill(solver, signal.SIGCONT)
    for thread in solving:
        thread.join()
    assert jobs.attempts(second) == {2: 1, 4: 1, 8: 1}
    points = {point["gpus"]: point["plan_id"] for point in jobs.answer(first)["points"]}
    for point in jobs.answer(second)["points"]:
        assert points.get(point["gpus"], point["plan_id"]) == point["plan_id"]
    third = jobs.question(counts=[4, 8])
    jobs.ask(third)
    assert jobs.worker().solve_next() == "done"
    assert [point["gpus"] for point in jobs.answer(third)["points"]] == [4, 8]
    assert set(jobs.attempts(third).values()) == {1}, "nothing was computed for it"


def _solve_until(
    jobs: CurveJobs, question: Question, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    """Has a worker compute the next job, whose solver stands still once two counts are known, until
    so much time has passed for the worker."""
    solving = threading.Thread(target=jobs.worker().solve_next)
    solving.start()
    wait_until(lambda: len(jobs.known(question)) >= 2, "two counts are known")
    for pid in solver_pids_of(os.getpid()):
        os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("worker.tasks.monotonic", lambda: monotonic() + 3600 * hours)
        solving.join()


def test_a_limit_of_the_job_ends_it_with_what_is_known(
    jobs: CurveJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = jobs.question(40)
    former = jobs.ask(question)
    _solve_until(jobs, question, monkeypatch, hours=1.0)
    assert jobs.job(former).state == "done"
    answer = jobs.answer(question)
    missing = {one["gpus"]: one["reason"] for one in answer["missing"]}
    known = [point["gpus"] for point in answer["points"]]
    assert known
    assert missing
    assert sorted((*known, *missing)) == list(range(1, 41))
    assert set(missing.values()) == {"more than 600 s were needed"}
    assert max(jobs.attempts(question).values()) == 1, "what was cut off may be begun again"
    with jobs.database.read() as session:
        assert goes_on(session, "t", question.document, jobs.stored(question).content)
    again = jobs.ask(question)
    assert again != former
    assert jobs.ask(question) == again, "there is one job of a question"
    assert jobs.job(former).state == "done"
    assert [p["gpus"] for p in (jobs.so_far(again) or {})["points"]] == known
    assert jobs.answer(question) == answer, "the question keeps its answer until there is a better"
    assert jobs.worker().solve_next() == "done"
    whole = jobs.answer(question)
    assert "missing" not in whole
    assert len(whole["points"]) == 40
    assert jobs.ask(question) == again, "a whole answer is final"
    assert jobs.answer_of(former) == answer


def test_a_count_that_takes_too_long_is_left_out_and_the_others_are_not(jobs: CurveJobs) -> None:
    question = jobs.question(counts=[1, 2])
    for attempt, (limit, slug) in enumerate(LIMITS, start=1):
        job_id = jobs.ask(question)
        assert jobs.worker(**limit).solve_next() == "failed"
        assert (jobs.job(job_id).error or {})["type"].endswith(slug)
        assert jobs.attempts(question) == {1: attempt, 2: attempt}, "one did not end the other"
    jobs.ask(question)
    assert jobs.worker().solve_next() == "done"
    assert 1 in jobs.known(question), "a curve of which nothing is known is tried again"
    jobs.fail_points(jobs.question(counts=[3]), [3], attempts=MOST_LOST)
    both = jobs.question(counts=[1, 3])
    jobs.ask(both)
    assert jobs.worker().solve_next() == "done"
    answer = jobs.answer(both)
    assert [point["gpus"] for point in answer["points"]] == [1]
    (missing,) = answer["missing"]
    assert missing["gpus"] == 3
    assert missing["reason"] == f"{MOST_LOST} workers ended while they computed it"
    first = jobs.ask(both)
    assert jobs.job(first).state == "done", "what was left out is not begun again"
    jobs.fail_points(jobs.question(counts=[4]), [4], attempts=MOST_LOST - 1)
    unlucky = jobs.question(counts=[1, 4])
    jobs.ask(unlucky)
    assert jobs.worker().solve_next() == "done"
    assert [point["gpus"] for point in jobs.answer(unlucky)["points"]] == [1, 4]


def test_a_curve_whose_workers_end_in_vain_ends_with_what_is_known(jobs: CurveJobs) -> None:
    known, whole = jobs.question(2), jobs.question(4)
    jobs.ask(known)
    assert jobs.worker().solve_next() == "done"
    job_id = jobs.ask(whole)
    jobs.use_attempts(job_id, 2)
    assert jobs.worker().solve_next() == "done"
    assert set(jobs.attempts(whole)) == {1, 2}, "the last attempt begins nothing"
    answer = jobs.answer(whole)
    assert [point["gpus"] for point in answer["points"]] == [1, 2]
    assert {one["reason"] for one in answer["missing"]} == {
        "2 workers ended before another count was known"
    }
    jobs.ask(whole)
    assert jobs.worker().solve_next() == "done"
    assert "missing" not in jobs.answer(whole)


def test_the_page_and_the_query_say_what_is_missing_and_go_on(
    database: Database, tmp_path: Path
) -> None:
    jobs = CurveJobs(database, tenant="local")
    whole = jobs.question(4)
    for question, attempts in ((jobs.question(2), 0), (whole, 2)):
        job_id = jobs.ask(question)
        jobs.use_attempts(job_id, attempts)
        assert jobs.worker().solve_next() == "done"
    url = database.url.render_as_string(hide_password=False)
    nowhere = "redis://127.0.0.1:1/0"
    settings = Settings(database_url=url, redis_url=nowhere, data_dir=str(tmp_path))
    query = {"graph": jobs.graph, "hardware": HARDWARE, "max_gpus": "4"}
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert "Not known: 3, 4 (2 workers ended" in client.get(f"/jobs/{job_id}").text
        jobs.ask(whole)
        going_on = client.get("/v1/curves", params=query)
        assert going_on.status_code == 202
        assert [point["gpus"] for point in going_on.json()["so_far"]["points"]] == [1, 2]
        page = client.get(f"/jobs/{going_on.json()['id']}").text
        assert '<span id="known">1, 2</span>' in page
        jobs.fail_points(jobs.question(counts=[3, 4]), [3, 4], attempts=MOST_LOST)
        assert jobs.worker().solve_next() == "done"
        for _ in range(2):
            final = client.get("/v1/curves", params=query)
            assert final.status_code == 200, "nothing is left to try"
            assert [one["gpus"] for one in final.json()["missing"]] == [3, 4]
        throw_away(database, settings)
        jobs.ask(whole)
        assert client.get("/v1/curves", params=query).status_code == 202, "it is not cached"


def test_a_worker_that_stops_uses_up_no_attempt_of_a_count(jobs: CurveJobs) -> None:
    question = jobs.question(1000)
    job_id = jobs.ask(question)
    worker = jobs.worker(stop_grace_s=0.0)
    solving = threading.Thread(target=worker.solve_next)
    solving.start()
    wait_until(lambda: jobs.known(question), "a count is known")
    worker.stopping.set()
    solving.join()
    assert jobs.job(job_id).state == "queued"
    attempts = jobs.attempts(question)
    assert {attempts[place] for place in jobs.known(question)} == {1}
    assert {attempts[place] for place in attempts.keys() - jobs.known(question).keys()} <= {0}


def test_a_cancelled_curve_leaves_no_mark_on_the_count_that_it_had_begun(jobs: CurveJobs) -> None:
    """Or the next question would compute it last."""
    question = jobs.question(40)
    job_id = jobs.ask(question)
    solving = threading.Thread(target=jobs.worker().solve_next)
    solving.start()
    [solver] = wait_until(lambda: solver_pids_of(os.getpid()), "a solver has begun")
    os.kill(solver, signal.SIGSTOP)
    jobs.cancel(job_id)
    solving.join()
    assert jobs.job(job_id).state == "cancelled"
    known = jobs.known(question)
    assert all(count == 0 for place, count in jobs.attempts(question).items() if place not in known)


def test_a_curve_is_cancelled_between_two_counts(jobs: CurveJobs) -> None:
    question = jobs.question(1000)
    job_id = jobs.ask(question)
    solving = threading.Thread(target=jobs.worker().solve_next)
    solving.start()
    wait_until(lambda: jobs.known(question), "a count is known")
    jobs.cancel(job_id)
    solving.join()
    assert jobs.job(job_id).state == "cancelled"
    assert jobs.known(question)


def test_points_are_deleted_by_age_by_size_and_with_their_graph(jobs: CurveJobs) -> None:
    question = jobs.question(4)
    jobs.ask(question)
    assert jobs.worker().solve_next() == "done"
    jobs.fail_points(jobs.question(counts=[9]), [9], attempts=MOST_LOST)
    throw_away(jobs.database, Settings())
    assert sorted(jobs.known(question)) == [1, 2, 3, 4]
    assert not jobs.attempts(jobs.question(counts=[9])), "it may be tried again"
    size = min(len(content) for content in jobs.known(question).values())
    whole = len(jobs.stored(question).content)
    throw_away(jobs.database, Settings(max_result_bytes=whole + 2 * size))
    assert len(jobs.known(question)) in (1, 2), "the oldest points go before answers"
    assert jobs.answer(question)
    with jobs.database.write() as session:
        delete_graph(session, "t", jobs.graph)
    assert not jobs.known(question)
