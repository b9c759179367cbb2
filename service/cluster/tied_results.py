"""Ties a measurement to the launch that reports it: its plan, graph, profile and ranks.

An agent is not believed beyond what it alone can know. The prediction is the launch's plan's, and
the errors are computed here. What physics or a comparison with the plan rules out is held: kept and
shown, but left out of accuracy, alerts and refits until an administrator accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from service.cluster.measurements import MAX_NAME, Errors, Measured
from shardwise.errors import BadInput
from shardwise.hardware import Hardware
from shardwise.measure.measurement import PREDICTED, predicted_values, relative

CLOCK = 0.9
"""Share of the roofline's time that a step takes at the least: clocks may exceed a data sheet's."""

QUICKER, SLOWER = 20.0, 100.0
"""Maximum plausible factors below and above the prediction."""

BUSY_S = 5.0
"""Seconds by which a busy host may delay even a step of microseconds."""

MEMORY = 1.1
"""A peak over a device's memory beyond this is not one of that device."""


@dataclass(frozen=True)
class Tied:
    """A launch's measurement: its document and errors, and why it is held (None: it counts)."""

    document: dict[str, Any]
    errors: Errors
    held: str | None


def tied(
    measured: Measured,
    document: Mapping[str, Any],
    plan: Mapping[str, Any] | None,
    base: Hardware | None,
) -> Tied:
    """Returns a measurement with its plan's prediction. `base` is the plan's profile, if known.

    Raises BadInput with the field if it is of something else than this launch.
    """
    if plan is None:
        raise BadInput("the launch runs no plan", field="document", expected="a launch of a plan")
    _check_same(measured, document, plan)
    predicted = plan["predicted"]
    values, expected = _values(measured, document), predicted_values(predicted)
    errors = Errors(**{name: relative(values[name], _number(expected[name])) for name in PREDICTED})
    told = {name: getattr(errors, name) for name in PREDICTED}
    name = str(plan.get("graph_name", ""))[:MAX_NAME]
    shown = {**document, "graph_name": name, "predicted": predicted, "errors": told}
    return Tied(shown, errors, _implausible(values, errors, _roofline_s(plan, base), base))


_WHOSE = {"peak_bytes.max": "the largest of its ranks'"}


def _check_same(measured: Measured, document: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    peaks = document.get("peak_bytes")
    ranks = peaks.get("per_rank") if isinstance(peaks, dict) else None
    for name, given, wanted in (
        ("plan", measured.plan, plan["id"]),
        ("graph", measured.graph, plan["graph"]),
        ("hardware", measured.hardware, plan["hardware"]),
        ("hardware_id", measured.hardware_id, plan.get("hardware_id")),
        ("gpus", measured.gpus, plan["gpus"]),
        ("nodes", measured.nodes, plan.get("nodes")),
        ("peak_bytes.per_rank", _count(ranks), plan["gpus"]),
        ("peak_bytes.max", peaks.get("max") if isinstance(peaks, dict) else None, _most(ranks)),
    ):
        optional = name not in ("plan", "graph", "hardware", "gpus")
        if given != wanted and not (optional and (given is None or wanted is None)):
            raise BadInput(
                f"{str(given)[:80]!r} is not the launch's",
                field=f"document.{name}",
                expected=f"{str(wanted)[:80]!r}, as {_WHOSE.get(name, 'in its plan')}",
            )


def _count(ranks: Any) -> int | None:
    """Returns how many ranks report a peak of at least 0 bytes, or None without a list of ranks."""
    if not isinstance(ranks, list):
        return None
    return sum((_number(one) or 0.0) >= 0 and _number(one) is not None for one in ranks)


def _most(ranks: Any) -> float | None:
    """Returns the largest peak of the ranks, or None without one."""
    peaks = [_number(one) for one in ranks] if isinstance(ranks, list) else []
    return max((one for one in peaks if one is not None), default=None)


def _values(measured: Measured, document: Mapping[str, Any]) -> dict[str, float | None]:
    peak = document.get("peak_bytes")
    return {
        "iteration": measured.iteration_s.median,
        "compute": measured.compute_s,
        "communication": measured.communication_s,
        "peak": _number(peak.get("max")) if isinstance(peak, dict) else None,
    }


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if good else None


def _roofline_s(plan: Mapping[str, Any], base: Hardware | None) -> float:
    """Returns the seconds that the model's products take at the devices' peak; 0 if unknown.

    The plan's model flops utilisation is these seconds over its step's. Fast convolutions take
    fewer products than the model has.
    """
    predicted = plan["predicted"]
    steps = [_number(predicted.get(name)) for name in ("replayed_time_s", "time_s", "step_s")]
    step_s = min((step for step in steps if step), default=0.0)
    savings = [
        saving
        for device in ([] if base is None else base.devices)
        for saving in device.fast_convolution_saving.values()
    ]
    utilisation = _number(predicted.get("model_flops_utilisation")) or 0.0
    return utilisation * step_s / max(savings, default=1.0)


def _implausible(
    values: Mapping[str, float | None], errors: Errors, roofline_s: float, base: Hardware | None
) -> str | None:
    """Returns why no such run can have been on these devices, or is far from the prediction."""
    for name in ("iteration", "compute"):
        took_s = values[name]
        if took_s is not None and took_s < CLOCK * roofline_s:
            return (
                f"{name}: {took_s:.3g} s, but the model's products alone take {roofline_s:.3g} s "
                "at the devices' peak"
            )
    step_s = values["iteration"]
    for name in ("compute", "communication"):
        took_s = values[name]
        if step_s is not None and took_s is not None and took_s > 2 * step_s + BUSY_S:
            return f"{name}: {took_s:.3g} s in a step of {step_s:.3g} s"
    memory = max((device.memory_bytes for device in base.devices), default=0.0) if base else 0.0
    peak = values["peak"]
    if memory and peak is not None and peak > MEMORY * memory:
        return f"peak: {peak:.3g} bytes, but a device of the profile has {memory:.3g}"
    for name in PREDICTED:
        error = getattr(errors, name)
        if error is None or (name == "communication" and _is_within(values)):
            continue
        more = (values[name] or 0.0) > BUSY_S and error + 1.0 > SLOWER
        if more or error + 1.0 < 1.0 / QUICKER:
            return f"{name}: {error + 1.0:.3g} times what the plan predicts"
    return None


def _is_within(values: Mapping[str, float | None]) -> bool:
    """Returns whether communication is shorter than the step: a small prediction may be far off."""
    step_s, talking_s = values["iteration"], values["communication"]
    return step_s is not None and talking_s is not None and talking_s <= step_s
