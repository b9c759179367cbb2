"""run: execute a plan on this host or job, and compare predicted with measured."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from shardwise.answers.plan import read_plan
from shardwise.cli.arguments import json_option, load_graph
from shardwise.cli.kinds import Kinds, kind_options
from shardwise.cli.output import emit, note, say, table
from shardwise.documents import Plan
from shardwise.errors import BadInput, ShardwiseError
from shardwise.measure.labels import Label, own_label
from shardwise.measure.measurement import predicted_values
from shardwise.measure.reported import log_measurement
from shardwise.measure.trackers import open_tracker, parse_tracker
from shardwise.measure.world import JOIN_S, World, find_world
from shardwise.outfiles import check_output, write_json
from shardwise.texts import milliseconds

RUN_DIR_VARIABLE = "SHARDWISE_RUN_DIR"
GRACE_S = 30.0


class RunFailed(ShardwiseError):
    """A rank ended with an error; its own output is above."""

    def __init__(self, code: int) -> None:
        how = f"was ended by signal {code - 128}" if code > 128 else f"ended with {code}"
        super().__init__(f"a rank {how}")
        self.exit_code = code if code in (1, 2) else 1


@click.command()
@click.argument("plan_file", required=False)
@click.argument("launcher", nargs=-1)
@click.option("--graph", "graph_spec", help="The plan's graph: a file or shipped:NAME.")
@click.option("--source", help="Its module instead, as `shardwise capture` took it.")
@click.option("--batch", type=click.IntRange(1), help="As for `shardwise capture`.")
@click.option("--seq", type=click.IntRange(1), help="As for `shardwise capture`.")
@click.option("--dtype", help="As for `shardwise capture`.")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Timed steps.")
@click.option(
    "--warm-up", type=click.IntRange(0), default=3, show_default=True, help="Steps before them."
)
@click.option(
    "--compile/--no-compile",
    default=None,
    help="Run the operators between collectives under torch.compile. [default: if the "
    "plan is for compiled kernels: on GPUs assumed or asked for, on CPUs asked for]",
)
@kind_options
@click.option(
    "--log", help="Log predicted and measured too: tensorboard:DIR, wandb:PROJECT or mlflow:URI."
)
@click.option("-o", "--output", help="Write the shardwise.measurement/1 document to this file.")
@json_option
def run(
    plan_file: str | None,
    launcher: tuple[str, ...],
    graph_spec: str | None,
    source: str | None,
    batch: int | None,
    seq: int | None,
    dtype: str | None,
    steps: int,
    warm_up: int,
    compile: bool | None,
    kinds: str | None,
    slowed: str | None,
    log: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Train a few steps by PLAN_FILE, a plan or a pipeline; what follows `--` are arguments of
    torchrun.

    Weights and inputs are synthetic: only time and memory are measured. To train a model call
    `shardwise.parallelize` in a script of your own (docs/execute.md). Started by torchrun, srun or
    an agent, this process is one rank.
    """
    plan_path = plan_file or _in_run_dir("plan.json", "PLAN_FILE")
    plan = read_plan(plan_path)
    _require_executable(plan, plan_path)
    check_output(output)
    if log is not None:
        parse_tracker(log)
    if source is None:
        graph_spec = model = graph_spec or _known_graph(plan)
    else:
        model = source
    world = find_world(is_even=not plan.kinds)
    if world is not None:
        label = own_label(world.rank, world.size, kinds, slowed)
        of_source = source is not None
        options = _options(model, of_source, batch, seq, dtype, steps, warm_up, compile, label)
        _as_rank(plan, world, options, output, log)
        return
    if graph_spec is not None and (":" not in graph_spec or Path(graph_spec).exists()):
        graph_spec = str(Path(graph_spec).resolve())
    given = {"graph": graph_spec, "source": source, "batch": batch, "seq": seq, "dtype": dtype}
    arguments = [str(Path(plan_path).resolve()), "--steps", str(steps), "--warm-up", str(warm_up)]
    for name, value in given.items():
        if value is not None:
            arguments += [f"--{name}", str(value)]
    own_label(0, plan.gpus, kinds, slowed)  # refuses what no rank could be
    arguments += Kinds(kinds, slowed).arguments()
    if compile is not None:
        arguments.append("--compile" if compile else "--no-compile")
    document = _launched(plan, list(launcher), arguments)
    if document is None:
        note("rank 0 is on another node and reports there")
        return
    if output is not None:
        write_json(document, output)
    _log(plan, document, log)
    if as_json:
        emit(document)
    else:
        show(document)


def show(document: Mapping[str, Any]) -> None:
    """Prints predicted against measured, as a table."""
    expected, errors = predicted_values(document["predicted"]), document["errors"]
    stages = document.get("stages", ())
    rows = [
        (name, text(expected[key]), text(measured), _percent(errors[key]))
        for name, key, measured, text in (
            ("iteration time", "iteration", document["iteration_s"]["median"], milliseconds),
            ("compute", "compute", document["compute_s"], milliseconds),
            ("communication", "communication", document["communication_s"], milliseconds),
            ("peak memory", "peak", document["peak_bytes"]["max"], _mib),
        )
        if expected[key] is not None and not (stages and key == "peak")
    ]
    for stage in stages:
        of = f"of stage {stage['stage']}"
        idle = "-" if stage["idle"] is None else _share(stage["idle"])
        rows.append((f"idle {of}", _share(stage["predicted_idle"]), idle, "-"))
        rows.append(
            (f"peak memory {of}", _mib(stage["predicted_peak_bytes"]), _mib(stage["peak_bytes"]),
             _percent(stage["peak_error"]))
        )  # fmt: skip
    table(_title(document), ("", "predicted", "measured", "off by"), rows)
    spread = document["iteration_s"]
    say(f"80 % of the steps took {milliseconds(spread['p10'])} to {milliseconds(spread['p90'])}.")
    for name, reason in document["fallbacks"].items():
        note(f"{name} ran whole, which the plan does not price: {reason}")
    if document["compiled_operators"]:
        note(f"torch.compile had {document['compiled_operators']} operators")
    if document["not_compiled"]:
        note(f"nothing was compiled, which the plan prices: {document['not_compiled']}")


