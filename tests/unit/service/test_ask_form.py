"""The form that asks: stored questions fill it in, and it asks them again."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from service.page.forms import (
    NOT_ASKED,
    OPTION_FIELDS,
    hours_text,
    options_of,
    question_body,
    seconds_of,
)
from service.page.price_fields import with_groups
from service.page.render import environment
from service.page.views.ask import DEFAULTS, KINDS
from service.page.views.job_rows import choices, form_address
from service.questions.search_options import options_document
from service.store.summaries import hardware_summary
from shardwise.answers import OBJECTIVES, Options
from shardwise.answers.order import ORDERS
from shardwise.cost.named_options import NAMES, options_from_request
from shardwise.cost.options import MOMENTS, RECOMPUTE, ZERO_STAGES
from shardwise.cost.software import FRAMEWORKS, KERNELS
from shardwise.errors import BadInput
from shardwise.hardware import group_prices, load_hardware, read_offers
from shardwise.pipeline.asked import ANY
from shardwise.sharding.precision import PRECISIONS
from shardwise.trainers.spaces import SPACES

NOWHERE: dict[str, Any] = {
    "nonce": "", "path": "/", "administers": [], "signed_in": False, "person": None,
    "problem": None, "wrong": "", "jobs": [],
}  # fmt: skip
CHOICES: dict[str, Any] = {
    "kinds": KINDS, "graphs": [], "shipped": ["gpt2"], "presets": ["llama3-8b"],
    "hardware": [], "objectives": OBJECTIVES,
    "spaces": (ANY, *SPACES),
    "orders": ("", *ORDERS),
    "divisible": with_groups([hardware_summary(load_hardware("heterog-8"), builtin=True)]),
    "builtin": [{"name": "l4", "gpus_per_node": 1, "device": "L4", "memory_bytes": 24e9}],
    "has": frozenset(NAMES), "optimizers": tuple(MOMENTS), "stages": ZERO_STAGES,
    "recompute": RECOMPUTE, "precisions": tuple(PRECISIONS), "frameworks": tuple(FRAMEWORKS),
    "kernels": KERNELS,
}  # fmt: skip


class Sent(HTMLParser):
    """What a browser sends of a form that is submitted as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[tuple[str, str]] = []
        self._select = ""
        self._shown: list[str] = []
        self._area: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "select":
            self._select, self._shown = has["name"], []
        elif tag == "option":
            if not self._shown or "selected" in has:
                self._shown = [has["value"]]
        elif tag == "textarea":
            self._area = has["name"]
        elif tag == "input" and (has.get("type") not in ("radio", "checkbox") or "checked" in has):
            self.fields.append((has["name"], has.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.fields.append((self._area, data))

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self.fields.append((self._select, self._shown[0]))
        elif tag == "textarea":
            self._area = None


def sent(values: dict[str, str]) -> dict[str, str]:
    """Returns the filled-in fields of the form, as `texts` does."""
    template = environment().get_template("ask.html")
    html = template.render(values={**DEFAULTS, **values}, **NOWHERE, **CHOICES)
    form = Sent()
    form.feed(html)
    fields: dict[str, str] = {}
    for name, value in form.fields:
        if value.strip():
            fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields


def stored(options: dict[str, Any]) -> dict[str, Any]:
    """Returns a job with this question."""
    asked = {"graph": "shipped:gpt2", "hardware": "l4", "gpus": 2, "options": options}
    return {"kind": "frontier", "question": asked}


def document(options: Options) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(json.dumps(options_document(options)))
    return written


EARLIER = {**document(Options()), "recompute": "never", "micro_batches": [1]}
"""As 0.1.0 wrote its defaults, but for `overlap`, which was false."""


def test_an_untouched_form_asks_with_the_defaults() -> None:
    body = json.loads(question_body(sent({}), None))
    assert options_from_request(body["options"]) == Options()
    assert not {"recompute", "micro_batches", "overlap"} & set(body["options"])


def test_a_batch_and_a_sequence_are_sent_where_they_are_typed() -> None:
    body = json.loads(question_body(sent({"batch": "128", "seq": "4096"}), None))
    assert (body["batch"], body["seq"]) == (128, 4096)
    assert not {"batch", "seq"} & set(json.loads(question_body(sent({}), None)))
    with pytest.raises(BadInput, match="a whole number"):
        question_body(sent({"batch": "many"}), None)


def test_sums_are_sent_by_name() -> None:
    body = json.loads(question_body(sent({"overlap": "false"}), None))
    assert body["options"]["overlap"] is False
    body = json.loads(question_body(sent({"overlap": "true"}), None))
    assert "overlap" not in body["options"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (document(Options()), {}),
        (document(Options(overlap=False)), {"overlap": False}),
        ({**EARLIER, "overlap": True}, {"recompute": "never", "micro_batches": [1]}),
        (
            {**EARLIER, "overlap": False},
            {"overlap": False, "recompute": "never", "micro_batches": [1]},
        ),
        ({**EARLIER, "overlap": False, "recompute": "auto", "micro_batches": [1, 2]},
         {"overlap": False, "recompute": "auto", "micro_batches": [1, 2]}),
        ({"epsilon": 0.0, "zero": [0, 3]}, {"epsilon": 0.0, "zero": [0, 3]}),
        (
            document(Options(framework="compiled", kernels="fused")),
            {"framework": "compiled", "kernels": "fused"},
        ),
    ],
)  # fmt: skip
def test_a_stored_question_is_named_and_asked_again(
    options: dict[str, Any], named: dict[str, Any]
) -> None:
    job = stored(options)
    assert dict(choices(job)) == named
    query = dict(parse_qsl(urlsplit(form_address(job)).query))
    body = json.loads(question_body(sent(query), None))
    assert (body["graph"], body["hardware"], body["gpus"]) == ("shipped:gpt2", "l4", 2)
    assert options_from_request(body["options"]) == options_from_request(options)


@pytest.mark.parametrize(
    ("kind", "gpus", "sent"),
    [
        ("frontier", "4", {"gpus": 4}),
        ("plan", "p100=2, v100=2", {"gpus": "p100=2, v100=2"}),
        ("curve", "8", {"max_gpus": 8}),
        ("curve", "v100=2; v100=2,p100=2", {"bundles": ["v100=2", "v100=2,p100=2"]}),
        ("curve", "usual v100=1", {"bundles": ["usual", "v100=1"]}),
    ],
)
def test_gpus_are_a_number_or_devices_by_group(kind: str, gpus: str, sent: dict[str, Any]) -> None:
    form = {"kind": kind, "graph": "shipped:gpt2", "hardware": "heterog-8", "gpus": gpus}
    body = json.loads(question_body(form, None))
    named = {name: body[name] for name in ("gpus", "max_gpus", "bundles") if name in body}
    assert named == sent


@pytest.mark.parametrize(("kind", "gpus"), [("frontier", "many"), ("curve", "few many")])
def test_other_texts_are_no_number(kind: str, gpus: str) -> None:
    form = {"kind": kind, "graph": "shipped:gpt2", "hardware": "l4", "gpus": gpus}
    with pytest.raises(BadInput) as caught:
        question_body(form, None)
    assert caught.value.field == "gpus"


def test_a_stored_curve_over_bundles_is_asked_again() -> None:
    job = stored(document(Options()))
    del job["question"]["gpus"]
    job = {**job, "kind": "curve"}
    job["question"]["bundles"] = ["v100=2", "v100=2,p100=2"]
    query = dict(parse_qsl(urlsplit(form_address(job)).query))
    body = json.loads(question_body(query, None))
    assert body["bundles"] == ["v100=2", "v100=2,p100=2"]


PARTS = {"kind": "quote", "graph": "shipped:gpt2", "parts": "heterog-8"}


def test_a_quote_over_parts_has_prices_by_group_and_no_instances() -> None:
    form = {**PARTS, "prices.v100": "2.5", "steps": "1000", "max_instances": "4", "combine": "2"}
    body = json.loads(question_body(form, None))
    assert body["hardware"] == "heterog-8"
    assert body["prices"] == {"v100": 2.5}
    assert body["steps"] == 1000
    assert not {"max_instances", "combine", "gpus"} & set(body)


def test_a_quote_of_offers_has_no_profile() -> None:
    body = json.loads(question_body(sent({"kind": "quote"}), None))
    assert not {"hardware", "prices"} & set(body)


def test_without_scripts_prices_are_one_text() -> None:
    body = json.loads(question_body({**PARTS, "prices": "v100=2.5, p100=1.4"}, None))
    assert body["prices"] == {"v100": 2.5, "p100": 1.4}


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"prices.v100": "much"}, "prices.v100"),
        ({"prices.v100": "1,2"}, "prices.v100"),
        ({"prices": "v100=much"}, "prices.v100"),
        ({"prices": "v100=1e999"}, "prices.v100"),
        ({"prices": "v100"}, "prices"),
        ({"prices": "=2"}, "prices"),
        ({"prices": "v100=1,v100=2"}, "prices"),
    ],
)
def test_a_bad_price_names_its_field(typed: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        question_body({**PARTS, **typed}, None)
    assert caught.value.field == field


def test_a_stored_quote_over_parts_fills_the_form_in() -> None:
    asked = {
        "graph": "shipped:gpt2", "hardware": "heterog-8", "hardware_id": "sha256:0",
        "prices": {"v100": 2.5}, "deadline_s": 5400, "options": {},
    }  # fmt: skip
    query = dict(parse_qsl(urlsplit(form_address({"kind": "quote", "question": asked})).query))
    fields = sent(query)
    assert fields.pop("prices") == "v100=2.5", "the text for browsers that run no script"
    body = json.loads(question_body(fields, None))
    assert (body["hardware"], body["prices"]) == ("heterog-8", {"v100": 2.5})
    assert body["deadline_s"] == 5400


def test_a_stored_plan_for_a_trainer_fills_the_form_in() -> None:
    asked = {"graph": "shipped:gpt2", "hardware": "dgx-h100", "gpus": 8, "space": "megatron"}
    for kind in ("plan", "pricing"):
        job = {"kind": kind, "question": asked}
        query = dict(parse_qsl(urlsplit(form_address(job)).query))
        fields = sent(query)
        assert fields["kind"] == "plan"
        assert json.loads(question_body(fields, None))["space"] == "megatron"


@pytest.mark.parametrize(
    ("kind", "stages", "schedules"),
    [
        ("plan", [2, 4], ["1f1b", "1f1b-eager"]),
        ("plan", "auto", ["gpipe"]),
        ("frontier", [2, 4], ["gpipe"]),
        ("curve", "auto", ["1f1b", "1f1b-eager"]),
        ("quote", [2], ["1f1b"]),
    ],
)
def test_a_stored_pipeline_fills_the_form_in(
    kind: str, stages: list[int] | str, schedules: list[str]
) -> None:
    devices = {} if kind == "quote" else {"hardware": "l4", "gpus": 4}
    asked = {"graph": "shipped:gpt2", **devices, "stages": stages, "schedules": schedules}
    query = dict(parse_qsl(urlsplit(form_address({"kind": kind, "question": asked})).query))
    body = json.loads(question_body(sent(query), None))
    assert body["stages"] == stages
    assert body.get("schedules", ["1f1b", "1f1b-eager"]) == schedules
    compared = json.loads(question_body({**sent(query), "kind": "compare"}, None))
    assert compared["stages"] == stages
    assert compared.get("schedules", ["1f1b", "1f1b-eager"]) == schedules
    question = {**asked, "proposals": None, "seed": 0}
    again = dict(parse_qsl(urlsplit(form_address({"kind": "compare", "question": question})).query))
    assert json.loads(question_body(sent(again), None)) == {**compared, "seed": 0}


def test_groups_say_what_the_shipped_offers_take() -> None:
    profiles = [load_hardware(name) for name in ("l4", "h100-8+a100-8", "heterog-8")]
    known = with_groups(hardware_summary(profile, builtin=True) for profile in profiles)
    assert [profile["spec"] for profile in known] == ["h100-8+a100-8", "heterog-8"]
    offered = group_prices(profiles[1], read_offers())
    for group in known[0]["groups"]:
        assert group["shipped"] == offered[group["name"]]
    assert {group["shipped"] for group in known[1]["groups"]} == {None}


@pytest.mark.parametrize(
    ("seconds", "hours"), [(360_000.0, "100"), (5400.0, "1.5"), (3.6e9, "1000000"), (360.0, "0.1")]
)
def test_a_deadline_is_shown_in_hours_without_zeros(seconds: float, hours: str) -> None:
    assert hours_text(seconds) == hours


@given(st.floats(1e-3, 1e9))
def test_a_deadline_in_hours_is_the_same_seconds(seconds: float) -> None:
    assert seconds_of(hours_text(seconds)) == seconds


def test_each_option_has_a_field_or_is_named_as_one_without() -> None:
    assert set(OPTION_FIELDS) | set(NOT_ASKED) == set(NAMES)
    assert not set(OPTION_FIELDS) & set(NOT_ASKED)
    text = environment().get_template("ask.html").render(**NOWHERE, **CHOICES, values=DEFAULTS)
    assert all(f' name="{name}"' in text for name in OPTION_FIELDS if name != "method")


def test_power_is_read_with_its_unit() -> None:
    assert options_of({"power_limit_w": "0.5 kW"}) == {"power_limit_w": 500.0}
    with pytest.raises(BadInput, match=r"^power_limit_w: got '500' \(expected .*500W"):
        options_of({"power_limit_w": "500"})
