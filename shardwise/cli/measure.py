"""measure: this machine's (or job's) collectives, devices, host, overlap, waiting as a profile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from shardwise.cli.arguments import json_option, quiet_option
from shardwise.cli.kinds import Kinds, kind_options
from shardwise.cli.measure_operators import OperatorWish, operator_options, show_operators
from shardwise.cli.output import emit, progress, say
from shardwise.cli.profile_tables import show_profile
from shardwise.errors import BadInput
from shardwise.hardware import Hardware, hardware_document, hardware_from_document
from shardwise.hardware.bandwidth import OPERATIONS
from shardwise.measure.labels import own_label, parse_kinds
from shardwise.measure.options import TIME_LIMIT_S, MeasureOptions
from shardwise.measure.world import STORE_VARIABLE, World, find_world
from shardwise.outfiles import check_output, write_json
from shardwise.sizes import parse_option

RUN_DIR_VARIABLE = "SHARDWISE_RUN_DIR"
REPORT = Path("report") / "profile.json"


@click.command()
@click.option(
    "--ranks", type=click.IntRange(1), help="Number of processes to start on this machine."
)
@click.option("-o", "--output", help="The profile file to write.")
@click.option("--name", default="", help="The profile's name.")
@click.option("--collectives", is_flag=True, help="Only collectives (and what a device can do).")
@click.option("--overlap", is_flag=True, help="Only overlap, waiting and what a device can do.")
@click.option(
    "--operations",
    default=",".join(OPERATIONS),
    show_default=True,
    help="Which collectives.",
)
@click.option(
    "--memory", help="What one rank's buffers may take: 512MiB. Default: a share of free."
)
@click.option("--min-size", default="1KiB", show_default=True, help="The smallest size.")
@click.option("--step", default=2.0, show_default=True, help="From one size to the next, a factor.")
@click.option("--max-size", help="The largest size of a collective: 64MiB.")
@click.option(
    "--time-limit",
    type=float,
    default=TIME_LIMIT_S,
    show_default=True,
    help="Seconds for all of it; the largest sizes are left out first.",
)
@click.option(
    "--backend", type=click.Choice(["auto", "gloo", "nccl"]), default="auto", show_default=True,
    help="auto: nccl where there are GPUs.",
)  # fmt: skip
@click.option(
    "--nodes-per-rack", type=int, help="The way between racks of so many nodes is a level."
)
@click.option("--allow-busy", is_flag=True, help="Measure even if other processes use the GPU.")
@kind_options
@operator_options
@quiet_option
@json_option
def measure(
    ranks: int | None,
    output: str | None,
    name: str,
    collectives: bool,
    overlap: bool,
    operations: str,
    memory: str | None,
    min_size: str,
    step: float,
    max_size: str | None,
    time_limit: float,
    backend: str,
    nodes_per_rack: int | None,
    allow_busy: bool,
    kinds: str | None,
    slowed: str | None,
    operators: str | None,
    hardware: str | None,
    gpus: int | None,
    operators_of: str,
    optimizer: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure this machine; under torchrun or srun, all machines of the job."""
    wish = OperatorWish.of_options(operators, hardware, gpus, operators_of, optimizer)
    options = MeasureOptions(
        collectives=collectives or not overlap,
        overlap=overlap or not collectives,
        operations=tuple(word.strip() for word in operations.split(",") if word.strip()),
        memory_bytes=None if memory is None else parse_option(memory, "memory"),
        time_limit_s=time_limit,
        min_bytes=int(parse_option(min_size, "min-size")),
        step=step,
        max_bytes=None if max_size is None else parse_option(max_size, "max-size"),
        backend=backend,
        allow_busy=allow_busy,
        name=name,
        nodes_per_rack=nodes_per_rack,
    )
    world = None if ranks is not None else find_world(is_even=False)
    if kinds is not None and world is None and ranks is None:
        ranks = len(parse_kinds(kinds))
    target = output or _report()
    check_output(target)
    if wish is not None and wish.profile is not None:
        profile: Hardware | None = wish.profile
    elif world is None:
        profile = _local(ranks or _devices(), options, Kinds(kinds, slowed), wish, quiet)
    else:
        profile = _as_rank(world, options, Kinds(kinds, slowed), wish, quiet)
    if profile is None:
        return
    # Ranks of several kinds have measured operators themselves.
    if wish is not None and (wish.profile is not None or not profile.groups):
        profile = wish.added_to(
            profile,
            time_limit_s=time_limit,
            memory_bytes=options.memory_bytes,
            allow_busy=allow_busy,
            quiet=quiet or as_json,
        )
    if target is not None:
        write_json(hardware_document(profile), target)
    if STORE_VARIABLE in os.environ and world is not None:
        return
    if as_json:
        emit(hardware_document(profile))
        return
    show_profile(profile)
    show_operators(profile)
    if target is not None:
        say(f"wrote {target}")


