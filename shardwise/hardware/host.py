"""The host's share of a step: what it takes to launch work, and when a step waits for it.

A device computes what its host has launched. With D the time of the devices' step and H that of the
host's, launches run ahead where the device is the slower of the two, and the device waits where the
host is; a step has stretches of both kinds, so that it takes a soft maximum,

    t = (D^p + H^p)^(1/p),    p = 4

which is at least both, and 19 % more where they are equal (docs/costs.md, Host time).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.hardware.grid import Floats

SHARPNESS = 4
"""p: the larger, the nearer to the larger of the two times."""


@dataclass(frozen=True)
class Host:
    """Seconds of a host's time in eager PyTorch.

    `operator_s` is what one pass of an operator takes (the backward of a product has two),
    `collective_s` what one collective between layers takes.
    """

    operator_s: float
    collective_s: float


@dataclass(frozen=True)
class HostMemory:
    """The memory of a node beside its devices, and a device's way to it.

    `memory_bytes` and `bandwidth_bytes_per_s` are of a whole node, all sockets; `link_bytes_per_s`
    is of one device, in each direction (PCI Express, NVLink-C2C), at the peaks of data sheets;
    `efficiency` is the part of both that copies and updates reach.
    """

    memory_bytes: float
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float
    efficiency: float

    def copy_s(self, size_bytes: Floats) -> Floats:
        """Returns seconds of copies to or from one device."""
        return np.asarray(size_bytes / (self.link_bytes_per_s * self.efficiency))

    def pass_s(self, moved_bytes: Floats, devices: int) -> Floats:
        """Returns seconds in which the host reads and writes so many bytes for each of the
        `devices` of a node, all at once."""
        share = self.bandwidth_bytes_per_s / devices
        return np.asarray(moved_bytes / (share * self.efficiency))


EAGER = Host(operator_s=50e-6, collective_s=60e-6)
"""The times of the built-in profiles, fitted to published steps of small models."""


def soft_maximum(device_s: Floats, host_s: Floats) -> Floats:
    """Returns the time of steps of which the device's and the host's part are known."""
    larger = np.maximum(device_s, host_s)
    safe = np.where(larger > 0.0, larger, 1.0)
    ratio = np.minimum(device_s, host_s) / safe
    return np.asarray(larger * (1.0 + ratio**SHARPNESS) ** (1.0 / SHARPNESS))


def supporting_weights(device_s: Floats, host_s: Floats) -> tuple[Floats, Floats]:
    """Returns weights (a, b) with a D + b H at most the soft maximum of every D and H, and equal to
    it at these.

    They are the soft maximum's slopes. Where both times are 0, the device's alone counts.
    """
    whole = soft_maximum(device_s, host_s)
    safe = np.where(whole > 0.0, whole, 1.0)
    device = np.where(whole > 0.0, (device_s / safe) ** (SHARPNESS - 1), 1.0)
    return np.asarray(device), np.asarray((host_s / safe) ** (SHARPNESS - 1))
