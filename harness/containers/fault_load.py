"""Questions that keep coming while faults happen; what became of each accepted job."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx

from harness.containers.fault_system import LEASE_S, FaultSystem
from harness.service.service_harness import wait_until
from service.store.ids import iso

OPEN = 3
LOOK_EVERY_S = 0.5
ENDS_WITHIN_S = 180.0
ENDED = ("done", "failed", "cancelled")
QUESTION = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 2}
End = tuple[str, str, int, str]
"""State, time of the end, attempts and the type of the error."""


@dataclass
class Load(threading.Thread):
    """Keeps `OPEN` jobs in flight until told to stop."""

    system: FaultSystem
    ends: dict[str, End] = field(default_factory=dict)
    """Each accepted job's end as it was first seen, by the job's id."""
    refused: Counter[str] = field(default_factory=Counter)
    ended_at: list[float] = field(default_factory=list)
    """When ends were seen, by the monotonic clock."""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._key = self.system.composed.key
        self._stopping = threading.Event()
        self._open: set[str] = set()
        self._asked = 0

    def __hash__(self) -> int:
        return id(self)

    @property
    def accepted(self) -> int:
        """How many jobs were accepted."""
        return len(self.ends) + len(self._open)

    def run(self) -> None:
        """Asks until told to stop and until each question that was asked has been accepted."""
        headers = {"Authorization": f"Bearer {self._key}"}
        base = f"http://127.0.0.1:{self.system.composed.service_port}"
        with httpx.Client(base_url=base, headers=headers, timeout=10.0) as client:
            while not self._stopping.wait(LOOK_EVERY_S):
                while len(self._open) < OPEN and not self._stopping.is_set():
                    self._asked += 1
                    self._ask(client, self._asked)
                self._look(client)
            wait_until(lambda: self._look(client), "all jobs have ended", ENDS_WITHIN_S)

    def finish(self) -> None:
        """Stops asking, and waits until all jobs have ended or had the time for it."""
        self._stopping.set()
        self.join()

    def _ask(self, client: httpx.Client, number: int) -> None:
        """Asks one question, as often as it takes, under one Idempotency-Key."""
        body = {**QUESTION, "options": {"epsilon": 0.01 + number * 1e-6}}
        once = {"Idempotency-Key": f"faults-{number}"}
        path = "/v1/frontiers"
        while (answer := self._call(client, "POST", path, json=body, headers=once)) is None:
            # The last question must be known to be accepted or not, so that none is doubled.
            threading.Event().wait(LOOK_EVERY_S)
        assert answer.status_code == 202, answer.text
        self._open.add(answer.json()["id"])

    def _look(self, client: httpx.Client) -> bool:
        for job in list(self._open):
            answer = self._call(client, "GET", f"/v1/jobs/{job}")
            if answer is not None and (end := _end(answer)):
                self.ends[job] = end
                self.ended_at.append(monotonic())
                self._open.discard(job)
        return not self._open

    def _call(
        self, client: httpx.Client, method: str, path: str, **keywords: Any
    ) -> httpx.Response | None:
        """Returns the answer; None if the service is away or refuses, which is counted."""
        try:
            answer = client.request(method, path, **keywords)
        except httpx.TransportError as error:
            self.refused[type(error).__name__] += 1
            return None
        if answer.status_code == 429 or answer.status_code >= 500:
            self.refused[str(answer.status_code)] += 1
            return None
        return answer

    def account(self) -> dict[str, Any]:
        """Returns what became of the jobs, by the service's answers then and the rows now.

        To be called after `finish`, on a system that is well.
        """
        threading.Event().wait(LEASE_S + 2)  # A slow worker would report until now.
        again = self._stored_ends()
        lost = self._open | {job for job in self.ends if again.get(job) is None}
        failed = Counter(end[3] for end in self.ends.values() if end[0] != "done")
        done = sum(end[0] == "done" for end in self.ends.values())
        ((rows, contents),) = self.system.sql(
            "SELECT count(*), count(DISTINCT content_id) FROM jobs"
        )
        ((results,),) = self.system.sql("SELECT count(*) FROM results")
        return {
            "accepted": self.accepted,
            "done": done,
            "failed": dict(failed),
            "attempts": dict(sorted(Counter(end[2] for end in self.ends.values()).items())),
            "refused_calls": dict(self.refused),
            "wrong": {
                "lost": len(lost),
                "ended twice": sum(
                    again.get(job) not in (None, end) for job, end in self.ends.items()
                ),
                "failed, but not as worker-lost": sum(
                    count for kind, count in failed.items() if not kind.endswith("worker-lost")
                ),
                "rows nobody was told of": max(0, int(rows) - self.accepted),
                "asked twice": int(rows) - int(contents),
                "answers without a job, or none": abs(int(results) - done),
            },
        }

    def _stored_ends(self) -> dict[str, End | None]:
        """Returns the end of each job in the database, by the job's id; None before its end."""
        rows = self.system.sql("SELECT id, state, ended_at, attempts, error->>'type' FROM jobs")
        return {
            job: (state, iso(float(at)) or "", int(attempts), kind) if state in ENDED else None
            for job, state, at, attempts, kind in rows
        }


def _end(answer: httpx.Response) -> End | None:
    if answer.status_code != 200:
        return None
    job = answer.json()
    if job["state"] not in ENDED:
        return None
    return job["state"], job["ended_at"], job["attempts"], (job["error"] or {}).get("type", "")
