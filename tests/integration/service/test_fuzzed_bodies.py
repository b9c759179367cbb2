"""Mutated JSON, YAML and MCP bodies: whatever comes, the answer is in order (see `make soak`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("mcp")

from harness.fuzz.bodies import Drawn, drawn, what_is_wrong
from harness.service.service_harness import Service
from harness.tiers import examples

COUNT = examples(150, 2000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    free = dict.fromkeys(("rate_per_s", "anonymous_rate_per_s", "enrol_rate_per_s"), "0")
    started = Service(
        tmp_path_factory.mktemp("fuzzed"), solve_time_s="2", policy_wait_s="0.01", max_queued="5",
        **free,
    )  # fmt: skip
    yield started
    started.stop()


def test_the_same_generator_draws_the_same_bodies() -> None:
    def some() -> list[Drawn]:
        draw = random.Random(1)
        return [drawn(draw) for _ in range(200)]

    assert some() == some()
    assert Counter(one.kind for one in some()).keys() == {"JSON", "YAML", "MCP"}


def test_bodies_can_be_drawn_for_long_and_are_bounded() -> None:
    """Senders ended at a text without a line, and took all memory for a line of lines."""
    draw = random.Random(3)
    for _ in range(4000):
        assert len(drawn(draw).body) < 2**25


def test_what_is_wrong_with_an_answer() -> None:
    assert what_is_wrong(422, "the input is refused") is None
    assert what_is_wrong(503, "ask again") is None
    assert what_is_wrong(500, "") and what_is_wrong(200, "a defect of the service, please report")


def test_no_body_is_answered_with_a_defect(service: Service) -> None:
    draw = random.Random(20)
    wrong = []
    for _ in range(COUNT):
        one = drawn(draw)
        answer = service.client.post(one.path, content=one.body, headers=one.headers, timeout=60)
        if why := what_is_wrong(answer.status_code, answer.text):
            wrong.append((why, one, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))
    assert "shardwise_defects_total 0.0" in service.client.get("/metrics").text
