"""The fitted numbers, fitted again without each source, and its errors under them.

Runs with pipelines, in 8 or 4 bits, and those that divide experts or positions have no part in it.

What is fitted in the profiles and options is

    operator_s, collective_s   of a host: to the small runs, on the grid of OPERATOR_S, COLLECTIVE_S
    sustained_clock            of each kind of device with measured products: to its large runs
    operator                   the share of a framework: to its small runs

Each fit takes the values under which the median of |ln(predicted / published)| is least, and of
several such the one with the least mean. A step takes soft_maximum(D, a n + b c) with the stored
counts n and c (`hardware/host.py`); D changes with the clock c of the device as

    D(c) = D(1) + (D(SLOWER) - D(1)) (1/c - 1) / (1/SLOWER - 1)

in shares of the profile's clock: what products take is in proportion to 1/c, the rest is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.software import FRAMEWORKS, Framework
from shardwise.hardware import Hardware, load_hardware
from shardwise.hardware.host import Host, soft_maximum

from .stored import SLOWER, Result, included
from .summary import Summary, summary

Floats = NDArray[np.float64]

OPERATOR_S = np.arange(10, 151, 5) / 1e6
COLLECTIVE_S = np.arange(0, 301, 10) / 1e6
CLOCKS = np.arange(60, 101) / 100
SHARES = np.array([0.01, 0.02, 0.05, *np.arange(1, 51) / 10])

LEAST_RUNS = 3
"""Runs that a number is fitted to."""


@dataclass(frozen=True)
class Fitted:
    """Values of the fitted numbers; what is None or not named is as the code has it.

    `clocks` are by kind of device, `frameworks` by name.
    """

    host: Host | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    frameworks: Mapping[str, Framework] = field(default_factory=dict)


AS_THEY_ARE = Fitted()


@dataclass(frozen=True)
class LeftOut:
    """A source, the numbers fitted without it, and its errors with the code's and with those."""

    project: str
    fitted: Fitted
    before: Summary
    after: Summary


def leave_one_out(results: Sequence[Result]) -> list[LeftOut]:
    """Every source with the numbers fitted to the others."""
    found = []
    results = [result for result in results if result.run.is_fitted]
    for project in dict.fromkeys(result.project for result in included(results)):
        inside = [r for r in included(results) if r.project == project]
        fitted = refit([r for r in results if r.project != project])
        before = summary([r.time_error for r in inside])
        times = times_s(inside, fitted)
        after = summary([t / r.run.iteration_s - 1.0 for t, r in zip(times, inside, strict=True)])
        found.append(LeftOut(project, fitted, before, after))
    return found


def refit(results: Sequence[Result]) -> Fitted:
    """All numbers fitted to those of these runs that may be (`Run.is_fitted`), each with the others
    as the code has them."""
    runs = [result for result in included(results) if result.run.is_fitted]
    clocks = {kind: fit_clock(runs, kind) for kind in kinds(runs)}
    shares = {name: fit_framework(runs, name) for name in FRAMEWORKS}
    return Fitted(
        fit_host(runs),
        {kind: clock for kind, clock in clocks.items() if clock is not None},
        {name: share for name, share in shares.items() if share is not None},
    )


def fit_host(results: Sequence[Result]) -> Host | None:
    """The host's two times, fitted to the small runs; None where these are too few."""
    runs = [r for r in results if r.size == "small" and _profile(r.run.hardware).host]
    if len(runs) < LEAST_RUNS:
        return None
    columns = _columns(runs)
    operator_s, collective_s = (grid.ravel() for grid in np.meshgrid(OPERATOR_S, COLLECTIVE_S))
    host_s = columns.operators * operator_s[:, None] + columns.collectives * collective_s[:, None]
    best = _best(columns, columns.device_s, host_s)
    return Host(float(operator_s[best]), float(collective_s[best]))


def fit_clock(results: Sequence[Result], kind: str) -> float | None:
    """The clock that a kind of device sustains, fitted to its large runs.

    None where these are too few, or no product of theirs was measured.
    """
    runs = [r for r in results if r.size == "large" and kind_of(r) == kind]
    columns = _columns(runs)
    if len(runs) < LEAST_RUNS or not columns.slope_s.any():
        return None
    device_s = columns.at_clock(CLOCKS[:, None])
    return float(CLOCKS[_best(columns, device_s, columns.host_s)])


