"""Gangs on both databases: placed once and whole or not at all, claimed, ended by any part."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from harness.commands import warm_context
from harness.service.gang_store import RULES, Store, place_in_a_race
from service.base.settings import Settings
from service.store.agents import find_agent, set_drained
from service.store.database import Database
from service.store.gang_sweep import place_all
from service.store.launch_logs import add_lines, read_lines
from service.store.launch_tables import Agent, Assignment, Launch
from service.store.launches import stop_launch
from service.store.retention import throw_away


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def running(store: Store, agents: int = 2) -> tuple[str, list[Assignment]]:
    """A launch whose gang runs, and its parts by rank."""
    ids = [store.agent(f"n{i}") for i in range(agents)]
    launch = store.launch(ids, 2)
    store.place()
    parts = [store.must_claim(agent_id) for agent_id in ids]
    assert store.see(launch).state == "starting"
    for part in parts:
        assert store.report_state(part, "running") is None
    assert store.see(launch).state == "running"
    return launch, parts


def test_all_or_none_and_the_reason(store: Store) -> None:
    store.agent("a", 2)
    launch = store.launch(2, 2)
    assert store.place() == []
    assert store.see(launch).state == "queued"
    assert store.see(launch).reason == "needs 2 agents with 2 free slots each: 1 of 1 can"
    drained, small = store.agent("b", 2), store.agent("c", 1)
    store.do(set_drained, "t", drained, True, "new drivers", RULES)
    assert store.place() == []
    assert "1 of 3 can (1 drained, 1 too small)" in store.see(launch).reason
    store.do(set_drained, "t", drained, False, "", RULES)
    given = store.place()
    assert len(given) == 2 and small not in given
    assert store.states(launch) == ["waiting", "waiting"]
    assert store.see(launch).rendezvous_host == "10.1.1.7"
    assert 29400 <= (store.see(launch).rendezvous_port or 0) <= 29999


def test_entry_point_and_devices_must_match(store: Store) -> None:
    gpu = {"index": 0, "kind": "NVIDIA H200", "memory_bytes": 1e11}
    used = {**gpu, "index": 1, "used_by_others": True}
    store.agent("cpu", 4)
    with_gpu = store.agent("gpu", 4, devices=[gpu, used], cpu_only=False)
    nowhere = store.launch(1, 1, entry_point="their-script")
    two = store.launch(1, 2, device_kind="h200")
    one = store.launch(1, 1, device_kind="h200")
    assert store.place() == [with_gpu]
    assert "2 without the entry point" in store.see(nowhere).reason
    assert "2 without the devices" in store.see(two).reason
    assert store.states(one) == ["waiting"]


def test_named_agents_keep_their_order(store: Store) -> None:
    ids = [store.agent(name) for name in ("x", "y", "z")]
    launch = store.launch([ids[2], ids[0]], 1)
    store.place()
    assert [part.agent_id for part in store.parts(launch)] == [ids[2], ids[0]]


def test_two_processes_never_give_one_slot_away_twice(store: Store) -> None:
    agents = [store.agent(f"n{i}", 3) for i in range(3)]
    launches = [store.launch(1 + i % 2, 1 + i % 3) for i in range(24)]
    url = store.database.url.render_as_string(hide_password=False)
    context = warm_context()
    start = context.Barrier(2)
    racers = [context.Process(target=place_in_a_race, args=(url, start)) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0, 0]
    with store.database.read() as session:
        slots = select(Assignment.agent_id, func.sum(Assignment.slots).label("slots"))
        rows = session.execute(slots.group_by(Assignment.agent_id)).all()
    used = {row.agent_id: int(row.slots) for row in rows}
    assert all(used.get(agent_id, 0) <= 3 for agent_id in agents)
    assert sum(used.values()) == 9, "every slot is given away"
    for launch_id in launches:
        parts = store.parts(launch_id)
        placed = store.see(launch_id).placed_at is not None
        assert len(parts) == (store.see(launch_id).request["agents"] if placed else 0)


def test_of_many_concurrent_placements_one_succeeds(store: Store) -> None:
    agent = store.agent("a", 5)
    launches = [store.launch() for _ in range(12)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: place_all(store.database, RULES), range(8)))
    assert sum(len(store.parts(launch_id)) for launch_id in launches) == 5
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: store.claim(agent), range(8)))
    ids = [part.id for part in claimed if part is not None]
    assert len(ids) == len(set(ids)) == 5


def test_a_launch_runs_to_its_end(store: Store) -> None:
    launch, parts = running(store)
    assert [part.node_rank for part in parts] == [0, 1]
    assert store.report_state(parts[0], "done") is None
    assert store.see(launch).state == "running"
    assert store.report_state(parts[1], "done") is None
    seen = store.see(launch)
    assert (seen.state, seen.reason) == ("done", "")
    assert seen.started_at is not None and seen.ended_at is not None


def test_agents_that_end_at_once_end_the_launch(store: Store) -> None:
    """Each would see the other still running, were the launch not locked."""
    for _ in range(5):
        launch, parts = running(store, 4)
        with ThreadPoolExecutor(4) as pool:
            assert (
                list(pool.map(lambda part: store.report_state(part, "done"), parts)) == [None] * 4
            )
        assert store.see(launch).state == "done"


def test_one_that_fails_stops_the_others(store: Store) -> None:
    launch, parts = running(store)
    assert store.report_state(parts[1], "failed", why="exit code 3") is None
    seen = store.see(launch)
    assert (seen.state, seen.ending) == ("running", "failed")
    assert seen.reason == "agent n1: failed: exit code 3"
    assert store.beat(parts[0].agent_id, parts[0]) == [parts[0].id], "it is told to stop"
    assert store.report_state(parts[0], "stopped") is None
    assert store.see(launch).state == "failed"
    assert store.see(launch).reason == "agent n1: failed: exit code 3"


def test_only_forward_and_only_under_the_token(store: Store) -> None:
    launch, (part, _) = running(store)
    assert store.report_state(part, "done", token="0" * 32) == "the token is not the assignment's"
    assert store.report_state(part, "running") is None, "a repeat"
    assert store.report_state(part, "done") is None
    assert store.report_state(part, "running") == "the assignment has ended: done"
    assert store.report_state(part, "failed") == "the assignment has ended: done"
    assert store.report_state(part, "done") is None
    assert store.states(launch) == ["done", "running"]


def test_an_expired_lease_loses_the_launch(store: Store) -> None:
    launch, parts = running(store)
    store.beat(parts[1].agent_id, parts[1])
    store.set(Assignment, parts[0].id, lease_expires_at=1.0)
    store.sweep()
    assert store.states(launch) == ["lost", "running"]
    assert store.see(launch).ending == "lost"
    assert store.report_state(parts[0], "done") == "the assignment has ended: lost"
    assert store.beat(parts[0].agent_id, parts[0]) == [parts[0].id], "stale: to be stopped"
    assert store.beat(parts[1].agent_id, parts[1]) == [parts[1].id]
    store.report_state(parts[1], "stopped")
    seen = store.see(launch)
    assert (seen.state, seen.reason) == ("lost", "agent n0: lost: its lease ran out")


def test_a_lost_agent_takes_its_jobs_along(store: Store) -> None:
    launch, parts = running(store)
    store.set(Agent, parts[0].agent_id, lease_expires_at=1.0)
    with store.database.read() as session:
        assert find_agent(session, "t", parts[0].agent_id).state == "lost", "before any sweep"
    store.sweep()
    assert store.states(launch) == ["lost", "running"]
    store.beat(parts[0].agent_id)
    with store.database.read() as session:
        assert find_agent(session, "t", parts[0].agent_id).state == "live", "it is back"


def test_a_restarted_agent_has_lost_what_it_does_not_list(store: Store) -> None:
    launch, parts = running(store)
    agent = parts[0].agent_id
    assert store.beat(agent, parts[0]) == []
    assert store.beat(agent, parts[0], boot="b2") == [], "it kept the job over its restart"
    assert store.states(launch) == ["running", "running"]
    assert store.beat(agent, boot="b3") == []
    assert store.states(launch) == ["lost", "running"]


def test_a_restarted_agent_says_why_its_job_is_lost(store: Store) -> None:
    """Its first heartbeat lists what it will report as lost, so that the reason is its own."""
    launch, parts = running(store)
    agent = parts[0].agent_id
    store.beat(agent, parts[0])
    assert store.beat(agent, parts[0], boot="b2") == []
    assert store.report_state(parts[0], "lost", why="the agent was killed") is None
    assert store.report_state(parts[0], "lost", why="once more") is None
    assert store.report_state(parts[0], "done") == "the assignment has ended: lost"
    assert store.parts(launch)[0].reason == "the agent was killed"
    seen = store.see(launch)
    assert (seen.ending, seen.reason) == ("lost", "agent n0: lost: the agent was killed")
    assert parts[1].id in store.beat(parts[1].agent_id, parts[1])
    store.report_state(parts[1], "stopped")
    assert store.see(launch).state == "lost"


def test_a_gang_that_is_not_claimed_in_time_is_put_back(store: Store) -> None:
    first, second = store.agent("n0"), store.agent("n1")
    launch = store.launch(2, 2)
    for attempt in range(1, RULES.max_placements + 1):
        store.place()
        assert store.see(launch).attempt == attempt
        part = store.must_claim(first)
        assert store.see(launch).state == "queued"
        store.set(Launch, launch, placed_at=1.0)
        store.sweep()
        assert store.see(launch).placed_at is None
        if attempt < RULES.max_placements:
            assert store.see(launch).reason == "its last placement is being stopped"
            assert store.place() == [], "one gang of a launch runs at a time"
            assert store.see(launch).state == "queued"
        assert store.beat(first, part) == [part.id]
        assert store.claim(second) is None
        store.report_state(part, "stopped")
    seen = store.see(launch)
    assert seen.state == "failed"
    assert seen.reason == "placed 3 times, at last not claimed in time by n1"


def test_an_agent_lost_before_the_start_costs_a_placement_only(store: Store) -> None:
    first, _ = store.agent("n0"), store.agent("n1")
    spare = store.agent("n2")
    store.do(set_drained, "t", spare, True, "", RULES)
    launch = store.launch(2, 2)
    store.place()
    store.do(set_drained, "t", spare, False, "", RULES)
    store.set(Agent, first, lease_expires_at=1.0)
    store.sweep()
    seen = store.see(launch)
    assert (seen.state, seen.attempt) == ("queued", 2)
    assert {part.agent_id for part in store.parts(launch) if part.state == "waiting"} == {
        part.agent_id for part in store.parts(launch) if part.agent_id != first
    }


def test_a_drained_agent_gives_back_what_it_has_not_claimed(store: Store) -> None:
    only = store.agent("n0")
    launch = store.launch(1, 1)
    store.place()
    store.beat(only, draining=True, reason="a job that will not die")
    assert store.claim(only) is None
    assert store.see(launch).placed_at is None
    store.place()
    assert "1 drained" in store.see(launch).reason
    store.beat(only)
    store.place()
    assert store.claim(only) is not None


def test_what_was_never_heard_of_is_handed_out_again(store: Store) -> None:
    """The answer may have been lost with the service, or on its way."""
    agent = store.agent()
    launch = store.launch()
    store.place()
    lost = store.must_claim(agent)
    assert store.claim(agent) is None, "not at once: it may be on its way"
    store.set(Assignment, lost.id, claimed_at=1.0)
    again = store.must_claim(agent)
    assert again.id == lost.id
    assert store.beat(agent, lost) == [], "an agent that has it all the same goes on"
    assert (
        store.report_state(again, "running", token="0" * 32) == "the token is not the assignment's"
    )
    assert store.report_state(again, "running", token=lost.token) is None
    store.set(Assignment, lost.id, claimed_at=1.0)
    assert store.claim(agent) is None, "it has been heard of"
    assert store.states(launch) == ["running"]


def test_a_launch_has_its_time(store: Store) -> None:
    launch, parts = running(store)
    store.set(Launch, launch, time_limit_s=60.0)
    store.sweep()
    assert store.see(launch).ending is None
    store.set(Launch, launch, started_at=1.0)
    store.sweep()
    assert store.see(launch).ending == "failed"
    for part in parts:
        store.report_state(part, "stopped")
    assert store.see(launch).reason == "more than its 60 s"


def test_stopping(store: Store) -> None:
    waits = store.launch(1, 1)
    store.do(stop_launch, "t", waits)
    assert store.see(waits).state == "stopped"
    launch, parts = running(store)
    store.do(stop_launch, "t", launch)
    assert store.see(launch).state == "running", "until its agents have said so"
    for part in parts:
        assert store.beat(part.agent_id, part) == [part.id]
        store.report_state(part, "done" if part.node_rank else "stopped")
    assert store.see(launch).state == "stopped"
    store.do(stop_launch, "t", launch)
    assert store.see(launch).reason == "asked for"


def test_leases_are_the_databases_matter(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, _ = running(store)
    monkeypatch.setattr("time.time", lambda: 4e9)
    store.sweep()
    assert store.see(launch).state == "running"


def test_old_output_is_thrown_away(store: Store) -> None:
    launch, parts = running(store)
    words = {"rank": 0, "stream": "stdout", "first_line": 1, "dropped": 0}
    bounds = {"max_lines": 10, "max_bytes": 1000}
    store.do(add_lines, launch, lines=["a", "b"], **words, **bounds)
    throw_away(store.database, Settings(launch_s=0))
    with store.database.read() as session:
        assert len(read_lines(session, store.see(launch), 0, None, 10)["lines"]) == 2
    for part in parts:
        store.report_state(part, "done")
    store.set(Launch, launch, ended_at=1.0)
    throw_away(store.database, Settings(launch_s=0))
    with store.database.read() as session:
        assert read_lines(session, store.see(launch), 0, None, 10)["lines"] == []
