"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from shardwise.cost.options import (
    AUTO,
    METHODS,
    MOMENTS,
    RECOMPUTE,
    SIMPLEST,
    Options,
    Progress,
    quiet,
)
from shardwise.cost.pins import parse_pin
from shardwise.cost.software import FRAMEWORKS, KERNELS, RERUNS
from shardwise.cost.step_settings import (
    ACCUMULATIONS,
    CAPTURED,
    FLOAT32,
    GRADIENTS,
    NONE,
    OFFLOADS,
    SHARDS,
    STATES,
    UPDATES,
    WEIGHTS,
    StepSettings,
)
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.tuning import FULL
from shardwise.hardware.watts import parse_power
from shardwise.sharding.fusion import LOSS
from shardwise.sharding.precision import PRECISIONS
from shardwise.sizes import parse_option
from shardwise.step_sizes import StepSizes, sized, split_sizes

REPLAYED, SUM = "replayed", "sum"
"""Objectives: the time of a replayed step, or the sum of all its times."""

GPUS = (
    "GPUs of the job: exactly this number is used. Of a profile with groups by group: "
    "v100=2,1080ti=4."
)

OFFERS = (
    "skypilot[:FOLDER][?cloud=aws,gcp&region=R&gpu=H100&spot], the catalog that SkyPilot has "
    "downloaded, or a CSV file with its columns. [default: the shipped prices]"
)

Command = TypeVar("Command", bound=Callable[..., Any])


def load_graph(spec: str, progress: Progress = quiet) -> Graph:
    """Reads a graph file or `shipped:NAME`, or captures a preset, with its stages shown by
    `progress`."""
    from shardwise.capture.shipped import load_graph as load

    return load(spec, progress)


def graph_of_question(spec: str, server: str | None, progress: Progress) -> Graph | str:
    """Returns the graph, or for a `server` a preset's name, since the service may have its
    graph."""
    from shardwise.capture.source import parse_preset

    plain, _ = split_sizes(spec)
    if server and not Path(plain).exists() and parse_preset(plain) is not None:
        return spec
    return load_graph(spec, progress)


def sizes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--batch` and `--seq`, which become part of the text of `graph` (`step_sizes.py`)."""

    @wraps(command)
    def of_sizes(*, graph: str, batch: int | None, seq: int | None, **values: Any) -> Any:
        return command(graph=sized(graph, StepSizes(batch, seq)), **values)

    return size_options(of_sizes)


def size_options(command: Command) -> Command:
    """Adds `--batch` and `--seq`."""
    for option in (
        click.option(
            "--seq",
            type=click.IntRange(1),
            help="Tokens of a sample. [default: as the graph was captured]",
        ),
        click.option(
            "--batch",
            type=click.IntRange(1),
            help="Samples of a step, of presets and of graph files with symbols (docs/models.md). "
            "[default: as the graph was captured]",
        ),
    ):
        command = option(command)
    return command


def json_option(command: Command) -> Command:
    """Adds `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(
        command
    )


def output_option(command: Command) -> Command:
    """Adds `--output`, for the answer's whole document."""
    return click.option("-o", "--output", help="Write the answer's document here.")(command)


def quiet_option(command: Command) -> Command:
    """Adds `--quiet`."""
    return click.option("--quiet", is_flag=True, help="No progress.")(command)


def power_limit_option(command: Command) -> Command:
    """Adds `--power-limit`."""
    return click.option(
        "--power-limit", metavar="WATTS",
        help="The power that a GPU may take, such as 500W, by which busy products slow down "
        "(docs/hardware.md). [default: that of the profile]",
    )(command)  # fmt: skip


def search_options(command: Command) -> Command:
    """Adds the options of every search."""
    objective = click.option(
        "--objective",
        type=click.Choice([REPLAYED, SUM]),
        default=REPLAYED,
        show_default=True,
        help="sum: all times added up, nothing overlapped, as in TensorOpt.",
    )
    return other_search_options(objective(command))


