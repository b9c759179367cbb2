"""The forms by name: what `--format` and `&format=` take, as text ready to be sent.

Curves have all forms. A curve over bundles of several groups of devices has those of throughputs by
GPU type; the others start hosts, which a plan names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shardwise.documents import Curve, Pipeline, Plan
from shardwise.errors import BadInput
from shardwise.schedulers.adaptdl import adaptdl
from shardwise.schedulers.counts import Counts, curve_document
from shardwise.schedulers.gavel import gavel
from shardwise.schedulers.groups import counts_by_group, is_over_bundles
from shardwise.schedulers.jobset import jobset
from shardwise.schedulers.kueue import kueue
from shardwise.schedulers.plan_hosts import Hosts
from shardwise.schedulers.ray import placement_group, ray
from shardwise.schedulers.sbatch import sbatch, sbatch_of_plan
from shardwise.schedulers.sia import sia
from shardwise.schedulers.skypilot import skypilot, skypilot_of_plan

JSON = "application/json"
SHELL = "text/x-shellscript"


@dataclass(frozen=True)
class Form:
    """How a scheduler's text is made: `whole` gets all counts, `one` picks by efficiency.

    `plan` gets the hosts of a plan. `many`: whether a document of several GPU types is that of each
    in one object.
    """

    name: str
    media_type: str
    whole: Callable[[Counts], Any] | None = None
    one: Callable[[Counts, float], Any] | None = None
    plan: Callable[[Hosts], Any] | None = None
    many: bool = False


FORMS = {
    form.name: form
    for form in (
        Form("gavel", JSON, whole=gavel, many=True),
        Form("adaptdl", JSON, whole=adaptdl),
        Form("sia", JSON, whole=sia, many=True),
        Form("kueue", JSON, one=kueue, plan=jobset),
        Form("ray", JSON, one=ray, plan=placement_group),
        Form("sbatch", SHELL, one=sbatch, plan=sbatch_of_plan),
        Form("skypilot", JSON, one=skypilot, plan=skypilot_of_plan),
    )
}
PLAN_FORMS = tuple(name for name, form in FORMS.items() if form.plan is not None)
"""The forms that start the hosts of a plan."""


def export(
    curve: Curve | Mapping[str, Any],
    form: str,
    *,
    efficiency: float = 0.0,
    gpu_type: str | None = None,
) -> str:
    """Returns a `shardwise.curve/1` document in a form of `FORMS`.

    `efficiency` is that of `Counts.best`, for the forms that name one count; `gpu_type` is what
    the scheduler calls the GPU, else the name that clouds have for it; of a curve over bundles as
    in `names_of`. Raises `BadInput` for an unknown form, a document that is not a curve, a curve
    over bundles in a form that starts hosts, and a bundle of several groups; `NotFound` when
    nothing fits.
    """
    writer = _form(form, FORMS)
    document = curve_document(curve)
    if is_over_bundles(document):
        return _text(_of_groups(writer, document, gpu_type))
    counts = Counts.of(document, gpu_type)
    if writer.one is not None:
        return _text(writer.one(counts, efficiency))
    assert writer.whole is not None
    return _text(writer.whole(counts))


def export_plan(plan: Pipeline | Plan, form: str, *, gpu_type: str | None = None) -> str:
    """Returns what starts the hosts of a plan or a pipeline, in a form of `PLAN_FORMS`.

    `gpu_type` is as in `names_of`. Raises `BadInput` for an unknown form, one that reads curves,
    and one that cannot say what the plan's hosts are.
    """
    writer = _form(form, PLAN_FORMS)
    assert writer.plan is not None
    return _text(writer.plan(Hosts.of(plan, gpu_type)))


def _form(name: str, known: Collection[str]) -> Form:
    if name not in known:
        problem = f"unknown form {name[:40]!r}"
        if name in FORMS:
            problem = f"{name} reads curves, not plans"
        raise BadInput(problem, field="format", expected=", ".join(known))
    return FORMS[name]


def _of_groups(writer: Form, document: Mapping[str, Any], gpu_type: str | None) -> Any:
    """Returns throughputs by the GPU type of each group of a curve over bundles."""
    if writer.whole is None:
        raise BadInput(
            f"{writer.name} starts hosts, of which a curve over bundles says nothing",
            field="format",
            expected=f"a plan on one bundle: shardwise export PLAN --format {writer.name}",
        )
    by_group = counts_by_group(document, gpu_type)
    if len(by_group) > 1 and not writer.many:
        raise BadInput(
            f"{writer.name} has one GPU type, and the curve {', '.join(by_group)}",
            field="format",
            expected="bundles of one group; sia has one such document for each",
        )
    documents = [writer.whole(counts) for counts in by_group.values()]
    if not writer.many:
        return documents[0]
    return {name: of_type for document in documents for name, of_type in document.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
