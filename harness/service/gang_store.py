"""A database with agents and launches, without a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select, update

from harness.service.fake_agent import inventory
from service.base.settings import Settings
from service.cluster.heartbeat import Heartbeat, HeldAssignment
from service.store.agents import heartbeat
from service.store.database import Database
from service.store.enrolment import Enrolled, enrol, make_token
from service.store.gang_sweep import place_all, sweep
from service.store.gangs import (
    ReportedState,
    Rules,
    claim,
    lock_agent,
    lock_launches,
    report_state,
    rules_of,
)
from service.store.keys import make_tenant
from service.store.launch_tables import Assignment, Launch
from service.store.launches import make_launch
from service.store.placement import place
from service.store.schema import migrate

RULES: Rules = rules_of(Settings(agent_lease_s=30.0, agent_heartbeat_s=5.0, claim_s=60.0))


class Store:
    """A database with a tenant, and short names for what is done to it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        migrate(database)
        with database.write() as session:
            make_tenant(session, "t")

    def do(self, act: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        with self.database.write() as session:
            return act(session, *arguments, **more)

    def agent(self, name: str = "a", slots: int = 2, **more: Any) -> str:
        token, _ = self.do(make_token, "t", name, 60.0)
        enrolled = self.do(
            enrol, token, None, name=name, inventory=inventory(slots, **more), lease_s=30.0,
            max_agents=1000,
        )  # fmt: skip
        assert isinstance(enrolled, Enrolled)
        return enrolled.agent_id

    def launch(self, agents: int | list[str] = 1, ranks: int = 1, **more: Any) -> str:
        request = {
            "kind": "run", "entry_point": "train", "arguments": [], "environment": {},
            "agents": agents, "ranks_per_agent": ranks, **more,
        }  # fmt: skip
        with self.database.write() as session:
            launch = make_launch(
                session, "t", request=request, plan=None, summary={}, graph_id=None,
                max_launches=1000, key_id=None, request_id="r",
            )  # fmt: skip
            return launch.id

    def place(self) -> list[str]:
        placed: list[str] = self.do(place, "t", RULES)
        return placed

    def claim(self, agent_id: str) -> Assignment | None:
        assignment: Assignment | None = self.do(claim, agent_id, RULES)
        return assignment

    def must_claim(self, agent_id: str) -> Assignment:
        assignment = self.claim(agent_id)
        assert assignment is not None
        return assignment

    def report_state(
        self, part: Assignment, state: str, token: str | None = None, why: str = ""
    ) -> Any:
        with self.database.write() as session:
            lock_agent(session, part.agent_id)
            launch = lock_launches(session, [part.launch_id])[part.launch_id]
            row = session.get_one(Assignment, part.id)
            state_report = ReportedState(state, why)
            return report_state(session, launch, row, token or str(part.token), state_report, RULES)

    def see(self, launch_id: str) -> Launch:
        with self.database.read() as session:
            return session.get_one(Launch, launch_id)

    def parts(self, launch_id: str) -> list[Assignment]:
        with self.database.read() as session:
            query = select(Assignment).where(Assignment.launch_id == launch_id)
            order = query.order_by(Assignment.attempt, Assignment.node_rank)
            return list(session.scalars(order))

    def states(self, launch_id: str) -> list[str]:
        return [part.state for part in self.parts(launch_id)]

    def set(self, table: Any, row_id: str, **values: Any) -> None:
        with self.database.write() as session:
            session.execute(update(table).where(table.id == row_id).values(**values))

    def sweep(self) -> None:
        sweep(self.database, RULES)

    def beat(self, agent_id: str, *held: Assignment, boot: str = "b1", **more: Any) -> list[str]:
        jobs = [HeldAssignment(part.id, str(part.token)) for part in held]
        beat = Heartbeat(boot, "h", jobs, more.get("draining", False), more.get("reason", ""), None)
        reply = self.do(heartbeat, agent_id, beat, RULES)
        assert reply is not None
        return list(reply[0])


def place_in_a_race(url: str, start: Any) -> None:
    """What one of several processes does that place launches at once; they begin together."""
    database = Database(url)
    start.wait(120)
    for _ in range(10):
        place_all(database, rules_of(Settings()))
    database.close()
