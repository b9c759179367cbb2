"""What a SkyPilot task asks, and what its YAML may not do to the service."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.base.settings import Settings
from service.base.yaml_text import dump_mapping, read_mapping
from service.questions.ingest import LARGE_TASK, reader
from service.questions.ingest_process import Reading
from service.questions.skypilot_task import Asked, UserRequest, asked, changed
from shardwise.errors import ShardwiseError
from shardwise.schedulers.counts import Count

TASK: dict[str, Any] = {
    "envs": {"SHARDWISE_GRAPH": "shipped:gpt2", "SHARDWISE_STEPS": 10, "WHEN": "1:30"},
    "resources": {"disk_size": 300, "use_spot": True},
    "run": "echo hi",
}
BOMB = "x0: &x0 [1, 1]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def ask(task: str) -> Asked | None:
    return asked(UserRequest(task), read_mapping)


def refusal(task: str) -> str:
    with pytest.raises(ShardwiseError) as refused:
        asked(UserRequest(task), reader(Settings(), Reading()))
    return str(refused.value)


def test_a_task_is_kept_but_for_its_resources() -> None:
    found = ask(yaml.safe_dump(TASK))
    assert found is not None
    assert (found.graph, found.steps) == ("shipped:gpt2", 10)
    again = yaml.safe_load(changed(found, "H100", Count(8, 2, 1.0)))
    assert again["envs"] == TASK["envs"]
    assert again["num_nodes"] == 2
    assert again["resources"]["disk_size"] == 300
    assert again["resources"]["use_spot"] is True


def test_a_value_that_is_a_structure_is_refused_unprinted() -> None:
    for value, kind in (([1] * 1000, "a list"), ({"a": {"b": 1}}, "a mapping")):
        said = refusal(yaml.safe_dump({"envs": {"SHARDWISE_GRAPH": value}}))
        assert f"task.envs.SHARDWISE_GRAPH: {kind}" in said
        assert len(said) < 200
    assert "at most 500" in refusal(yaml.safe_dump({"envs": {"SHARDWISE_GRAPH": "g" * 5000}}))


def test_a_short_text_that_means_a_large_value_is_refused() -> None:
    assert len(BOMB) < 500
    assert "an alias" in refusal(f"{BOMB}envs: {{SHARDWISE_GRAPH: *x8}}")


@pytest.mark.parametrize("digits", [30, 4301, 20_000])
def test_numbers_of_many_digits_are_refused(digits: int) -> None:
    said = refusal(f"envs: {{SHARDWISE_GRAPH: {'9' * digits}}}")
    assert "digits" in said
    assert len(said) < 200


def test_a_large_task_is_read_by_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    task = {**TASK, "run": "x" * LARGE_TASK, "list": [1, 2.5, None, {"a": 2**64 - 1, 7: True}]}
    text = yaml.safe_dump(task, width=10**6)
    read_by: list[dict[str, Any]] = []
    real = Reading.read

    def read(self: Reading, body: bytes, request: dict[str, Any], settings: Settings) -> bytes:
        read_by.append(request)
        return real(self, body, request, settings)

    monkeypatch.setattr(Reading, "read", read)
    found = asked(UserRequest(text), reader(Settings(), Reading()))
    assert found is not None
    assert found.task == task
    assert [request["kind"] for request in read_by] == ["yaml"]
    assert "a second document" in refusal(text + "\n---\nb: 1\n")
    assert yaml.safe_load(dump_mapping(found.task)) == task
