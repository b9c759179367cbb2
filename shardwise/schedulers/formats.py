"""The forms by name: what `--format` and `&format=` take, as text ready to be sent.

Curves have all forms. A curve over bundles of several groups of devices has those of throughputs by
GPU type; the others start hosts, which a plan names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shardwise.documents import Curve, Plan
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
    """How a scheduler's text is made: `curve` gets all counts, and the efficiency by which a form
    that starts hosts picks one.

    `plan` gets the hosts of a plan, of a form that starts hosts. `many`: whether a document of
    several GPU types is that of each in one object.
    """

    name: str
    media_type: str
    curve: Callable[[Counts, float], Any]
    plan: Callable[[Hosts], Any] | None = None
    many: bool = False


def _of_all(write: Callable[[Counts], Any]) -> Callable[[Counts, float], Any]:
    """Returns what writes all counts, whatever the efficiency."""
    return lambda counts, _: write(counts)


FORMS = {
    form.name: form
    for form in (
        Form("gavel", JSON, _of_all(gavel), many=True),
        Form("adaptdl", JSON, _of_all(adaptdl)),
        Form("sia", JSON, _of_all(sia), many=True),
        Form("kueue", JSON, kueue, jobset),
        Form("ray", JSON, ray, placement_group),
        Form("sbatch", SHELL, sbatch, sbatch_of_plan),
        Form("skypilot", JSON, skypilot, skypilot_of_plan),
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
    if form not in FORMS:
        raise _unknown(form, FORMS)
    writer, document = FORMS[form], curve_document(curve)
    if is_over_bundles(document):
        return _text(_of_groups(writer, document, gpu_type))
    return _text(writer.curve(Counts.of(document, gpu_type), efficiency))


def export_plan(plan: Plan, form: str, *, gpu_type: str | None = None) -> str:
    """Returns what starts the hosts of a plan or a pipeline, in a form of `PLAN_FORMS`.

    `gpu_type` is as in `names_of`. Raises `BadInput` for an unknown form, one that reads curves,
    and one that cannot say what the plan's hosts are.
    """
    writer = FORMS.get(form)
    if writer is None or writer.plan is None:
        raise _unknown(form, PLAN_FORMS)
    return _text(writer.plan(Hosts.of(plan, gpu_type)))


def _unknown(name: str, known: Collection[str]) -> BadInput:
    problem = f"unknown form {name[:40]!r}"
    if name in FORMS:
        problem = f"{name} reads curves, not plans"
    return BadInput(problem, field="format", expected=", ".join(known))


def _of_groups(writer: Form, document: Mapping[str, Any], gpu_type: str | None) -> Any:
    """Returns throughputs by the GPU type of each group of a curve over bundles."""
    if writer.plan is not None:
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
    documents = [writer.curve(counts, 0.0) for counts in by_group.values()]
    if not writer.many:
        return documents[0]
    return {name: of_type for document in documents for name, of_type in document.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
