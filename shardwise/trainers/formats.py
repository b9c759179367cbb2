"""The trainers by name: what `shardwise export --to` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.near import did_you_mean, near
from shardwise.trainers import accelerate, deepspeed, fsdp2, megatron, nanotron, torchtitan
from shardwise.trainers.job import Limits, Written, job_of

JSON = "application/json"
SHELL = "text/x-shellscript"
TOML = "application/toml"
YAML = "application/yaml"
PYTHON = "text/x-python"


@dataclass(frozen=True)
class Format:
    """A trainer's configuration: its usual file name, its media type, what it can say."""

    name: str
    filename: str
    media_type: str
    limits: Limits
    write: Callable[[Any], Written]


TRAINERS = {
    form.name: form
    for form in (
        Format("torchtitan", torchtitan.FILENAME, TOML, torchtitan.LIMITS, torchtitan.write),
        Format("megatron", megatron.FILENAME, SHELL, megatron.LIMITS, megatron.write),
        Format("deepspeed", deepspeed.FILENAME, JSON, deepspeed.LIMITS, deepspeed.write),
        Format("fsdp2", fsdp2.FILENAME, PYTHON, fsdp2.LIMITS, fsdp2.write),
        Format("accelerate", accelerate.FILENAME, YAML, accelerate.LIMITS, accelerate.write),
        Format("nanotron", nanotron.FILENAME, YAML, nanotron.LIMITS, nanotron.write),
    )
}


_BESIDE_ADAPTERS = ("accelerate", "deepspeed")
"""Trainers whose files leave what is trained to the script that they are for."""


def write_for(plan: Plan, trainer: str) -> Written:
    """Returns a plan or a pipeline as the configuration of a trainer, one of `TRAINERS`.

    Raises `BadInput` for an unknown trainer, for a plan that was not made for a trainer, and for
    one that the trainer's configuration cannot say.
    """
    if trainer not in TRAINERS:
        raise BadInput(
            f"unknown trainer {trainer[:40]!r}{did_you_mean(near(trainer, TRAINERS))}",
            field="to",
            expected=", ".join(TRAINERS),
        )
    if deepspeed.offloads_states(plan) and trainer != deepspeed.NAME:
        raise BadInput(
            f"the plan has states on the host, which a file of {trainer} does not say",
            field="to",
            expected=deepspeed.NAME,
        )
    if plan.tune and trainer not in _BESIDE_ADAPTERS:
        raise BadInput(
            f"the plan tunes with {plan.tune}, which a file of {trainer} does not say",
            field="to",
            expected=" or ".join(_BESIDE_ADAPTERS) + ", whose files say only how it is sharded",
        )
    if plan.piped:
        # Some writers look at a plan's splits before its job.
        job_of(plan, trainer, TRAINERS[trainer].limits)
    return TRAINERS[trainer].write(plan)
