"""Whether two names mean the same kind of device.

Profiles call a device `V100-PCIe-16GB` or `GTX1080Ti-11GB`, its driver `Tesla V100-PCIE-16GB` or
`NVIDIA GeForce GTX 1080 Ti`. Names that are not equal mean the same kind if they have the same
model in them: v100, gtx1080ti. Memory and the form of the board do not count.
"""

from __future__ import annotations

import re

VENDORS = re.compile(r"\b(nvidia|tesla|geforce|quadro|amd|instinct|radeon)\b")
MODEL = re.compile(r"\b((?:gtx|rtx) ?)?([a-z]*\d+[a-z]*)(?: (ti|super)\b)?")


def same_kind(one: str, other: str) -> bool:
    """Returns whether two names mean the same kind of device.

    >>> same_kind("GTX1080Ti-11GB", "NVIDIA GeForce GTX 1080 Ti"), same_kind("fast", "slow")
    (True, False)
    """
    return one == other or (_model(one) or one) == (_model(other) or other)


def _model(name: str) -> str | None:
    """Returns the model in a GPU's name, None where there is none to be found, as in a CPU's."""
    if name.startswith("CPU "):
        return None
    words = VENDORS.sub(" ", re.sub(r"[^a-z0-9]+", " ", name.lower()))
    found = MODEL.search(words)
    return "".join(part.strip() for part in found.groups() if part) if found else None
