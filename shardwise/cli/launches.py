"""agents list|drain|undrain|token, launch, launches list|show|logs|stop: what a service runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from shardwise.cli.advisor import SERVER_VARIABLE, server_options, service
from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, note, say, table
from shardwise.errors import BadInput
from shardwise.sizes import parse_option
from shardwise.texts import counted, gib, seconds

Command = TypeVar("Command", bound=Callable[..., Any])
EXIT = {"done": 0, "failed": 1, "lost": 1, "stopped": 1}
"""Exit codes by a launch's last state."""


def asked_options(command: Command) -> Command:
    """Adds `--server` and `--key-file`, for commands that need a service."""
    return server_options(command, "The service, http://HOST:PORT.")


@contextmanager
def _asked(server: str | None, key_file: str | None) -> Iterator[Any]:
    if not server:
        raise BadInput(
            "agents belong to a service", field="server", expected=f"--server or {SERVER_VARIABLE}"
        )
    with service(server, key_file) as client:
        yield client


@click.group()
def agents() -> None:
    """The agents of a service."""


@agents.command(name="list")
@asked_options
@json_option
def list_agents(server: str | None, key_file: str | None, as_json: bool) -> None:
    """All agents: their state and how many ranks they may run."""
    with _asked(server, key_file) as client:
        listed = list(client.agents())
    if as_json:
        emit({"schema": "shardwise.agents/1", "agents": listed})
        return
    table(
        "agents",
        ("id", "name", "state", "free", "devices", "seen", "note"),
        [
            (
                agent["id"],
                agent["name"],
                agent["state"],
                f"{agent['slots_free']} of {agent['slots']}",
                _devices(agent["inventory"]),
                agent["seen_at"],
                agent["reason"],
            )
            for agent in listed
        ],
    )


def _devices(inventory: dict[str, Any]) -> str:
    kinds = [str(device.get("kind")) for device in inventory.get("devices", [])]
    if not kinds:
        return f"{inventory.get('cpus', '?')} CPUs"
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


@agents.command()
@click.argument("agent_id")
@click.option("--reason", default="", help="A note that is shown with the agent.")
@asked_options
@json_option
def drain(
    agent_id: str, reason: str, server: str | None, key_file: str | None, as_json: bool
) -> None:
    """Give an agent no more work; its running jobs continue."""
    with _asked(server, key_file) as client:
        _show_agent(client.drain_agent(agent_id, reason), as_json)


@agents.command()
@click.argument("agent_id")
@asked_options
@json_option
def undrain(agent_id: str, server: str | None, key_file: str | None, as_json: bool) -> None:
    """Give an agent work again."""
    with _asked(server, key_file) as client:
        _show_agent(client.undrain_agent(agent_id), as_json)


