"""A profile on the terminal: devices, links, measured tables with their bandwidth and verdict."""

from __future__ import annotations

from shardwise.cli.output import console, note, table
from shardwise.hardware import GroupLink, GroupPath, Hardware, Level
from shardwise.hardware.device import Device
from shardwise.hardware.verdict import verdict
from shardwise.texts import counted, gib, seconds


def show_profile(profile: Hardware) -> None:
    """Prints every figure with its source, and what is measured."""
    out = console()
    out.print(f"{profile.name}: {profile.provenance}")
    for device in profile.devices:
        count = "" if profile.groups else f"{device.count} "
        out.print(
            f"{count}{device.kind}: {gib(device.memory_bytes)} GiB, "
            f"{device.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
        )
        for dtype, peak in device.peak_flops_per_s.items():
            out.print(f"  {dtype}: {peak / 1e12:.4g} TFLOP/s")
        for line in _kernels(device):
            out.print(f"  {line}")
    for level in profile.levels:
        size = f", {level.size} in one" if len(profile.levels) > 2 else ""
        out.print(f"{level.name}: {_speed(level)} one way{size}{_said(level)}")
    for line in _groups(profile):
        out.print(line)
    if profile.host is not None:
        host = profile.host
        out.print(
            f"host: {seconds(host.operator_s)} for one pass of an operator, "
            f"{seconds(host.collective_s)} for a collective, in eager PyTorch"
        )
    if profile.overlap is not None:
        overlap = profile.overlap
        out.print(
            f"overlap: {overlap.hidden_fraction:.0%} hidden; computation takes "
            f"{overlap.computation_slowdown:.2f} times as long during {overlap.operation}, "
            f"which takes {overlap.communication_slowdown:.2f} times"
        )
    if profile.waiting is not None:
        waits = zip(profile.waiting.wait_s, profile.waiting.compute_s, strict=True)
        waiting = ", ".join(f"{seconds(w)} after {seconds(c)}" for w, c in waits)
        out.print(f"waiting for the latest rank at a collective: {waiting} of computation")
    for figure, source in profile.sources.items():
        out.print(f"  {figure}: {source}")
    if profile.collectives:
        _collectives(profile)
    if left_out := profile.measurement.get("left_out", []):
        note(f"note: {counted(len(left_out), 'table')} without the largest sizes, for want of time")


def _groups(profile: Hardware) -> list[str]:
    """Returns the profile's device groups, and the paths between them."""
    lines = []
    for group in profile.groups:
        own = [
            f", {_speed(link)} {where}"
            for link, where in ((group.inside, "inside a node"), (group.network, "between nodes"))
            if link is not None
        ]
        nodes = counted(group.nodes, "node")
        lines.append(f"group {group.name}: {nodes} of {group.per_node} {group.kind}{''.join(own)}")
    for path in profile.paths:
        only = "" if path.collectives else ", not for collectives"
        lines.append(f"path between {path.source} and {path.target}: {_speed(path)} one way{only}")
    return lines


def _speed(link: Level | GroupLink | GroupPath) -> str:
    """Returns a link's bandwidth in words."""
    return f"{link.bandwidth_bytes_per_s / 1e9:.4g} GB/s"


def _kernels(device: Device) -> list[str]:
    """Returns a device's measured kernels, and their clocks in training."""
    lines = []
    if device.products:
        lines.append(f"measured products: {', '.join(p.dtype for p in device.products)}")
    if device.attention:
        sizes = ", ".join(f"{a.dtype} heads of {a.head_size:g}" for a in device.attention)
        lines.append(f"measured attention: {sizes}")
    if device.power_limit_w is not None:
        lines.append(f"limited to {device.power_limit_w:g} W")
    if device.sustained_clock < 1:
        lines.append(f"large products keep {device.sustained_clock:.0%} of their clocks")
    return lines


def _said(level: Level) -> str:
    """Returns the profile's other figures of a level."""
    said = [
        "uplinks" if level.uplinks else "",
        "with rails" if level.rails else "",
        "fully connected" if level.fully_connected else "",
        f"{level.oversubscription:g}:1 oversubscribed" if level.oversubscription > 1 else "",
    ]
    return "".join(f", {words}" for words in said if words)


def _collectives(profile: Hardware) -> None:
    rows, odd = [], []
    for measured in profile.collectives:
        judged = verdict(profile, measured)
        where = " x ".join(str(count) for count in reversed(measured.counts))
        where += "" if measured.consecutive else " strided"
        where += f" of {'+'.join(dict.fromkeys(measured.groups))}" if measured.groups else ""
        name = measured.operation + (" (derived)" if measured.derived else "")
        spread = "-"
        if measured.p10_s:
            low, high = (s[-1] / measured.times_s[-1] - 1 for s in (measured.p10_s, measured.p90_s))
            spread = f"{low:+.0%} {high:+.0%}"
        rows.append(
            (
                name,
                where,
                f"{measured.sizes_bytes[-1] / 2**20:,.3g}",
                seconds(measured.times_s[0]),
                seconds(measured.times_s[-1]),
                spread,
                f"{judged.bus_bytes_per_s / 1e9:.3g}",
                judged.status + ("" if judged.share is None else f" {judged.share:.0%}"),
            )
        )
        if judged.status in ("low", "suspicious"):
            odd.append(f"{name} on {where} is {judged.status}: {judged.reason}")
    table(
        "collectives (nodes x ranks), at the largest size; bus bandwidth in GB/s against the links",
        ("operation", "group", "MiB", "smallest", "time", "p10 p90", "busbw", "note"),
        rows,
    )
    for line in odd:
        note(f"note: {line}")
