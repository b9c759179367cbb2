"""Forms as bodies of HTTP calls: what a person typed becomes what a client would send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException
from starlette.types import Message

from service.base.pools import expected_bytes
from service.base.problems import Problem
from service.edge.body import read_body
from service.edge.state import state_of
from service.page.inner import page_caller
from service.page.price_fields import prices_of
from shardwise.cost.named_options import NAMES
from shardwise.documents.curve import counts_from
from shardwise.errors import BadInput
from shardwise.hardware import USUAL
from shardwise.hardware.watts import parse_power
from shardwise.pipeline.asked import ANY, AUTO, stages_from
from shardwise.sizes import parse_size
from shardwise.step_sizes import NAMES as SIZES

MAX_FIELDS = 200
DECIMAL_DIGITS = 28
"""Decimal digits, more than enough to distinguish all floats."""
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


async def read_form(request: Request, scope: str = "submit") -> FormData:
    """Returns the fields and files of a form, within the limit of bodies.

    Raises `Problem` if the caller may not send it.
    """
    state = state_of(request)
    principal = await state.gate.admit(page_caller(request), scope)
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() not in _FORMS:
        raise Problem("unsupported-media-type", "not a form", expected=" or ".join(_FORMS))
    most = expected_bytes(request, state.settings.max_body_bytes, state.settings.max_gzip_ratio)
    with state.pools.bodies.take(principal.lane, most):
        body = await read_body(request, state, principal.lane)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope_alone = {key: value for key, value in request.scope.items() if key != "app"}
    try:
        return await Request(scope_alone, receive).form(
            max_files=2, max_fields=MAX_FIELDS, max_part_size=len(body) + 1
        )
    except MultiPartException as error:
        raise Problem("bad-request", f"the form cannot be read: {error.message}") from None


async def file_of(form: FormData, name: str) -> tuple[str, bytes] | None:
    """Returns the name and content of a chosen file; None if none was chosen."""
    upload = form.get(name)
    if not isinstance(upload, UploadFile) or not upload.filename:
        return None
    return upload.filename, await upload.read()


def texts(form: FormData) -> dict[str, str]:
    """Returns the fields that are filled in; boxes of one name are joined by commas."""
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, str) and value.strip():
            fields[name] = f"{fields[name]},{value.strip()}" if name in fields else value.strip()
    return fields


def question_body(values: Mapping[str, str], offers_csv: str | None) -> bytes:
    """Returns the body of a question, `POST /v1/frontiers` and the like, by `kind`."""
    kind = values.get("kind", "frontier")
    body: dict[str, Any] = {"graph": _needed(values, "graph", "a graph")}
    if kind == "quote":
        set_if(body, values, "steps", whole)
        set_if(body, values, "budget_usd", number)
        if "deadline_h" in values:
            body["deadline_s"] = seconds_of(values["deadline_h"])
        if offers_csv is not None:
            body["offers_csv"] = offers_csv
        if "parts" in values:
            body["hardware"] = values["parts"]
            body["prices"] = prices_of(values, number)
        else:
            set_if(body, values, "max_instances", whole)
            set_if(body, values, "combine", whole)
    else:
        nodes = f"*{whole(values['nodes'], 'nodes')}" if "nodes" in values else ""
        body["hardware"] = _needed(values, "hardware", "a profile") + nodes
        gpus = _needed(values, "gpus", "a number of GPUs, or devices by group")
        if kind == "curve" and _names_groups(gpus):
            body["bundles"] = gpus.replace(";", " ").split()
        elif kind == "curve" and "," in gpus:
            body["counts"] = counts_from(gpus.rstrip(", "), "gpus")
        elif kind == "curve":
            body["max_gpus"] = whole(gpus, "gpus")
        else:
            body["gpus"] = gpus if _names_groups(gpus) else whole(gpus, "gpus")
        if kind == "plan":
            body["objective"] = values.get("objective", "mini-time")
            set_if(body, values, "order", _word)
        if kind in ("plan", "curve"):
            body["space"] = values.get("space", ANY)
        if kind == "compare":
            set_if(body, values, "proposals", whole)
            set_if(body, values, "seed", whole)
    for name in SIZES:
        set_if(body, values, name, whole)
    set_if(body, values, "stages", _stages)
    set_if(body, values, "schedules", _words)
    body["options"] = options_of(values)
    return json.dumps(body).encode()


def seconds_of(hours: str) -> float:
    """Returns the seconds of a form's hours. Raises `BadInput`."""
    number(hours, "deadline_h")
    return float(Decimal(hours) * 3600)