def _show_agent(agent: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(agent)
    else:
        say(f"{agent['name']} ({agent['id']}): {agent['state']}")


@agents.command()
@click.option("--name", default="", help="The agent's name, if it does not give one.")
@click.option(
    "--expires", "expires_s", type=float, default=3600.0, show_default=True, help="Seconds."
)
@click.option("--uses", type=int, default=1, show_default=True, help="How many agents it enrols.")
@asked_options
@json_option
def token(
    name: str,
    expires_s: float,
    uses: int,
    server: str | None,
    key_file: str | None,
    as_json: bool,
) -> None:
    """A token with which an agent, or as many as --uses, may enrol; it is shown only once."""
    with _asked(server, key_file) as client:
        issued = client.enrolment_token(name, expires_s, uses)
    if as_json:
        emit(issued)
    else:
        say(issued["token"])
        note(f"it enrols {counted(uses, 'agent')}, until {issued['expires_at']}")


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--measure", "hardware", help="Measure the agents instead, as a profile of this name."
)
@click.option("--operators", help="With --measure: the graph whose operators are measured.")
@click.option("--graph", "graph_file", help="The plan's graph, if the service may lack it.")
@click.option(
    "--agents", "count", type=click.IntRange(1), default=1, show_default=True,
    help="On how many agents, which the service picks.",
)  # fmt: skip
@click.option("--on", "ids", multiple=True, help="An agent's id; rank 0 runs on the first.")
@click.option("--ranks", type=click.IntRange(1), help="Ranks on each agent; else the plan's.")
@click.option("--entry-point", help="A name of the agents' allow-list.")
@click.option("--env", "environment", multiple=True, help="NAME=VALUE for the ranks.")
@click.option("--device-kind", help="Part of the devices' name, or cpu.")
@click.option("--memory", help="What one rank may use of the host, such as 14.5GB.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds; else the agents' own.")
@click.option("--follow", is_flag=True, help="Show the ranks' output.")
@click.option("--detach", is_flag=True, help="Do not wait for its end.")
@asked_options
@json_option
def launch(
    plan: str | None,
    arguments: tuple[str, ...],
    server: str | None,
    key_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a plan on a service's agents; ARGUMENTS (after --) go to the entry point.

    Waits for the end: exits 0 when it is done, 1 when it failed, was stopped or lost. Ctrl-C leaves
    the launch running.
    """
    from shardwise.graph import read_graph

    spec = _spec(plan, arguments, **given)
    graph = None if given["graph_file"] is None else read_graph(given["graph_file"])
    with _asked(server, key_file) as client:
        started = client.start_launch(graph, **spec)
        launch_id = started["id"]
        if given["detach"]:
            emit(started) if as_json else say(launch_id)
            return
        note(f"{launch_id}; `shardwise launches stop {launch_id}` stops it")
        last = [""]

        def report_state(document: dict[str, Any]) -> None:
            text = document["state"] + (f": {document['reason']}" if document["reason"] else "")
            if text != last[0]:
                last[0] = text
                note(text)

        def show_line(line: dict[str, Any]) -> None:
            note(_line(line)) if as_json else say(_line(line))

        ended = client.wait_launch(launch_id, report_state, show_line if given["follow"] else None)
    if as_json:
        emit(ended)
    else:
        _say_runs(ended)
    raise click.exceptions.Exit(EXIT[ended["state"]])


def _spec(plan: str | None, arguments: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """Returns the launch described by the options."""
    from shardwise.answers import read_plan

    environment = {}
    for pair in given["environment"]:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"got {pair[:60]!r}", field="env", expected="NAME=VALUE")
        environment[name] = value
    spec: dict[str, Any] = {
        "entry_point": given["entry_point"],
        "arguments": arguments,
        "environment": environment,
        "agents": list(given["ids"]) or given["count"],
        "ranks_per_agent": given["ranks"],
        "device_kind": given["device_kind"],
        "time_limit_s": given["time_limit_s"],
    }
    if given["memory"] is not None:
        spec["memory_limit_bytes"] = parse_option(given["memory"], "memory")
    if given["hardware"] is not None:
        if plan is not None:
            spec["arguments"] = (plan, *arguments)
        return {
            **spec,
            "kind": "measure",
            "hardware": given["hardware"],
            "operators": given["operators"],
        }
    if plan is None:
        raise BadInput("missing", field="plan", expected="a plan file, or --measure NAME")
    if plan.startswith("sha256:"):
        return {**spec, "plan_id": plan}
    return {**spec, "plan": read_plan(plan)}


@click.group()
def launches() -> None:
    """The launches of a service."""


@launches.command(name="list")
@click.option("--state", help="Only those in this state.")
@asked_options
@json_option
def list_launches(
    state: str | None, server: str | None, key_file: str | None, as_json: bool
) -> None:
    """All launches, newest first."""
    with _asked(server, key_file) as client:
        listed = list(client.launches(state))
    if as_json:
        emit({"schema": "shardwise.launches/1", "launches": listed})
        return
    table(
        "launches",
        ("id", "kind", "what", "state", "created", "note"),
        [
            (
                launch["id"],
                launch["kind"],
                launch["summary"].get("graph_name") or launch["request"]["entry_point"],
                launch["state"],
                launch["created_at"],
                launch["reason"],
            )
            for launch in listed
        ],
    )


@launches.command()
@click.argument("launch_id")
@asked_options
@json_option
def show(launch_id: str, server: str | None, key_file: str | None, as_json: bool) -> None:
    """One launch: its state, its ranks, predicted against measured."""
    with _asked(server, key_file) as client:
        document = client.launch(launch_id)
    if as_json:
        emit(document)
        return
    reason = f": {document['reason']}" if document["reason"] else ""
    say(f"{document['id']}: {document['state']}{reason}")
    table(
        "ranks",
        ("agent", "node", "ranks", "state", "exit", "peak GiB", "note"),
        [
            (
                part["agent_name"],
                part["node_rank"],
                part["ranks"],
                part["state"],
                "-" if part["exit_code"] is None else part["exit_code"],
                gib(part["peak_rss_bytes"]),
                part["reason"],
            )
            for part in document["assignments"]
        ],
    )
    _say_runs(document)


@launches.command()
@click.argument("launch_id")
@click.option("--rank", type=click.IntRange(0), help="Only this rank's.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only lines after this number.")
@asked_options
@json_option
def logs(
    launch_id: str,
    rank: int | None,
    after: int,
    server: str | None,
    key_file: str | None,
    as_json: bool,
) -> None:
    """The output of a launch's ranks."""
    lines = []
    with _asked(server, key_file) as client:
        while True:
            page = client.launch_log(launch_id, after, rank)
            lines += page["lines"]
            after = page["next"]
            if not page["more"]:
                break
    if as_json:
        emit({**page, "lines": lines})
        return
    if page["dropped"]:
        note(f"{page['dropped']} lines were dropped; the newest are kept")
    for line in lines:
        say(_line(line))


@launches.command()
@click.argument("launch_id")
@asked_options
@json_option
def stop(launch_id: str, server: str | None, key_file: str | None, as_json: bool) -> None:
    """Stop a launch; it has ended once its agents report so."""
    with _asked(server, key_file) as client:
        document = client.stop_launch(launch_id)
    if as_json:
        emit(document)
    else:
        stopping = ", stopping" if document["ending"] else ""
        say(f"{document['id']}: {document['state']}{stopping}")


def _line(line: dict[str, Any]) -> str:
    mark = "" if line["stream"] == "stdout" else "!"
    return f"[{line['rank']}{mark}] {line['text']}"


def _say_runs(launch: dict[str, Any]) -> None:
    """Prints predicted against measured, if anything was measured."""
    rows = []
    for run in launch.get("runs", []):
        measured = run["measurement"]
        errors = run["errors"]
        rows.append(
            (
                run["name"],
                seconds(measured["iteration_s"]["median"]),
                _percent(errors["iteration"]),
                _percent(errors["compute"]),
                _percent(errors["communication"]),
                _percent(errors["peak"]),
            )
        )
    if rows:
        columns = ("run", "iteration", "off", "compute off", "network off", "memory off")
        table("measured against predicted", columns, rows)
    for run in launch.get("runs", []):
        if run.get("held"):
            state = run.get("judged") or "until an administrator accepts it"
            note(f"{run['name']}: held ({state}), {run['held']}")


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1%}"
