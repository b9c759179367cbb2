"""The form that asks: stored questions fill it in, and it asks them again."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("fastapi")

from service.page.forms import question_body
from service.page.render import environment
from service.page.views.ask import DEFAULTS, KINDS
from service.page.views.job_rows import choices, form_address
from service.questions.search_options import NAMES, options_document, options_from_request
from shardwise.advise import OBJECTIVES, Options
from shardwise.cost.options import MOMENTS, RECOMPUTE, ZERO_STAGES
from shardwise.cost.software import FRAMEWORKS, KERNELS
from shardwise.errors import BadInput
from shardwise.sharding.precision import PRECISIONS

NOWHERE: dict[str, Any] = {
    "nonce": "", "path": "/", "administers": [], "signed_in": False, "person": None,
    "problem": None, "wrong": "", "jobs": [],
}  # fmt: skip
CHOICES: dict[str, Any] = {
    "kinds": KINDS, "graphs": [], "shipped": ["gpt2"], "hardware": [], "objectives": OBJECTIVES,
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