def hours_text(seconds: float) -> str:
    """Returns the shortest text that `seconds_of` converts to exactly this many seconds."""
    hours = Decimal(repr(seconds)) / 3600
    rounded = (Decimal(f"{hours:.{digits}g}") for digits in range(6, DECIMAL_DIGITS))
    texts = (f"{one.normalize():f}" for one in rounded)
    return next((text for text in texts if seconds_of(text) == seconds), str(hours))


def _names_groups(text: str) -> bool:
    """Returns whether a text says devices by group, or for a curve that the usual are meant."""
    return "=" in text or USUAL in text.replace(";", " ").split()


def options_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the filled-in options that this release has."""
    options: dict[str, Any] = {}
    for name, reads in OPTION_FIELDS.items():
        if name in NAMES and name in values:
            options[name] = reads(values[name], name)
    return options


def _needed(values: Mapping[str, str], name: str, expected: str) -> str:
    if name not in values:
        raise BadInput("missing", field=name, expected=expected)
    return values[name]


def set_if(body: dict[str, Any], values: Mapping[str, str], name: str, reads: Any) -> None:
    if name in values:
        body[name] = reads(values[name], name)


def whole(text: str, field: str) -> int:
    """Returns a whole number from 0. Raises `BadInput`, naming the field."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadInput(f"got {text[:40]!r}", field=field, expected="a whole number")
    return int(text)


def number(text: str, field: str) -> float:
    """Returns a finite number. Raises `BadInput`, naming the field."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise BadInput(f"got {text[:40]!r}", field=field, expected="a number")
    return value


def size(text: str, field: str) -> float:
    """Returns the bytes of a size such as `14.5GB`. Raises `BadInput`, naming the field."""
    return float(parse_size(text, field))


def power(text: str, field: str) -> float:
    """Returns the watts of a power such as `500W`. Raises `BadInput`, naming the field."""
    return parse_power(text, field)


def _wholes(text: str, field: str) -> list[int]:
    return [whole(part.strip(), field) for part in text.split(",") if part.strip()]


def _stages(text: str, field: str) -> list[int] | str:
    """Returns numbers of pipeline stages, or `auto`. Raises `BadInput`, naming the field."""
    return stages_from(text, field) or AUTO


def _words(text: str, field: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _word(text: str, field: str) -> str:
    return text


def _flag(text: str, field: str) -> bool:
    return text == "true"


def lines(text: str, field: str) -> list[str]:
    """Returns the lines that are not blank, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


OPTION_FIELDS = {
    "epsilon": number,
    "memory_limit_bytes": size,
    "memory_room_bytes": size,
    "power_limit_w": power,
    "expert_imbalance": number,
    "time_limit_s": number,
    "tune": _word,
    "optimizer": _word,
    "method": _word,
    "precision": _word,
    "framework": _word,
    "kernels": _word,
    "recompute": _word,
    "simplest": _word,
    "zero": _wholes,
    "micro_batches": _wholes,
    "pins": lines,
    "overlap": _flag,
}
"""How each option of the form is parsed; those of `NOT_ASKED` keep their defaults."""

NOT_ASKED = (
    "loss", "rerun", "max_configurations", "search_memory_bytes", "memory_headroom", "step",
    "gradients_applied_at_once",
)  # fmt: skip
"""Options that only other ways of asking have."""
