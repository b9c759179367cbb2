"""Predictions as they are stored in predictions.json, one line for each run, and their errors.

The page is made of these lines and the rows alone, without a capture. A line has

    row              what the prediction depends on, as a hash (`Run.predicted_as`)
    parameters       of the captured model
    time_s           of the step, with the wait for the host
    device_s         of the devices alone, communication overlapped; host_s: of the host alone
    compute_s, communication_s          busy times of both streams, which the sum adds up
    peak_bytes, kept_bytes              of one device: replayed, added up
    operators, collectives              what the host launches in a step (predict.py)
    slower_device_s  device_s when the devices sustain SLOWER of their clocks

Of a run with a pipeline sums and busy times are those of the rank that is busiest, and no number is
fitted to it: operators and collectives are 0, slower_device_s is device_s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardwise.errors import BadInput
from shardwise.files import read_bounded, write_whole
from shardwise.validation import convert

from .reading import Published
from .run import Run

FILE = Path(__file__).with_name("predictions.json")

DIGITS = 7
"""Significant digits of what is stored."""

SLOWER = 0.9
"""The share of the clocks at which `slower_device_s` is predicted."""

SMALL_PARAMETERS = 1.5e9
SMALL_TOKENS = 4096


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of predictions.json."""

    row: str
    parameters: int
    time_s: float
    device_s: float
    host_s: float
    compute_s: float
    communication_s: float
    peak_bytes: float
    kept_bytes: float
    operators: int
    collectives: int
    slower_device_s: float

    def rounded(self) -> Stored:
        """Returns the same line in DIGITS digits, as it is stored."""
        content = msgspec.structs.asdict(self)
        floats = {k: float(f"{v:.{DIGITS}g}") for k, v in content.items() if isinstance(v, float)}
        return msgspec.structs.replace(self, **floats)


@dataclass(frozen=True)
class Result:
    """A published run and its prediction; `project` is whose figures they are.

    Errors are predicted over published, less one; of memory None where none was published.
    """

    run: Run
    project: str
    stored: Stored

    @property
    def time_error(self) -> float:
        """Of the step's time."""
        return self.stored.time_s / self.run.iteration_s - 1.0

    @property
    def sum_error(self) -> float:
        """Of compute and communication added up, without the host."""
        both = self.stored.compute_s + self.stored.communication_s
        return both / self.run.iteration_s - 1.0

    @property
    def peak_error(self) -> float | None:
        """Of the replayed peak."""
        return self._of_memory(self.stored.peak_bytes)

    @property
    def memory_error(self) -> float | None:
        """Of what a step keeps, added up."""
        return self._of_memory(self.stored.kept_bytes)

    def _of_memory(self, predicted: float) -> float | None:
        published = self.run.memory_bytes
        return None if published is None else predicted / published - 1.0

    @property
    def size(self) -> str:
        """`small` for a small model or a small micro-batch, else `large`.

        Small are models of fewer than SMALL_PARAMETERS, and micro-batches of which a GPU computes
        fewer than SMALL_TOKENS: those of a rank over its tensor-parallel GPUs. Images count as
        no tokens, so that their models alone are small or large.
        """
        tokens = self.run.micro_batch * self.run.seq / self.run.tensor_parallel
        small = self.stored.parameters < SMALL_PARAMETERS or 0 < tokens < SMALL_TOKENS
        return "small" if small else "large"


def read_stored(path: Path = FILE) -> dict[str, Stored]:
    """The stored predictions by the name of their run; none where there is no file."""
    if not path.exists():
        return {}
    try:
        document = msgspec.json.decode(read_bounded(path, "a file of stored predictions"))
    except msgspec.DecodeError as error:
        raise BadInput(str(error), file=str(path), expected="JSON") from None
    if not isinstance(document, dict):
        raise BadInput("no object", file=str(path), expected="an object of predictions by run")
    return {
        name: convert(value, Stored, f"run {name}", file=str(path))
        for name, value in document.items()
    }


def write_stored(stored: Mapping[str, Stored], published: Published, path: Path = FILE) -> None:
    """Writes the predictions of published runs, in their order, one on each line."""
    lines = [
        f"{msgspec.json.encode(run.name).decode()}: "
        f"{msgspec.json.encode(stored[run.name]).decode()}"
        for run in published.runs
        if run.name in stored
    ]
    write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def results(published: Published, stored: Mapping[str, Stored]) -> list[Result]:
    """The runs with their stored predictions.

    Raises `BadInput` naming the runs that have none, or one of another row.
    """
    missing = stale(published, stored)
    if missing:
        raise BadInput(
            f"no prediction of {len(missing)} runs as they are now: {', '.join(missing[:5])}"
            + (", …" if len(missing) > 5 else ""),
            file=FILE.name,
            expected="a line for each run: python -m benchmarks.published --predict",
        )
    return [Result(run, published.project(run), stored[run.name]) for run in published.runs]


def stale(published: Published, stored: Mapping[str, Stored]) -> list[str]:
    """The names of runs that have no stored prediction, or one of another row."""
    return [run.name for run in published.runs if not is_current(run, stored)]


def is_current(run: Run, stored: Mapping[str, Stored]) -> bool:
    """Whether a run has a stored prediction of its row as it is."""
    line = stored.get(run.name)
    return line is not None and line.row == run.predicted_as


def included(items: Iterable[Result]) -> list[Result]:
    """Those that statistics are of: all but the outliers of their own sources."""
    return [result for result in items if not result.run.outlier]
