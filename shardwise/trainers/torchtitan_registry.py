"""torchtitan's registry in Python, as of 0.3: a launch names `--module` and `--config`, and what
these are only torchtitan knows. It is asked in a process of its own, for its own modules alone: a
registry of somebody's own is a program, which reading a file must not run.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise import validation
from shardwise.child_process import ending_with_us
from shardwise.errors import BadInput
from shardwise.trainers import precisions, torchtitan_read
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.launched import launched_by
from shardwise.trainers.megatron_flags import left_open
from shardwise.trainers.shell import Commands, commands_of, known
from shardwise.trainers.torchtitan import OPERATORS

MARKS = re.compile(r"--module[=\s](?s:.)*--config[=\s]|--config[=\s](?s:.)*--module[=\s]")
"""Flags by which a launch is of the registry: torchtitan requires both."""

IN_PYTHON = re.compile(r"(?m)^def \w+\(\) -> (?:\w+\.)*Trainer\.Config:")
"""The functions of a registry's own file."""

_PROGRAM = "torchtitan.train"
_LONGEST_S = 120.0
_MOST_BYTES = 2**24

_ASK = """
import contextlib, json, re, sys
with contextlib.redirect_stdout(sys.stderr):
    from torchtitan.config import ConfigManager
    from torchtitan.experiments import _supported_experiments
    from torchtitan.models import _supported_models
    named = [one.partition("=") for one in sys.argv[1:]]
    modules = [after[0] if not value else value
               for (flag, _, value), after in zip(named, [*named[1:], ("",)])
               if flag == "--module"]
    if not set(modules) <= set(_supported_models) | set(_supported_experiments):
        sys.exit("not one of torchtitan's own modules: " + ", ".join(modules)[:80])
    config = ConfigManager().parse_args(sys.argv[1:])
    spec = config.model_spec
    said = config.to_dict()
    kept = ("training", "parallelism", "compile", "optimizer")
    said = {name: said.get(name) for name in kept}
    of_model = repr(spec.model)
    print(json.dumps({
        **said,
        "model": {"name": spec.name, "flavor": spec.flavor},
        "recompute": type(config.activation_checkpoint).__qualname__,
        "loss": type(config.loss).__qualname__,
        "converters": sorted(set(re.findall("Float8|MXFP8|NVFP4", of_model))),
        "recipes": sorted(set(re.findall("(?:rowwise|tensorwise)(?:_with_gw_hp)?", of_model))),
    }, default=repr), file=sys.__stdout__)
"""

_RECOMPUTED = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}


def is_launch(text: str) -> bool:
    """Returns whether a text launches a configuration of the registry."""
    return bool(MARKS.search(text)) and ("torchtitan" in text or text.lstrip().startswith("--"))


def read(text: str, gpus: int) -> Configuration:
    """Returns what a launch of torchtitan says, by asking torchtitan itself.

    Raises `BadInput` where torchtitan is not installed or refuses the launch.
    """
    if importlib.util.find_spec("torchtitan") is None:
        raise BadInput(
            "it names a configuration of torchtitan's registry in Python, which only torchtitan "
            "can read, and torchtitan is not installed here",
            expected="torchtitan 0.3 beside Shardwise, or a job's TOML",
        )
    script = commands_of(text)
    said = _asked(_arguments(script))
    found = torchtitan_read.read(_document(said), gpus)
    left_out = list(found.left_out)
    stated = dict(found.stated)
    converters = said.get("converters")
    if converters:
        precision = precisions.of_registry(converters, said.get("recipes") or [])
        if precision is None:
            left_out.append(f"the model's converters: {precisions.OTHER}")
        else:
            stated[precisions.PRECISION] = precision
    if str(said.get("loss")).startswith("Chunked"):
        left_out.append("the chunked loss: priced with the logits of all tokens")
    launched = launched_by(script, text)
    return replace(found, left_out=left_out, stated=stated, launched=launched)


def refused_elsewhere() -> BadInput:
    """Returns the error for a launch that somebody else's machine is asked about."""
    return BadInput(
        "it names a configuration of torchtitan's registry in Python",
        expected="a job's TOML here; `shardwise explain --like FILE` asks torchtitan on your own "
        "machine",
    )


def refused_source() -> BadInput:
    """Returns the error for the file that has the registry's functions."""
    return BadInput(
        "it is a registry of torchtitan in Python, which is not run",
        expected="a launch script or its flags: --module llama3 --config llama3_8b",
    )


def _arguments(script: Commands) -> list[str]:
    """Returns the flags of the launch; raises `BadInput` where the script leaves them open."""
    launches = [words for words in script.commands if MARKS.search(" ".join(words) + " ")]
    if not launches:
        raise BadInput("no command has both", field="--module, --config", expected="a launch")
    words = launches[0]
    words = words[words.index(_PROGRAM) + 1 :] if _PROGRAM in words else words
    while words and not words[0].startswith("--"):
        words = words[1:]
    for word in words:
        if not known(word):
            raise left_open(next(script.texts.inside(word)), "torchtitan's flags")
    return words


def _asked(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Returns torchtitan's answer; raises `BadInput` with the end of what it says."""
    command = ending_with_us([sys.executable, "-P", "-c", _ASK, *arguments])
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"torchtitan took more than {_LONGEST_S:g} s to read it",
            expected="a registry that torchtitan reads sooner",
        ) from None
    if answer.returncode or len(answer.stdout) > _MOST_BYTES:
        lines = answer.stderr.decode("utf-8", "replace").strip().splitlines() or [""]
        raise BadInput(
            f"torchtitan refuses it: {lines[-1][:300]}", expected="flags that torchtitan takes"
        )
    return validation.decode(answer.stdout, dict[str, Any])


def _document(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer in the layout of a job's TOML."""
    optimizer = said.get("optimizer")
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
    name = groups[0].get("optimizer_name") if groups else "AdamW"
    mode = _RECOMPUTED.get(str(said.get("recompute")).partition(".")[0], "none")
    document = {key: _given(said.get(key)) for key in ("training", "parallelism", "compile")}
    return {
        **document,
        "model": said.get("model"),
        "optimizer": {"name": name},
        "activation_checkpoint": {"mode": mode, "selective_ac_option": OPERATORS},
    }


def _given(section: Any) -> dict[str, Any]:
    """Returns the members of a section that are not null."""
    if not isinstance(section, Mapping):
        return {}
    return {key: value for key, value in section.items() if value is not None}