def _title(document: Mapping[str, Any]) -> str:
    return (
        f"{document['graph_name']} on {document['gpus']} x {document['device_kind']} "
        f"({document['backend']}), {document['steps']} steps"
    )


def _share(part: float) -> str:
    return f"{part * 100:.1f} %"


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error * 100:+.1f} %"


def _in_run_dir(name: str, field: str) -> str:
    folder = os.environ.get(RUN_DIR_VARIABLE)
    if folder is None:
        raise BadInput("is missing", field=field, expected="a file that `shardwise plan` wrote")
    return str(Path(folder) / name)


def _require_executable(plan: Plan, path: str) -> None:
    if not any(group.operators for group in plan.groups):
        raise BadInput(
            "does not say how its operators' inputs are moved",
            file=path,
            field="groups",
            expected="a plan that this release of `shardwise plan` wrote",
        )


def _known_graph(plan: Plan) -> str:
    """Returns the graph if none is named: the launch's, or a shipped one of the plan's name."""
    from shardwise.capture.shipped import shipped_names

    folder = os.environ.get(RUN_DIR_VARIABLE)
    if folder is not None and (Path(folder) / "graph.json").is_file():
        return str(Path(folder) / "graph.json")
    if plan.graph_name in shipped_names():
        return f"shipped:{plan.graph_name}"
    raise BadInput(
        f"what {plan.graph_name!r} computes is not in the plan",
        field="graph",
        expected="--graph FILE (what `shardwise capture` wrote) or --source SOURCE",
    )


def _options(
    model: str,
    of_source: bool,
    batch: int | None,
    seq: int | None,
    dtype: str | None,
    steps: int,
    warm_up: int,
    compile: bool | None,
    label: Label,
) -> Any:
    from shardwise.measure.rank import load_torch

    load_torch()
    from shardwise.execute.training import RunOptions

    trained = model if of_source else load_graph(model)
    return RunOptions(trained, batch, seq, dtype, steps, warm_up, compile, label)


def _log(plan: Plan, document: Mapping[str, Any], log: str | None) -> None:
    if log is not None:
        log_measurement(open_tracker(log, plan.graph_name), plan, document)


def _as_rank(plan: Plan, world: World, options: Any, output: str | None, log: str | None) -> None:
    from shardwise.execute.training import train, write_report

    document = train(plan, world, options)
    if document is None:
        return
    if output is not None:
        write_json(document, output)
    folder = os.environ.get(RUN_DIR_VARIABLE)
    if folder is not None:
        write_report(document, Path(folder) / "report")
    _log(plan, document, log)
    if output is None or folder is not None:
        show(document)


def _launched(plan: Plan, launcher: list[str], arguments: list[str]) -> dict[str, Any] | None:
    """Returns what rank 0 measured under torchrun; None when it was not on this host."""
    with tempfile.TemporaryDirectory(prefix="shardwise-run-") as folder:
        report = Path(folder) / "measurement.json"
        # torchrun would leave an empty log folder among temporary files.
        launched = [f"--log-dir={folder}/logs", *launcher_arguments(plan, launcher)]
        command = [
            sys.executable, "-m", "shardwise.execute.torchrun", *launched,
            "-m", "shardwise.execute", *arguments, "--output", str(report),
        ]  # fmt: skip
        with _started(command) as process:
            code = process.wait()
        if code:
            raise RunFailed(code)
        document: dict[str, Any] | None = None
        if report.exists():
            document = msgspec.json.decode(report.read_bytes())
        return document


def launcher_arguments(plan: Plan, launcher: list[str]) -> list[str]:
    """Returns the user's arguments, completed from the plan.

    Raises `BadInput` if nodes have unequal numbers of ranks and the user does not give this host's
    number.
    """
    words = {argument.partition("=")[0].replace("_", "-").lstrip("-") for argument in launcher}
    added = []
    joins = words & {"nnodes", "standalone", "rdzv-endpoint", "master-addr"}
    if not words & {"nproc-per-node"}:
        if joins and plan.gpus % max(plan.nodes, 1):
            raise BadInput(
                f"{plan.gpus} devices on {plan.nodes} nodes are not as many on each",
                field="launcher",
                expected="--nproc-per-node, the devices of this host",
            )
        added.append(f"--nproc-per-node={plan.gpus // max(plan.nodes, 1)}")
    if not joins:
        added = ["--standalone", f"--nproc-per-node={plan.gpus}"]
        if not words & {"rdzv-conf"}:
            # The store is torchrun's own thread. If it does not answer, the host is busy.
            added.append(f"--rdzv-conf=read_timeout={JOIN_S:.0f}")
    return [*added, *launcher]


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs torchrun with its output on our standard error; it never outlives this process."""
    if importlib.util.find_spec("torch") is None:
        raise ShardwiseError("running a plan needs PyTorch: pip install 'shardwise[torch]'")
    environment = {"OMP_NUM_THREADS": str(1), **os.environ}
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr.fileno())
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
