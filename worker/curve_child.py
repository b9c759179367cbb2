"""The child's side of a curve: computes the points that its parent names, one after another.

The parent says which count or bundle is next once the one before is known (worker/curves.py). So
what is known is the parent's at once, and whatever happens to this process costs one point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from service.base.problems import failure, failure_of
from service.questions.curves import curve_question_of
from service.questions.search_options import options_from_document
from shardwise.answers.count_limit import TooLong
from shardwise.answers.counts import Counts, place_text
from shardwise.answers.curve_points import point_progress
from shardwise.cost.options import Progress, go_on
from shardwise.documents import Curve
from shardwise.documents.questions import Gpus
from shardwise.errors import SolverError
from shardwise.graph import Graph

Say = Callable[[BinaryIO, dict[str, Any]], None]


@dataclass(frozen=True)
class Turn:
    """A point that the parent asks for: how many of the curve are known, and of how many."""

    place: Gpus
    done: int
    of: int


def compute_points(
    request: Mapping[str, Any],
    graph: Graph,
    turns: Iterator[Turn],
    progress: Progress,
    out: BinaryIO,
    say: Say,
) -> None:
    """Writes each point that is asked for, or why it is not known.

    Raises `BadInput` if the question suits no point, and `Cancelled`.
    """
    document = request["question"]
    options = options_from_document(document["options"], request["threads"])
    question = curve_question_of(document, graph, options)
    parts: dict[Gpus, Curve] = {}
    counts = Counts(question, question.places, parts, request["count_s"])
    for turn in turns:
        text = place_text(turn.place, turn.done, turn.of)
        one = point_progress(progress, text, turn.done, turn.of)
        try:
            part = counts.part(turn.place, one, counts.fewer(turn.place))
            go_on(one, text, 1.0)  # a search that was cancelled may have returned what it had
        except SolverError as error:
            say(out, {"unknown": failure_of(error)})
        except MemoryError:
            text = f"more than {request['memory_bytes']} bytes were needed"
            say(out, {"unknown": failure("memory-limit", text)})
        else:
            if isinstance(part, TooLong):
                say(out, {"unknown": failure("time-limit", str(part))})
                continue
            parts[turn.place] = part
            content = msgspec.json.encode(part)
            say(out, {"point": len(content)})
            out.write(content)
            out.flush()
