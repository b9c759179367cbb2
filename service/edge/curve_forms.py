"""`GET /v1/curves?…&format=`: a stored curve in a format that a scheduler reads."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.datastructures import QueryParams

from service.store.results import Stored, etag_of
from shardwise.errors import BadInput
from shardwise.schedulers.formats import FORMS, export

CURVE = "json"
BUNDLES = "bundles"
"""The parameter that names one bundle of devices, as often as there are bundles."""
COUNTS, SPACE = "counts", "space"
"""The parameters that name the counts, such as `8,16,32`, and a trainer."""
STAGES, SCHEDULES = "stages", "schedules"
"""The parameters that ask for pipelines too, each a text as on the command line."""
NAMES = ("format", "efficiency", "gpu_type")
"""The parameters of a query that choose the format of the curve and do not change it."""

MOST_GPU_TYPE = 80


@dataclass(frozen=True)
class Wanted:
    """A format and its parameters."""

    form: str
    efficiency: float
    gpu_type: str | None


def wanted(query: QueryParams) -> Wanted | None:
    """Returns the format that the query asks for; None for the curve itself.

    Raises `BadInput` naming the parameter.
    """
    form = query.get("format", CURVE)
    if form != CURVE and form not in FORMS:
        raise BadInput(f"got {form[:40]!r}", field="format", expected=", ".join((CURVE, *FORMS)))
    gpu_type = query.get("gpu_type") or None
    if gpu_type is not None and len(gpu_type) > MOST_GPU_TYPE:
        raise BadInput(
            f"longer than {MOST_GPU_TYPE} characters",
            field="gpu_type",
            expected=f"at most {MOST_GPU_TYPE}",
        )
    text = query.get("efficiency", "0")
    try:
        efficiency = float(text)
    except ValueError:
        efficiency = -1.0
    if not 0 <= efficiency <= 1:
        raise BadInput(f"got {text[:40]!r}", field="efficiency", expected="a number from 0 to 1")
    return None if form == CURVE else Wanted(form, efficiency, gpu_type)


def rendered(stored: Stored, want: Wanted | None) -> Stored:
    """Returns the curve in that format, with its own entity tag.

    Raises NotFound when nothing fits.
    """
    if want is None:
        return stored
    text = export(
        msgspec.json.decode(stored.content),
        want.form,
        efficiency=want.efficiency,
        gpu_type=want.gpu_type,
    )
    content = text.encode()
    return Stored(content, etag_of(content), FORMS[want.form].media_type)
