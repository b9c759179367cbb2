"""A profile fitted to one measured training step.

The strategy is the fastest under the options, whose pins describe the run. One step determines one
factor, the one that the step depends on most: the host's times if launching takes longer than
computing; else the clock that large products sustain, or without tables of products their share of
the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log

from shardwise.answers.plan import plan
from shardwise.cost.options import Options, Progress, quiet
from shardwise.documents import WholePlan
from shardwise.errors import BadInput, InternalError
from shardwise.graph import Graph
from shardwise.hardware import Hardware

TOLERANCE = 2e-3
"""Relative tolerance between the predicted and the measured step."""
MOST_STEPS = 16
NOTICED = 0.1
"""Share of computation by measured kernels above which their clock is fitted."""
CLOCK, EFFICIENCY, HOST = "sustained_clock", "compute_efficiency", "host"
BOUNDS: Mapping[str, tuple[float, float]] = {
    CLOCK: (0.3, 1.0),
    EFFICIENCY: (0.05, 1.0),
    HOST: (0.02, 50.0),
}
"""Search intervals for the clock, the efficiency, and the factor of the host's times."""


@dataclass(frozen=True)
class Calibration:
    """A fitted profile: the fitted figure, its old and new value, and the predicted steps before
    and after in seconds."""

    hardware: Hardware
    figure: str
    before: float
    after: float
    before_s: float
    after_s: float


def calibrate(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    step_s: float,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Returns the profile under which the fastest strategy's replayed step takes `step_s` seconds.

    Raises `BadInput` if no plausible value explains the step, and as `plan` does.
    """
    if not 0.0 < step_s < float("inf"):
        raise BadInput(f"got {step_s}", field="step", expected="seconds above 0")

    def planned(profile: Hardware) -> WholePlan:
        return plan(graph, profile, gpus, options=options, progress=progress or quiet)

    first = planned(hardware)
    before_s = first.predicted.replayed_time_s
    figure = _figure(first, hardware)
    before = _value(hardware, figure)

    def step_at(value: float) -> float:
        return planned(_fitted(hardware, figure, value)).predicted.replayed_time_s

    after, after_s = _solve(step_at, step_s, figure, (before, before_s))
    source = (
        f"calibrated: a step of {graph.name} on {gpus} GPUs took {step_s:.6g} s; "
        f"before it was {before:.4g}"
    )
    fitted = _fitted(hardware, figure, after)
    fitted = replace(
        fitted,
        name=f"{hardware.name}-calibrated",
        sources={**hardware.sources, figure: source},
    )
    return Calibration(fitted, figure, before, after, before_s, after_s)


def _figure(planned: WholePlan, hardware: Hardware) -> str:
    """Returns what a step depends on most."""
    predicted = planned.predicted
    if hardware.host is not None and predicted.bound_by == "host":
        return HOST
    shares = predicted.compute_shares
    measured = shares is not None and shares.interpolated > NOTICED
    return CLOCK if hardware.devices[0].products and measured else EFFICIENCY


def _value(hardware: Hardware, figure: str) -> float:
    """Returns the value of a figure in a profile; for the host's times the factor 1."""
    return 1.0 if figure == HOST else float(getattr(hardware.devices[0], figure))


def _fitted(hardware: Hardware, figure: str, value: float) -> Hardware:
    """Returns the profile with another value of a figure."""
    if figure == HOST:
        host = hardware.host
        if host is None:
            raise InternalError(f"the times of a host are fitted in {hardware.name}, without any")
        return replace(
            hardware,
            host=replace(
                host, operator_s=host.operator_s * value, collective_s=host.collective_s * value
            ),
        )
    device = hardware.devices[0]
    if figure == CLOCK:
        device = replace(device, sustained_clock=value)
    else:
        factor = value / device.compute_efficiency
        by_dtype = {
            dtype: min(share * factor, 1.0)
            for dtype, share in device.compute_efficiency_by_dtype.items()
        }
        device = replace(device, compute_efficiency=value, compute_efficiency_by_dtype=by_dtype)
    return replace(hardware, devices=(device, *hardware.devices[1:]))


def _solve(
    step_at: Callable[[float], float], step_s: float, figure: str, known: tuple[float, float]
) -> tuple[float, float]:
    """Returns the value at which a step takes `step_s`, and the step there.

    The step decreases with a clock or an efficiency and increases with the host's factor. Solved by
    false position in logarithms, with bisection if that is slow.
    """
    if abs(log(known[1] / step_s)) <= TOLERANCE:
        return known
    sign = 1.0 if figure == HOST else -1.0
    low, high = BOUNDS[figure]
    end = high if sign * log(step_s / known[1]) > 0 else low
    far = step_at(end)
    if (log(known[1] / step_s) > 0) == (log(far / step_s) > 0):
        most = "at least" if far > step_s else "at most"
        raise BadInput(
            f"{step_s:.4g} s: with a {figure} of {end:g} a step still takes {far:.4g} s",
            field="step",
            expected=f"{most} {far:.4g} s, or options that say what was run",
        )
    ends = [(known[0], log(known[1] / step_s)), (end, log(far / step_s))]
    for number in range(MOST_STEPS):
        (a, at_a), (b, at_b) = ends
        share = 0.5 if number % 3 == 2 else at_a / (at_a - at_b)
        value = float(a * (b / a) ** min(max(share, 0.02), 0.98))
        reached = step_at(value)
        error = log(reached / step_s)
        if abs(error) <= TOLERANCE:
            break
        ends[0 if (error > 0) == (at_a > 0) else 1] = (value, error)
    return value, reached
