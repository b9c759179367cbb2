"""hardware new: a profile of nodes of a GPU from the table of data sheets."""

from __future__ import annotations

import click

from shardwise.cli.arguments import json_option, power_limit_option
from shardwise.cli.output import emit, note, say, table
from shardwise.errors import BadInput
from shardwise.outfiles import check_output, write_json
from shardwise.texts import gib

SCHEMA = "shardwise.gpu-list/1"


@click.command()
@click.option("--gpu", help="The GPU, such as B200, H100-PCIe or MI325X; --list names them all.")
@click.option("--per-node", type=int, help="Devices in a node; by default as it usually has.")
@click.option("--nodes", type=int, help="Nodes there are; by default any number.")
@click.option(
    "--inside", metavar="FABRIC|RATE",
    help="What joins the devices of a node: nvlink, pcie and so on, as the GPU has it, or a rate "
    "one way of one device, such as 64GB/s.",
)  # fmt: skip
@click.option(
    "--network", metavar="RATE",
    help="The network: 400Gb/s-per-gpu, 3200Gb/s-per-node, or the cards of a node, 8x400Gb/s.",
)  # fmt: skip
@power_limit_option
@click.option("--name", help="The profile's name.")
@click.option("-o", "--output", help="The profile file. Without it the profile is only shown.")
@click.option("--list", "listed", is_flag=True, help="The GPUs of the table with their sources.")
@json_option
def new(
    gpu: str | None,
    per_node: int | None,
    nodes: int | None,
    inside: str | None,
    network: str | None,
    power_limit: str | None,
    name: str | None,
    output: str | None,
    listed: bool,
    as_json: bool,
) -> None:
    """A profile of nodes of a GPU, from its data sheet.

    Links are those of the GPU's usual machine unless --inside and --network say otherwise.
    """
    if listed:
        _list(as_json)
        return
    from shardwise.cli.profile_tables import show_profile
    from shardwise.hardware import hardware_document, new_profile

    if gpu is None:
        raise BadInput("missing", field="gpu", expected="--gpu NAME, or --list for the names")
    if output is not None:
        check_output(output)
    profile = new_profile(
        gpu, per_node=per_node, nodes=nodes, inside=inside, network=network,
        power_limit=power_limit, name=name,
    )  # fmt: skip
    document = hardware_document(profile)
    if output is not None:
        write_json(document, output)
    if as_json:
        emit(document)
        return
    show_profile(profile)
    if output is not None:
        say(f"wrote {output}")


def _list(as_json: bool) -> None:
    """Prints the table of GPUs."""
    from shardwise.hardware import gpu_table, usual_profile, ways_inside

    rows = [(gpu, usual_profile(gpu)) for gpu in gpu_table()]
    if as_json:
        gpus = [
            {
                "name": gpu.name,
                "aliases": list(gpu.aliases),
                "kind": usual.devices[0].kind,
                "per_node": usual.per_node,
                "memory_bytes": usual.devices[0].memory_bytes,
                "memory_bandwidth_bytes_per_s": usual.devices[0].memory_bandwidth_bytes_per_s,
                "peak_flops_per_s": dict(usual.devices[0].peak_flops_per_s),
                "inside": list(ways_inside(gpu)),
                "source": gpu.source,
                "date": gpu.date,
            }
            for gpu, usual in rows
        ]
        emit({"schema": SCHEMA, "gpus": gpus})
        return
    table(
        "GPUs of hardware new: dense bfloat16 TFLOP/s, memory, links one way of one device",
        ("name", "node", "TFLOP/s", "GiB", "GB/s", "inside", "GB/s", "as of"),
        [
            (
                gpu.name,
                str(usual.per_node),
                f"{usual.devices[0].peak('bfloat16') / 1e12:,.4g}",
                gib(usual.devices[0].memory_bytes),
                f"{usual.devices[0].memory_bandwidth_bytes_per_s / 1e9:,.0f}",
                ways_inside(gpu)[0],
                f"{usual.levels[0].bandwidth_bytes_per_s / 1e9:g}",
                gpu.date,
            )
            for gpu, usual in rows
        ],
    )
    note("note: --gpu NAME shows the source of every figure, --json all of the table")
