"""Where trainers look at curves: TensorBoard, Weights & Biases and MLflow, by `KIND:PLACE`.

`tensorboard:DIR` writes event files, `wandb:PROJECT` a run of that project (offline if
WANDB_MODE says so), `mlflow:URI` a run at that tracking server or folder (`mlflow:./mlruns`). The
libraries are not installed with Shardwise and are imported when they are used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadInput

FORMS = "tensorboard:DIR, wandb:PROJECT or mlflow:URI"
_MODULES = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow", "mlflow-skinny"),
}
"""Per kind the module that is used, the one that must be there, and what pip calls it."""

Values = Mapping[str, float]


@dataclass(frozen=True)
class Tracker:
    """`log` takes values by name and the number of the step, `note` texts by name."""

    log: Callable[[Values, int], None]
    note: Callable[[Mapping[str, str]], None]
    close: Callable[[], None]


def parse_tracker(text: str, field: str = "log") -> tuple[str, str]:
    """Returns the kind and the place of `KIND:PLACE`.

    Raises BadInput for another form, and for a kind whose library is not installed.
    """
    kind, colon, place = text.partition(":")
    if kind not in _MODULES or not colon or not place:
        raise BadInput(f"{text!r} is not a tracker", field=field, expected=FORMS)
    _, needed, package = _MODULES[kind]
    if importlib.util.find_spec(needed) is None:
        raise BadInput(f"{kind} is not installed", field=field, expected=f"pip install {package}")
    return kind, place


def open_tracker(text: str, name: str, field: str = "log") -> Tracker:
    """Opens a run called `name` at `KIND:PLACE`; raises BadInput as `parse_tracker` does.

    What the library itself refuses, such as a server that does not answer, is a BadInput too.
    """
    kind, place = parse_tracker(text, field)
    try:
        library = importlib.import_module(_MODULES[kind][0])
        return _OPENERS[kind](library, place, name)
    except Exception as error:
        raise BadInput(
            f"{kind} refuses {place!r}: {type(error).__name__}: {str(error)[:300]}",
            field=field,
            expected=FORMS,
        ) from None


def tracker_of(writer: Any) -> Tracker:
    """Returns the tracker that a script has already: a SummaryWriter, a W&B run, the module mlflow.

    Raises BadInput for another object. Such a writer is the script's to close.
    """
    if hasattr(writer, "add_scalar") and hasattr(writer, "add_text"):
        return _of_summary_writer(writer, _nothing)
    if hasattr(writer, "log_metrics") and hasattr(writer, "set_tags"):
        return Tracker(_mlflow_log(writer), writer.set_tags, _nothing)
    if hasattr(writer, "log") and hasattr(writer, "config"):
        return _of_wandb_run(writer, _nothing)
    raise BadInput(
        f"an object of type {type(writer).__name__} is not a tracker",
        field="writer",
        expected=f"{FORMS}, a SummaryWriter, a W&B run or the module mlflow",
    )


def _nothing() -> None:
    pass


def _open_tensorboard(library: Any, place: str, name: str) -> Tracker:
    writer = library.SummaryWriter(place)
    return _of_summary_writer(writer, writer.close)


def _of_summary_writer(writer: Any, close: Callable[[], None]) -> Tracker:
    def log(values: Values, step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    def note(texts: Mapping[str, str]) -> None:
        for key, text in texts.items():
            writer.add_text(key, text)

    return Tracker(log, note, close)


def _open_wandb(library: Any, place: str, name: str) -> Tracker:
    run = library.init(project=place, name=name)
    return _of_wandb_run(run, run.finish)


def _of_wandb_run(run: Any, close: Callable[[], None]) -> Tracker:
    def log(values: Values, step: int) -> None:
        # Without `step`, which W&B wants to ascend over all that a script logs.
        run.log({**values, "shardwise/step": step})

    return Tracker(log, lambda texts: run.config.update(dict(texts)), close)


def _open_mlflow(library: Any, place: str, name: str) -> Tracker:
    library.set_tracking_uri(place)
    library.start_run(run_name=name)
    return Tracker(_mlflow_log(library), library.set_tags, library.end_run)


def _mlflow_log(library: Any) -> Callable[[Values, int], None]:
    return lambda values, step: library.log_metrics(dict(values), step=step)


_OPENERS = {"tensorboard": _open_tensorboard, "wandb": _open_wandb, "mlflow": _open_mlflow}