def other_search_options(command: Command) -> Command:
    """Adds the options of every search, for a command with its own objective."""
    for option in (
        quiet_option,
        click.option("--time-limit", type=float, help="Seconds for each search."),
        click.option(
            "--search-memory", help="Memory that a search may use besides its input: 4GiB."
        ),
        click.option(
            "--max-configurations",
            type=click.IntRange(1),
            default=200,
            show_default=True,
            help="Per group; above it mesh axes are merged. 1000000: the full space.",
        ),
        click.option(
            "--threads",
            type=click.IntRange(0),
            default=0,
            help="Threads, of a curve processes too; 0: all cores.",
        ),
        click.option(
            "--method",
            type=click.Choice(METHODS),
            default="auto",
            show_default=True,
            help="tofu: the one strategy of Tofu's recursion, a peer to compare with.",
        ),
        click.option(
            "--optimizer",
            type=click.Choice(list(MOMENTS)),
            default="adam",
            show_default=True,
            help="Whose state is kept, and whose update is part of the step.",
        ),
        click.option(
            "--state",
            metavar="|".join((*STATES, "BITS")),
            default=FLOAT32,
            show_default=True,
            help="What the optimizer keeps: float32 moments and, of 16 bits, a float32 copy; or "
            "moments as the parameter (captured) or in 8 bits, without a copy; or the bits of copy "
            "and moments, such as 16:16:8.",
        ),
        click.option(
            "--gradients",
            type=click.Choice(GRADIENTS),
            default=CAPTURED,
            show_default=True,
            help="The dtype in which gradients add up and are reduced.",
        ),
        click.option(
            "--accumulate",
            type=click.Choice(ACCUMULATIONS),
            default=SHARDS,
            show_default=True,
            help="What stays of gradients between micro-batches under ZeRO 2 and 3: shards, or all "
            "of them, as with FSDP's no_sync.",
        ),
        click.option(
            "--weights",
            type=click.Choice(WEIGHTS),
            default=CAPTURED,
            show_default=True,
            help="What is stored of weights that products read in 8 or 4 bits: 16 bits with the "
            "rounded copies, or these alone, as Megatron with --fp8-param-gather.",
        ),
        click.option(
            "--offload",
            type=click.Choice(OFFLOADS),
            default=NONE,
            show_default=True,
            help="What is in the host's memory: the optimizer's states, where the host updates too "
            "(docs/offloading.md).",
        ),
        click.option(
            "--update",
            type=click.Choice(UPDATES),
            help="How the optimizer goes over parameters, which decides its temporaries. "
            "[default: as the framework has it: foreach, fused if compiled]",
        ),
        click.option(
            "--zero",
            default="0,1,2,3",
            show_default=True,
            help="ZeRO stages that may be used.",
        ),
        click.option(
            "--recompute",
            type=click.Choice(RECOMPUTE),
            help="Whether forward may run again in backward instead of keeping activations: auto "
            "unless named (never for --objective sum).",
        ),
        click.option(
            "--micro-batches",
            help="Micro-batches of a step, numbers to choose from, such as 1,2,4: all divisors of "
            "the batch unless named (1 for --objective sum).",
        ),
        click.option(
            "--precision",
            type=click.Choice(list(PRECISIONS)),
            default="captured",
            show_default=True,
            help="What weights and activations of float32 are computed in. fp8 (fp8:tensorwise), "
            "fp8:… and nvfp4: linear layers in 8 or 4 bits, all else in bf16 "
            "(docs/precision.md).",
        ),
        click.option(
            "--framework",
            type=click.Choice(list(FRAMEWORKS)),
            help="What launches the work of a step: how long GPUs wait for their host. [default: "
            "compiled on GPUs, with --kernels other than compiled and elsewhere eager]",
        ),
        click.option(
            "--kernels",
            type=click.Choice(list(KERNELS)),
            help="How light operators run, one by one or fused. [default: as the framework has it]",
        ),
        click.option(
            "--loss",
            type=click.Choice(list(LOSS)),
            help="How a cross entropy runs, which decides its memory. [default: as --kernels]",
        ),
        click.option(
            "--rerun",
            type=click.Choice(list(RERUNS)),
            help="What recomputation runs again: what backward needs, or the whole segment. "
            "[default: as the framework has it]",
        ),
        click.option(
            "--simplest",
            type=click.Choice(SIMPLEST),
            default=AUTO,
            show_default=True,
            help="Whether a plan is the simplest strategy within --epsilon of the fastest found.",
        ),
        click.option(
            "--pin",
            "pins",
            multiple=True,
            metavar="RULE",
            help="[PATTERN:]KEY=VALUE[,…] or !=: fix or forbid a choice (docs/strategies.md).",
        ),
        click.option(
            "--overlap",
            is_flag=True,
            hidden=True,
            help="What is searched without it, too: the replayed time.",
        ),
        click.option(
            "--policy",
            metavar="FILE",
            help="On devices of several kinds, begin with a policy's strategies too "
            "(docs/policy.md).",
        ),
        click.option("--memory", help="What one GPU may use, such as 14.5GB."),
        click.option("--room", help="What has to stay free of that, such as 5GB."),
        power_limit_option,
        click.option(
            "--tune",
            metavar="full|lora:RANK|qlora:RANK[:TARGETS]",
            default=FULL,
            show_default=True,
            help="What is trained: all, or adapters on TARGETS, beside frozen weights, in 4 bits "
            "with qlora: all-linear, attention or names (docs/tuning.md).",
        ),
        click.option(
            "--expert-imbalance",
            type=float,
            default=1.0,
            show_default=True,
            help="The busiest device's rows of experts over the mean (docs/experts.md).",
        ),
        click.option(
            "--epsilon", type=float, default=0.01, show_default=True, help="Certified error."
        ),
    ):
        command = option(command)
    return command


