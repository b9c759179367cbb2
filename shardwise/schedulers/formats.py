"""The forms by name: what `--format` and `&format=` take, as text ready to be sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shardwise.documents import Curve
from shardwise.errors import BadInput
from shardwise.schedulers.adaptdl import adaptdl
from shardwise.schedulers.counts import Counts
from shardwise.schedulers.gavel import gavel
from shardwise.schedulers.kueue import kueue
from shardwise.schedulers.ray import ray
from shardwise.schedulers.sbatch import sbatch
from shardwise.schedulers.sia import sia
from shardwise.schedulers.skypilot import skypilot

JSON = "application/json"
SHELL = "text/x-shellscript"


@dataclass(frozen=True)
class Form:
    """How a scheduler's text is made: `whole` gets all counts, `one` picks by efficiency."""

    name: str
    media_type: str
    whole: Callable[[Counts], Any] | None = None
    one: Callable[[Counts, float], Any] | None = None


FORMS = {
    form.name: form
    for form in (
        Form("gavel", JSON, whole=gavel),
        Form("adaptdl", JSON, whole=adaptdl),
        Form("sia", JSON, whole=sia),
        Form("kueue", JSON, one=kueue),
        Form("ray", JSON, one=ray),
        Form("sbatch", SHELL, one=sbatch),
        Form("skypilot", JSON, one=skypilot),
    )
}


def export(
    curve: Curve | Mapping[str, Any],
    form: str,
    *,
    efficiency: float = 0.0,
    gpu_type: str | None = None,
) -> str:
    """Returns a `shardwise.curve/1` document in a form of `FORMS`.

    `efficiency` is that of `Counts.best`, for the forms that name one count; `gpu_type` is what
    the scheduler calls the GPU, else the name that clouds have for it. Raises `BadInput` for an
    unknown form or a document that is not a curve, `NotFound` when nothing fits.
    """
    writer = FORMS.get(form)
    if writer is None:
        raise BadInput(f"unknown form {form[:40]!r}", field="format", expected=", ".join(FORMS))
    counts = Counts.of(curve, gpu_type)
    if writer.one is not None:
        value = writer.one(counts, efficiency)
    else:
        assert writer.whole is not None
        value = writer.whole(counts)
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