def _report() -> str | None:
    """Returns the path at which an agent expects the profile; None if no agent started this."""
    folder = os.environ.get(RUN_DIR_VARIABLE)
    if folder is None:
        return None
    target = Path(folder) / REPORT
    target.parent.mkdir(exist_ok=True)
    return str(target)


def _devices() -> int:
    """Returns the number of GPUs. Raises `BadInput` without any, since the number of ranks is then
    unknown."""
    from shardwise.measure.rank import load_torch

    count: int = load_torch().cuda.device_count()
    if not count:
        raise BadInput("no GPU here", field="ranks", expected="--ranks N: how many processes")
    return count


def _as_rank(
    world: World, options: MeasureOptions, kinds: Kinds, wish: OperatorWish | None, quiet: bool
) -> Hardware | None:
    from shardwise.measure.local import end_with_starter
    from shardwise.measure.run import measure as run

    end_with_starter()
    label = own_label(world.rank, world.size, kinds.kinds, kinds.slowed)
    question = None if wish is None else wish.question(options.time_limit_s)
    if STORE_VARIABLE in os.environ:
        return run(world, options, _print_progress, label, question)
    with progress(quiet or world.rank > 0, stoppable=False) as tell:
        return run(world, options, lambda stage, done: _tell(tell, stage, done), label, question)


def _print_progress(stage: str, done: float) -> None:
    print(f"{done}\t{stage}", flush=True)


def _tell(tell: Callable[[str, float], bool], stage: str, done: float) -> None:
    tell(stage, done)


def _local(
    ranks: int, options: MeasureOptions, kinds: Kinds, wish: OperatorWish | None, quiet: bool
) -> Hardware:
    own_label(0, ranks, kinds.kinds, kinds.slowed)  # refuses what no rank could be
    options.check_racks(nodes=1)
    arguments = [*_arguments(options), *kinds.arguments()]
    limit_s = options.time_limit_s
    if kinds.kinds is not None and wish is not None:
        arguments += wish.arguments()
        limit_s *= 2  # operators have as much again
    from shardwise.measure.local import run_ranks

    with progress(quiet, stoppable=False) as tell:

        def report_line(line: str) -> None:
            done, _, stage = line.partition("\t")
            tell(stage, float(done))

        written = run_ranks(ranks, arguments, limit_s, report_line)
    return hardware_from_document(msgspec.json.decode(written))


def _arguments(options: MeasureOptions) -> list[str]:
    """Returns the options as arguments for the ranks."""
    arguments = ["--operations", ",".join(options.operations), "--backend", options.backend]
    arguments += ["--time-limit", str(options.time_limit_s), "--name", options.name]
    arguments += ["--min-size", str(options.min_bytes), "--step", str(options.step)]
    if not options.overlap:
        arguments.append("--collectives")
    if not options.collectives:
        arguments.append("--overlap")
    if options.memory_bytes is not None:
        arguments += ["--memory", str(options.memory_bytes)]
    if options.max_bytes is not None:
        arguments += ["--max-size", str(options.max_bytes)]
    if options.allow_busy:
        arguments.append("--allow-busy")
    return arguments