def fit_framework(results: Sequence[Result], name: str) -> Framework | None:
    """A framework's share of a host's eager time, fitted to its small runs.

    Where a framework takes the same share of operators and of collectives it is one number; else
    that of the collectives is kept. None for eager PyTorch, which is the measure, and where the
    runs are too few.
    """
    known = FRAMEWORKS[name]
    runs = [r for r in results if r.size == "small" and r.run.framework == name]
    alike = known.operator == known.collective
    if (alike and known.operator == 1.0) or len(runs) < LEAST_RUNS:
        return None
    columns = _columns(runs)
    factors = SHARES[:, None] / known.operator
    operators_s, collectives_s = columns.operators_s * factors, columns.collectives_s
    host_s = operators_s + (collectives_s * factors if alike else collectives_s)
    share = float(SHARES[_best(columns, columns.device_s, host_s)])
    return replace(known, operator=share, collective=share if alike else known.collective)


def times_s(results: Sequence[Result], fitted: Fitted) -> Floats:
    """The predicted times of runs under other values of the fitted numbers."""
    columns = _columns(results, fitted)
    return soft_maximum(columns.device_s, columns.host_s)


def kinds(results: Sequence[Result]) -> list[str]:
    """The kinds of devices that runs are on."""
    return list(dict.fromkeys(kind_of(result) for result in results))


def kind_of(result: Result) -> str:
    """The kind of a run's devices, without form and memory: A100."""
    return _profile(result.run.hardware).devices[0].kind.split("-")[0]


def profile_clock(kind: str, results: Sequence[Result]) -> float:
    """The clock that the profiles have for a kind of device."""
    run = next(r.run for r in results if kind_of(r) == kind)
    return _profile(run.hardware).devices[0].sustained_clock


@dataclass(frozen=True)
class _Columns:
    """Runs as arrays (n,).

    `operators` and `collectives` are counts times what the framework takes of them, `operators_s`
    and `collectives_s` the host's time for them. `slope_s` is how much longer the devices take per
    1 / clock, in shares of `clock`.
    """

    published_s: Floats
    device_s: Floats
    slope_s: Floats
    clock: Floats
    operators: Floats
    collectives: Floats
    operators_s: Floats
    collectives_s: Floats

    @property
    def host_s(self) -> Floats:
        """The host's time of each run."""
        return self.operators_s + self.collectives_s

    def at_clock(self, clock: Floats) -> Floats:
        """The devices' time at another sustained clock."""
        return self.device_s + self.slope_s * (self.clock / clock - 1.0)


def _columns(results: Sequence[Result], fitted: Fitted = AS_THEY_ARE) -> _Columns:
    rows = [_row(result, fitted) for result in results]
    columns = _Columns(*np.array(rows, dtype=np.float64).reshape(len(rows), 8).T)
    if not fitted.clocks:
        return columns
    own = zip(results, columns.clock, strict=True)
    wanted = [fitted.clocks.get(kind_of(result), clock) for result, clock in own]
    return replace(columns, device_s=columns.at_clock(np.array(wanted)))


def _row(result: Result, fitted: Fitted) -> tuple[float, ...]:
    stored, profile = result.stored, _profile(result.run.hardware)
    host = Host(0.0, 0.0) if profile.host is None else fitted.host or profile.host
    known = FRAMEWORKS[result.run.framework]
    framework = fitted.frameworks.get(result.run.framework, known)
    operators = stored.operators * framework.operator
    collectives = stored.collectives * framework.collective
    return (
        result.run.iteration_s,
        stored.device_s,
        (stored.slower_device_s - stored.device_s) / (1.0 / SLOWER - 1.0),
        profile.devices[0].sustained_clock,
        operators,
        collectives,
        operators * host.operator_s,
        collectives * host.collective_s,
    )


def _best(columns: _Columns, device_s: Floats, host_s: Floats) -> int:
    """The position of the times, (values, n), with the least median miss; of several with the same
    the least mean."""
    device_s, host_s = np.broadcast_arrays(device_s, host_s)
    misses = np.abs(np.log(soft_maximum(device_s, host_s) / columns.published_s))
    return int(np.lexsort((misses.mean(axis=1), np.median(misses, axis=1)))[0])


@cache
def _profile(name: str) -> Hardware:
    return load_hardware(name)
