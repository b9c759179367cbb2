"""Parts of the service on their own: rates, caches, conditions, questions, traces."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from service.base.conditional import matches
from service.base.logs import JOB_ID, REQUEST_ID, context
from service.base.traces import current_parent, set_up_traces, span
from service.edge.cache import AnswerCache
from service.edge.rate import Buckets
from service.edge.watch_metrics import group_label
from service.questions.question import Limits, frontier_question
from service.questions.search_options import (
    options_document,
    options_from_document,
    options_from_query,
)
from service.store.pages import read_cursor, write_cursor
from service.store.results import Stored
from shardwise.answers import Options
from shardwise.cost.named_options import NAMES, options_from_request
from shardwise.documents import FrontierRequest
from shardwise.errors import BadInput
from shardwise.hardware import CollectiveTable, load_hardware

ROOT = Path(__file__).parents[3]


def test_buckets_run_dry_and_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("service.edge.rate.monotonic", lambda: clock[0])
    buckets = Buckets(rate_per_s=10.0, burst=3)
    assert [buckets.take("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take("a") == pytest.approx(0.1)
    assert buckets.take("b") == 0.0
    clock[0] += 0.1
    assert buckets.take("a") == 0.0
    assert Buckets(0.0, 1).take("a") == 0.0
    own = Buckets(0.0, 1)
    assert [own.take("c", 0.5) for _ in range(2)] == [0.0, pytest.approx(2.0)]


def test_the_cache_is_bounded_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("service.edge.cache.monotonic", lambda: clock[0])
    cache = AnswerCache(20_000)
    for number in range(6):
        cache.put(("t", b"%d" % number), Stored(b"x" * 3000, '"e"'))
    assert cache.get(("t", b"0")) is None
    assert cache.get(("t", b"5")) is not None
    cache.put(("t", b"large"), Stored(b"x" * 5000, '"e"'))
    assert cache.get(("t", b"large")) is None
    cache.put(("u", b"1"), Stored(b"x", '"e"'))
    cache.clear_tenant("t")
    assert cache.get(("t", b"5")) is None
    assert cache.get(("u", b"1")) is not None
    clock[0] = 6.0
    assert cache.get(("u", b"1")) is None


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        (None, False),
        ('"a"', True),
        ('W/"a"', True),
        ('"b", "a"', True),
        ("*", True),
        ('"b"', False),
    ],
)
def test_if_none_match(header: str | None, holds: bool) -> None:
    assert matches(header, '"a"') is holds


def test_cursors() -> None:
    place = (1.5, "sha256:ab")
    assert read_cursor(write_cursor(place)) == place
    for text in ("%", "e30", "W10", "WzEsMl0", "x" * 5, "é"):
        with pytest.raises(BadInput):
            read_cursor(text)


def test_new_options_pass_through() -> None:
    """By field name: an option that is added to the library exists over HTTP too."""
    here = {"policy", "threads", "assumed", "shard_units"}
    assert set(NAMES) == {f.name for f in dataclasses.fields(Options)} - here
    options = options_from_request({"epsilon": 0.5, "optimizer": "sgd"})
    assert options == Options(epsilon=0.5, optimizer="sgd")
    back = options_from_document(options_document(options), threads=3)
    assert back == dataclasses.replace(options, threads=3)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"overlap": False},
        {"recompute": "never"},
        {"recompute": None},
        {"micro_batches": [1, 4]},
        {"micro_batches": []},
        {"overlap": False, "recompute": "auto", "micro_batches": [2]},
    ],
)
def test_what_a_search_may_choose_travels_through_a_job(given: dict[str, Any]) -> None:
    """Left out, recomputation and micro-batches stay open: the search knows the batch."""
    options = options_from_request(given)
    expected = Options(**{**given, "micro_batches": tuple(given.get("micro_batches", ()))})
    assert options == expected
    stored = json.loads(json.dumps(options_document(options)))
    assert options_from_document(stored, threads=0) == expected


def test_rules_and_lists_over_http() -> None:
    rules = ["layers.*:zero=3,1", "m0!=batch"]
    asked = options_from_request({"pins": rules, "zero": [0, 3], "step": {"device": "cpu"}})
    assert asked.zero == (0, 3)
    assert [str(pin) for pin in asked.pins] == ["layers.*:zero=1,3", "*:m0!=batch"]
    document = json.loads(json.dumps(options_document(asked)))
    assert options_from_document(document, threads=0) == asked
    query = {"pins": rules, "zero": ["0,3"], "epsilon": ["9", "0.5"], "overlap": ["false"]}
    options = options_from_query(query)
    assert options == Options(zero=(0, 3), pins=asked.pins, epsilon=0.5, overlap=False)
    for wrong in ({"pins": ["x"]}, {"pins": "x=1"}, {"pins": [1]}):
        with pytest.raises(BadInput) as refused:
            options_from_request(wrong)
        assert refused.value.field == "options.pins"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"zero": [4]}, "options.zero"),
        ({"zero": []}, "options.zero"),
        ({"zero": "0"}, "options.zero"),
        ({"zero": [True]}, "options.zero"),
        ({"zero": 3}, "options.zero"),
        ({"micro_batches": [0]}, "options.micro_batches"),
        ({"micro_batches": list(range(1, 40))}, "options.micro_batches"),
        ({"micro_batches": [10**30]}, "options.micro_batches"),
        ({"max_configurations": 0}, "options.max_configurations"),
        ({"memory_headroom": 0.0}, "options.memory_headroom"),
        ({"recompute": "often"}, "options.recompute"),
        ({"overlap": 3}, "options.overlap"),
        ({"step": {"device": "abacus"}}, "options.step.device"),
        ({"step": []}, "options.step"),
        ({"pins": "zero=3"}, "options.pins"),
        ({"pins": ["x" * 501]}, "options.pins"),
    ],
)
def test_bad_choices_are_refused_by_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        options_from_request(values)
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)


def test_a_set_of_numbers_is_one_question_in_any_order() -> None:
    first, second = (
        options_document(options_from_request({"zero": zero, "micro_batches": [2, 1]}))
        for zero in ([3, 0], [0, 3, 3])
    )
    assert first == second
    assert (list(first["zero"]), list(first["micro_batches"])) == ([0, 3], [1, 2])
    step = options_from_query({"step": ['{"update":"fused"}']}).step
    assert step.update == "fused"


def test_log_records_name_the_request_and_the_job() -> None:
    assert context() == {}
    tokens = REQUEST_ID.set("r1"), JOB_ID.set("j1")
    try:
        assert context() == {"request_id": "r1", "job_id": "j1"}
    finally:
        REQUEST_ID.reset(tokens[0])
        JOB_ID.reset(tokens[1])


def test_without_an_exporter_a_span_only_hands_on_the_callers() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert current_parent() is None
    with span("GET /v1/graphs"):
        assert current_parent() is None
    with span("POST /v1/frontiers", {"traceparent": parent}, job="j1"):
        assert current_parent() == parent
    with span("POST /v1/frontiers", {"traceparent": "nonsense"}):
        assert current_parent() is None


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(BadInput, match=r"shardwise\[otel\]"):
        set_up_traces()


def test_the_content_id_is_the_questions() -> None:
    limits = Limits(64, 64)

    def content_id(gpus: int = 2, hardware: str = "l4", **options: Any) -> str:
        ask = FrontierRequest("g", hardware, gpus, options)
        return frontier_question(ask, "sha256:1", load_hardware(hardware), limits).content_id

    assert content_id() == content_id(epsilon=0.01), "defaults are written out"
    ids = [content_id(), content_id(3), content_id(hardware="l4*1"), content_id(epsilon=0.1)]
    assert len(set(ids)) == 4


def test_device_kinds_are_a_bounded_label() -> None:
    from prometheus_client import CollectorRegistry

    from service.cluster.measurements import Errors
    from service.edge.metrics import MOST_KINDS, AgentMetrics

    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    for number in range(3 * MOST_KINDS):
        metrics.observe(f"made-up {number}", Errors(iteration=-0.2))
    family = next(metric for metric in registry.collect() if "relative_error" in metric.name)
    kinds = {sample.labels["device_kind"] for sample in family.samples}
    assert len(kinds) == MOST_KINDS + 1 and "other" in kinds
    sums = [sample.value for sample in family.samples if sample.name.endswith("_sum")]
    assert min(sums) == pytest.approx(0.2)


def test_an_answer_is_kept_though_the_database_fails_afterwards() -> None:
    from service.base.store_failures import StoreUnavailable
    from service.edge.context import Result
    from service.edge.perform import afterwards

    done = []

    def away(state: Any) -> None:
        raise StoreUnavailable("gone")

    afterwards(None, Result(after=[away, done.append]))  # type: ignore[arg-type]
    assert done == [None]


def test_tables_of_collectives_have_labels_of_their_own() -> None:
    def table(nodes: int, ranks: int, **more: Any) -> CollectiveTable:
        consecutive = more.pop("consecutive", True)
        return CollectiveTable("all_reduce", nodes, ranks, consecutive, (1.0,), (1.0,), **more)

    tables = [
        table(1, 2),
        table(2, 4),
        table(2, 4, consecutive=False),
        table(8, 4, ranks_by_level=(4, 2, 4)),
        table(8, 4, ranks_by_level=(4, 4, 2)),
        table(3, 1, groups=("fast", "fast", "slow")),
        table(3, 1, groups=("fast", "slow", "slow")),
    ]
    labels = [group_label(one) for one in tables]
    assert labels == [
        "1x2", "2x4", "2x4 strided", "4x2x4", "2x4x4", "3x1 fast*2 slow", "3x1 fast slow*2"
    ]  # fmt: skip
