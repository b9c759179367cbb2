"""The stages of a pipeline as a table."""

from __future__ import annotations

from msgspec import UNSET

from shardwise.cli.output import table
from shardwise.documents import Pipeline
from shardwise.documents.pipeline import PlannedStage, shared_scope, units_text
from shardwise.texts import gib, seconds


def stages_table(pipeline: Pipeline) -> None:
    """Prints what each stage is, and what it takes."""
    outer, kinds = shared_scope(pipeline.stages), pipeline.bundle is not UNSET
    table(
        "stages",
        (
            "",
            *(["on"] if kinds else []),
            "units",
            "strategy",
            "keeps",
            "forward",
            "backward",
            "update",
            "hop",
            "idle",
            "peak GiB",
        ),
        [_row(number, stage, outer) for number, stage in enumerate(pipeline.stages)],
    )


def _row(number: int, stage: PlannedStage, outer: int) -> tuple[object, ...]:
    """Returns a stage's row; unit names are without their first `outer` letters."""
    return (
        number,
        *([] if stage.group is UNSET else [stage.group]),
        units_text(stage, outer),
        stage.label,
        stage.kept_micro_batches,
        seconds(stage.forward_s),
        seconds(stage.backward_s),
        seconds(stage.update_s),
        "-" if stage.hop_s is None else seconds(stage.hop_s),
        f"{stage.idle:.1%}",
        gib(stage.peak_bytes),
    )
