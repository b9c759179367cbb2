"""Random courses of launches: whatever happens in whatever order, the promises of ADR 0015 hold."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import select, update

from harness.service.gang_store import Store
from service.base.settings import Settings
from service.cluster.gangs import (
    ASSIGNMENT_ACTIVE,
    ASSIGNMENT_STATES,
    LAUNCH_ENDED,
    LAUNCH_STATES,
    REPORTED,
    launch_state,
    may_become,
)
from service.store.agents import set_drained
from service.store.database import Database
from service.store.gangs import rules_of
from service.store.launch_tables import Agent, Assignment, Launch
from service.store.launches import stop_launch
from service.store.schema import migrate

SLOTS = 3
AGENTS = 3
RULES = rules_of(Settings())


@cache
def migrated() -> bytes:
    """The file of a database without rows: a migration for each course takes longer than it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        database = Database(f"sqlite:///{path}")
        migrate(database)
        database.close()
        return path.read_bytes()


class Gangs(RuleBasedStateMachine):
    """Three agents of three slots, up to five launches, and everything that may befall them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "a.sqlite"
        path.write_bytes(migrated())
        self.store = Store(Database(f"sqlite:///{path}"))
        self.agents = [self.store.agent(f"n{i}", SLOTS) for i in range(AGENTS)]
        self.launches: list[str] = []
        self.claimed: list[Assignment] = []
        self.seen: dict[str, str] = {}

    def teardown(self) -> None:
        self.store.database.close()
        self.folder.cleanup()

    @precondition(lambda self: len(self.launches) < 5)
    @rule(agents=st.integers(1, AGENTS), ranks=st.integers(1, SLOTS))
    def ask(self, agents: int, ranks: int) -> None:
        self.launches.append(self.store.launch(agents, ranks))

    @rule()
    def place(self) -> None:
        self.store.place()

    @rule(which=st.integers(0, AGENTS - 1))
    def claim(self, which: int) -> None:
        part = self.store.claim(self.agents[which])
        if part is not None:
            self.claimed.append(part)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), state=st.sampled_from(REPORTED))
    def report(self, data: st.DataObject, state: str) -> None:
        part = data.draw(st.sampled_from(self.claimed))
        with self.store.database.read() as session:
            before = session.get_one(Assignment, part.id).state
        refused = self.store.report_state(part, state)
        with self.store.database.read() as session:
            after = session.get_one(Assignment, part.id).state
        assert after == (state if refused is None else before)
        assert refused is not None or before == state or may_become(before, state)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def let_a_lease_run_out(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(self.claimed))
        with self.store.database.write() as session:
            leased = (Assignment.id == part.id, Assignment.lease_expires_at.is_not(None))
            session.execute(update(Assignment).where(*leased).values(lease_expires_at=1.0))

    @rule(which=st.integers(0, AGENTS - 1), boot=st.sampled_from(["b1", "b2"]))
    def beat(self, which: int, boot: str) -> None:
        mine = [part for part in self.claimed if part.agent_id == self.agents[which]]
        stop = set(self.store.beat(self.agents[which], *mine, boot=boot))
        for part in mine:
            with self.store.database.read() as session:
                row = session.get_one(Assignment, part.id)
            still_held = row.state in ("assigned", "running") and row.token == part.token
            assert (part.id in stop) == (not still_held or row.stopping)

    @rule(which=st.integers(0, AGENTS - 1))
    def lose_an_agent(self, which: int) -> None:
        self.store.set(Agent, self.agents[which], lease_expires_at=1.0)

    @rule(which=st.integers(0, AGENTS - 1), drained=st.booleans())
    def drain(self, which: int, drained: bool) -> None:
        self.store.do(set_drained, "t", self.agents[which], drained, "", RULES)

    @precondition(lambda self: self.launches)
    @rule(data=st.data())
    def be_late(self, data: st.DataObject) -> None:
        launch = data.draw(st.sampled_from(self.launches))
        with self.store.database.write() as session:
            placed = (Launch.id == launch, Launch.placed_at.is_not(None))
            session.execute(update(Launch).where(*placed).values(placed_at=1.0))

    @precondition(lambda self: self.launches)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.store.do(stop_launch, "t", data.draw(st.sampled_from(self.launches)))

    @rule()
    def sweep(self) -> None:
        self.store.sweep()

    @invariant()
    def promises_are_kept(self) -> None:
        with self.store.database.read() as session:
            parts = list(session.scalars(select(Assignment)))
            launches = list(session.scalars(select(Launch)))
        for agent_id in self.agents:
            active = [p for p in parts if p.agent_id == agent_id and p.state in ASSIGNMENT_ACTIVE]
            assert sum(part.slots for part in active) <= SLOTS
        for launch in launches:
            mine = [part for part in parts if part.launch_id == launch.id]
            active = [part for part in mine if part.state in ASSIGNMENT_ACTIVE]
            current = [part for part in mine if part.attempt == launch.attempt]
            if launch.placed_at is not None:
                assert len(current) == launch.request["agents"], "all or none"
            assert len({part.attempt for part in active}) <= 1, "one gang at a time"
            assert launch.attempt <= RULES.max_placements
            if launch.state in LAUNCH_ENDED:
                assert not active and launch.ended_at is not None
                assert launch.state == (launch.ending or "done")
            if launch.state == "done":
                assert {part.state for part in current} == {"done"}
            elif launch.ending is not None and launch.state not in LAUNCH_ENDED:
                assert active and all(part.stopping for part in active)
            if launch.state == "running" and launch.ending is None:
                assert {part.state for part in current} <= {"running", "done"}
            before = self.seen.get(launch.id, "queued")
            assert before == launch.state or (
                before not in LAUNCH_ENDED
                and LAUNCH_STATES.index(launch.state) > LAUNCH_STATES.index(before)
            ), f"{before} became {launch.state}"
            self.seen[launch.id] = launch.state
        for part in parts:
            before = self.seen.get(part.id, "waiting")
            assert before == part.state or may_become(before, part.state)
            self.seen[part.id] = part.state


TestGangs = Gangs.TestCase
TestGangs.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def test_a_launchs_state_depends_on_its_parts_alone() -> None:
    """The pure function, for every set of parts: an end stays, nothing goes back."""
    subsets = [
        [state for i, state in enumerate(ASSIGNMENT_STATES) if bits & 1 << i]
        for bits in range(2 ** len(ASSIGNMENT_STATES))
    ]
    for before in LAUNCH_STATES:
        for ending in (None, "failed", "stopped", "lost"):
            for parts in subsets:
                after = launch_state(before, ending, parts)
                if before in LAUNCH_ENDED:
                    assert after == before
                    continue
                assert LAUNCH_STATES.index(after) >= LAUNCH_STATES.index(before)
                active = set(parts) & set(ASSIGNMENT_ACTIVE)
                assert after not in LAUNCH_ENDED or not active
                assert after not in ("failed", "stopped", "lost") or after == ending
                assert launch_state(after, ending, parts) == after, "settled"
