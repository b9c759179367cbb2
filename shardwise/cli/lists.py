"""hardware list|show|import, offers list; the group of all hardware commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardwise.cli.arguments import OFFERS, json_option, power_limit_option
from shardwise.cli.hardware_fit import fit
from shardwise.cli.hardware_new import new
from shardwise.cli.output import emit, say, table
from shardwise.cli.profile_tables import show_profile
from shardwise.errors import BadInput
from shardwise.hardware.watts import parse_power
from shardwise.outfiles import check_output, write_json
from shardwise.texts import gib

if TYPE_CHECKING:
    from shardwise.hardware import Hardware


@click.group()
def hardware() -> None:
    """Hardware profiles."""


hardware.add_command(fit)
hardware.add_command(new)


@hardware.command(name="list")
@json_option
def list_hardware(as_json: bool) -> None:
    """The built-in profiles."""
    from shardwise.hardware import list_builtin, load_hardware

    profiles = [load_hardware(name) for name in list_builtin()]
    if as_json:
        emit({"schema": "shardwise.hardware-list/1", "hardware": [h.name for h in profiles]})
        return
    table(
        "built-in hardware",
        ("name", "devices", "GiB", "GB/s inside", "GB/s between"),
        [row for profile in profiles for row in _rows(profile)],
    )


def _rows(profile: Hardware) -> list[tuple[str, ...]]:
    """Returns the row of a profile, or one for each of its groups of devices."""
    if not profile.groups:
        return [_row(profile.name, str(profile.per_node), profile)]
    return [
        _row(
            f"{profile.name}: {group.name}",
            f"{group.nodes} x {group.per_node}",
            profile.of_group(group.name),
        )
        for group in profile.groups
    ]


def _row(name: str, count: str, like: Hardware) -> tuple[str, ...]:
    """Returns a row of the list: like devices, how many, and their links."""
    device = like.devices[0]
    return (
        name,
        f"{count} {device.kind}",
        gib(device.memory_bytes),
        f"{like.levels[0].bandwidth_bytes_per_s / 1e9:g}",
        " / ".join(f"{level.bandwidth_bytes_per_s / 1e9:g}" for level in like.levels[1:]),
    )


@hardware.command()
@click.argument("name")
@power_limit_option
@json_option
def show(name: str, power_limit: str | None, as_json: bool) -> None:
    """One profile with the source of every figure."""
    from shardwise.hardware import hardware_document, load_hardware
    from shardwise.hardware.power import with_power_limit

    profile = load_hardware(name)
    if power_limit is not None:
        profile = with_power_limit(profile, parse_power(power_limit))
    if as_json:
        emit(hardware_document(profile))
        return
    show_profile(profile)


@hardware.command(name="import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...|SYSTEM")
@click.option(
    "--format", "format_name", required=True,
    type=click.Choice(["nccl-tests", "heterog", "aiconfigurator"]),
    help="Whose measurements they are: nccl-tests' text or JSON, HeteroG's fitted lines, or the "
    "kernels of a SYSTEM of the package aiconfigurator-core, such as h100_sxm.",
)  # fmt: skip
@click.option("-o", "--output", required=True, help="The profile file to write.")
@click.option("--base", help="The profile whose devices and links it has.")
@click.option("--name", help="The profile's name.")
@click.option(
    "--group", metavar="NODESxRANKS", help="Where the ranks ran, if the files do not say it."
)
@json_option
def import_hardware(
    files: tuple[str, ...],
    format_name: str,
    output: str,
    base: str | None,
    name: str | None,
    group: str | None,
    as_json: bool,
) -> None:
    """A profile with what other programs measured."""
    from shardwise.hardware import hardware_document
    from shardwise.hardware.imports import import_measurements

    check_output(output)
    profile = import_measurements(files, format_name, base, name, _group(group))
    write_json(hardware_document(profile), output)
    if as_json:
        emit(hardware_document(profile))
        return
    show_profile(profile)
    say(f"wrote {output}")


def _group(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    nodes, _, ranks = text.partition("x")
    if not (nodes.isdecimal() and ranks.isdecimal() and int(nodes) and int(ranks)):
        raise BadInput(f"got {text!r}", field="group", expected="NODESxRANKS, such as 2x8")
    return int(nodes), int(ranks)


@click.group()
def offers() -> None:
    """Prices of cloud instances."""


@offers.command(name="list")
@click.option("--offers", "path", help=OFFERS)
@json_option
def list_offers(path: str | None, as_json: bool) -> None:
    """The shipped offers, or those of a file."""
    import msgspec

    from shardwise.hardware import read_offers

    rows = read_offers(path)
    if as_json:
        emit({"schema": "shardwise.offers/1", "offers": msgspec.to_builtins(rows)})
        return
    table(
        "offers",
        ("instance", "GPUs", "region", "USD/h", "as of"),
        [
            (
                f"{o.provider} {o.instance_type}" + (" (spot)" if o.spot else ""),
                f"{o.gpus_per_instance} {o.gpu_kind}",
                o.region,
                f"{o.usd_per_hour:.2f}",
                o.price_as_of,
            )
            for o in rows
        ],
    )