def given_options(values: Collection[str]) -> frozenset[str]:
    """Returns the options of the running command that were given explicitly."""
    context = click.get_current_context()
    return frozenset(
        name
        for name in values
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    )


def options_from(values: dict[str, Any]) -> Options:
    """Returns the options from the keywords that `search_options` gives.

    A keyword of a field's name is that field; others are converted here.
    """
    memory, room, search = values["memory"], values["room"], values["search_memory"]
    power = values["power_limit"]
    known = option_keywords()
    plain, step = (
        {item.name: values[item.name] for item in fields(kind) if item.name in known}
        for kind in (Options, StepSettings)
    )
    converted: dict[str, Any] = {
        "memory_limit_bytes": None if memory is None else parse_option(memory, "memory"),
        "memory_room_bytes": 0.0 if room is None else parse_option(room, "room"),
        "time_limit_s": values["time_limit"],
        "search_memory_bytes": (
            None if search is None else int(parse_option(search, "search-memory"))
        ),
        "zero": _numbers(values["zero"], "zero"),
        "micro_batches": _numbers(values["micro_batches"], "micro-batches"),
        "step": StepSettings(**{**step, "accumulation": values["accumulate"]}),
        "power_limit_w": None if power is None else parse_power(power),
        "pins": tuple(parse_pin(rule) for rule in values["pins"]),
        "overlap": values["objective"] != SUM,
    }
    return Options(**{**plain, **converted})


@cache
def option_keywords() -> frozenset[str]:
    """Returns the keywords that `other_search_options` gives to a command."""
    command = click.command()(other_search_options(lambda **values: None))
    return frozenset(option.name for option in command.params if option.name)


def _numbers(text: str | None, field: str) -> tuple[int, ...]:
    """Returns the comma-separated whole numbers, each once, ascending; none for an empty text."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BadInput(f"got {text!r}", field=field, expected="whole numbers, such as 1,2,4")
    return tuple(sorted({int(word) for word in words}))
