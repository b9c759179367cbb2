"""The JSON that nccl-tests writes (`-J FILE`, versions 1 to 3)."""

from __future__ import annotations

from pathlib import PurePath

import msgspec
import numpy as np

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.hardware.imports.run import Place, Row, Run, operation_of


class _Device(msgspec.Struct):
    rank: int
    hostname: str
    group: int = 0
    device_info: str = ""


class _Config(msgspec.Struct, frozen=True):
    nthreads: int = 1
    ngpus: int = 1
    devices: list[_Device] = []


class _Timing(msgspec.Struct):
    time: float | str | None = None
    cpu_time: float | str | None = None
    nwrong: float | str | None = None


class _Iterations(msgspec.Struct):
    times_us: list[float] = []


class _Result(msgspec.Struct):
    size: int
    type: str = ""
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None
    out_of_place_per_iter: _Iterations | None = None
    in_place_per_iter: _Iterations | None = None


class _Output(msgspec.Struct):
    results: list[_Result]
    args: list[str] = []
    config: _Config = _Config()
    devices: list[_Device] = []


def parse_json(text: bytes, file: str) -> list[Run]:
    """Returns the run of a file. Raises `BadInput`, which names the field."""
    output = validation.decode(text, _Output, file=file, expected="nccl-tests' JSON")
    program = PurePath(output.args[0]).name if output.args else ""
    run = Run(file, operation_of(program, file) if program else "", _places(output))
    for number, result in enumerate(output.results):
        row = _row(result, file, f"results[{number}]")
        if row is not None:
            run.rows.append(row)
    return [run] if run.rows else []


def _places(output: _Output) -> list[Place]:
    """Returns the places of all ranks: a process names its first device, the others follow it."""
    each = output.config.nthreads * output.config.ngpus
    return [
        Place(device.rank + i, device.group, device.hostname, device.device_info)
        for device in output.config.devices or output.devices
        for i in range(each)
    ]


def _row(result: _Result, file: str, where: str) -> Row | None:
    for name in ("out_of_place", "in_place"):
        timing: _Timing | None = getattr(result, name)
        if timing is None:
            continue
        if isinstance(timing.nwrong, float) and timing.nwrong != 0:
            raise BadInput(
                f"{timing.nwrong:g} wrong values",
                file=file,
                field=f"{where}.{name}",
                expected="results that nccl-tests found correct",
            )
        time = timing.time if timing.time is not None else timing.cpu_time
        if not isinstance(time, float) or not np.isfinite(time) or time <= 0:
            raise BadInput(
                f"{time!r} as a time",
                file=file,
                field=f"{where}.{name}.time",
                expected="microseconds above 0",
            )
        each: _Iterations | None = getattr(result, f"{name}_per_iter")
        times = tuple(t for t in each.times_us if t > 0) if each is not None else ()
        if result.size == 0:
            return None
        return Row(result.size, tuple(t * 1e-6 for t in times or (time,)), result.type)
    return None
