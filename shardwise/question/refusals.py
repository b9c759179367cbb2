"""What has no answer: the one table of combinations that are refused, each with its reason.

What is not in the table works, through every door (`tests/property/test_combinations.py`); the
table is printed in docs/reference/refusals.md. Values that no question may have, such as an unknown
optimizer, are refused where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.cost.named_options import of_request
from shardwise.cost.options import TOFU
from shardwise.errors import BadInput
from shardwise.pipeline.asked import ANY, PIPED_TRAINERS, WHOLE_BACKWARD
from shardwise.question.question import Question


@dataclass(frozen=True)
class Refusal:
    """A combination without an answer.

    `what` names it, `why` is the reason and `instead` what is expected of `field`, which is a
    member of the question, or with `of_options` one of its options as the command line names it.
    `refuses` says whether a question is one; `given` is what it has there, as errors quote it.
    """

    what: str
    field: str
    instead: str
    why: str
    refuses: Callable[[Question], bool]
    given: Callable[[Question], object] = lambda question: ""
    of_options: bool = False

    def error(self, question: Question) -> BadInput:
        """Returns the error that tells why a question is refused."""
        given = str(self.given(question))
        quoted = f"{given}: " if given else ""
        return BadInput(
            f"{quoted}no answer for {self.what}: {self.why}",
            field=self.field,
            expected=self.instead,
        )


def _trained(question: Question) -> bool:
    return question.space != ANY


SUMMED = "the replayed step is searched there, sums of times are not"

REFUSALS: tuple[Refusal, ...] = (
    # A trainer's space.
    Refusal(
        "a trainer's space on devices of several kinds",
        "space",
        "any, or devices of one kind",
        "no trainer here divides a model unevenly",
        lambda q: _trained(q) and q.several_kinds,
        lambda q: q.devices or "",
    ),
    Refusal(
        "a trainer's space by sums",
        "objective",
        "the replayed step",
        SUMMED,
        lambda q: _trained(q) and not q.options.replays,
        of_options=True,
    ),
    Refusal(
        "a trainer's space with rules",
        "pin",
        "none",
        "its strategies are for the whole model",
        lambda q: _trained(q) and bool(q.options.pins),
        of_options=True,
    ),
    Refusal(
        "a trainer's space in another order",
        "order",
        "program",
        "trainers run the program's order",
        lambda q: _trained(q) and q.order not in (None, "program"),
        lambda q: q.order,
    ),
    Refusal(
        "a point of a frontier in a trainer's space",
        "point",
        "none",
        "frontiers are of all strategies",
        lambda q: _trained(q) and q.point is not None,
    ),
    Refusal(
        "a trainer's pipelines",
        "space",
        f"{' or '.join(PIPED_TRAINERS)} with stages",
        "its own pipelines are not read or written here",
        lambda q: _trained(q) and q.piped and q.space not in PIPED_TRAINERS,
        lambda q: q.space[:40],
    ),
    Refusal(
        "another objective of a trainer's pipelines",
        "objective",
        "mini-time",
        "only the fastest of them is looked for",
        lambda q: _trained(q) and q.piped and not q.picks_fastest,
        lambda q: q.objective,
    ),
    # Pipelines.
    Refusal(
        "an order of execution with stages",
        "order",
        "none with stages",
        "stages run what their schedule says",
        lambda q: q.piped and q.order is not None,
        lambda q: q.order,
    ),
    Refusal(
        "schedules without stages",
        "schedules",
        "none without stages",
        "they say how stages run micro-batches",
        lambda q: not q.piped and q.schedules is not None,
        lambda q: ", ".join(q.asked_schedules),
    ),
    Refusal(
        "a pipeline by sums",
        "objective",
        "the replayed step",
        SUMMED,
        lambda q: q.piped and not q.options.replays,
        of_options=True,
    ),
    Refusal(
        "offloading in a pipeline",
        "offload",
        "none with stages",
        "when a stage's states come and go depends on its schedule, which is not priced",
        lambda q: q.piped and q.options.step.offloads_states,
        of_options=True,
    ),
    Refusal(
        "gradients applied at once in a pipeline",
        "stages",
        "1 with these",
        "the gradients of a stage's micro-batches add up",
        lambda q: q.piped and q.options.gradients_applied_at_once,
    ),
    Refusal(
        "a policy with stages",
        "stages",
        "1 with a policy",
        "it was taught steps without stages",
        lambda q: q.piped and q.options.policy is not None,
    ),
    Refusal(
        "split or interleaved schedules on devices of several kinds",
        "schedules",
        f"some of {', '.join(WHOLE_BACKWARD)}",
        "a rank with several stages or a split backward has one kind's times",
        lambda q: q.piped and q.several_kinds and not set(q.asked_schedules) <= set(WHOLE_BACKWARD),
        lambda q: ", ".join(s for s in q.asked_schedules if s not in WHOLE_BACKWARD),
    ),
    # Devices of several kinds.
    Refusal(
        "a search by sums on devices of several kinds",
        "objective",
        "the replayed step, and another method than tofu",
        "a sum does not say which device waits for which",
        lambda q: q.several_kinds and not q.options.replays,
        lambda q: q.devices or "",
        of_options=True,
    ),
    Refusal(
        "offloading on devices of several kinds",
        "offload",
        "none, or devices of one kind",
        "what the hosts of different machines share is not priced",
        lambda q: q.several_kinds and q.options.step.offloads_states,
        of_options=True,
    ),
    Refusal(
        "a policy on devices of one kind",
        "policy",
        "a profile with groups, or no policy",
        "it decides between kinds of devices",
        lambda q: q.options.policy is not None and not q.several_kinds,
        of_options=True,
    ),
    Refusal(
        "a policy of another question",
        "policy",
        "a frontier or a plan",
        "the other questions do not begin with given strategies",
        lambda q: q.options.policy is not None and q.kind not in ("plan", "frontier"),
        of_options=True,
    ),
    # Comparisons.
    Refusal(
        "pipelines compared on devices of several kinds",
        "gpus",
        "a number with stages; plan and frontier take devices of several kinds",
        "the systems whose pipelines are compared know one kind",
        lambda q: q.kind == "compare" and q.piped and q.several_kinds,
        lambda q: q.devices or "",
    ),
    Refusal(
        "a comparison with Tofu's method",
        "method",
        "our own method",
        "Tofu is one of the systems that are compared",
        lambda q: q.kind == "compare" and q.options.method == TOFU,
        of_options=True,
    ),
    Refusal(
        "a comparison with rules",
        "pin",
        "none",
        "other systems have none",
        lambda q: q.kind == "compare" and bool(q.options.pins),
        of_options=True,
    ),
    Refusal(
        "a comparison by sums of several numbers of micro-batches",
        "micro-batches",
        "one number",
        "the systems that add up times have none",
        lambda q: (
            q.kind == "compare" and not q.options.overlap and len(q.options.micro_batches) > 1
        ),
        lambda q: list(q.options.micro_batches),
        of_options=True,
    ),
    # Configurations.
    Refusal(
        "a trainer's configuration on devices of several kinds",
        "gpus",
        "devices of one kind",
        "no trainer here divides a model unevenly",
        lambda q: q.kind == "pricing" and q.several_kinds,
        lambda q: q.devices or "",
    ),
    Refusal(
        "a trainer's configuration by sums",
        "objective",
        "the replayed step",
        SUMMED,
        lambda q: q.kind == "pricing" and not q.options.replays,
        of_options=True,
    ),
    Refusal(
        "a trainer's configuration with rules",
        "pin",
        "none",
        "its strategy is what the file says",
        lambda q: q.kind == "pricing" and bool(q.options.pins),
        of_options=True,
    ),
)


def check(question: Question, *, requested: bool = False) -> None:
    """Raises `BadInput` for a question that is in the table, with what is expected instead.

    Fields are members of the question, or options by the command line's names; `requested` names
    options as members of a request (`options.overlap`).
    """
    for refusal in REFUSALS:
        if refusal.refuses(question):
            error = refusal.error(question)
            if not (requested and refusal.of_options):
                raise error
            if refusal.field == "objective":
                raise BadInput(error.problem, field="options.overlap", expected="true")
            raise of_request(error)
