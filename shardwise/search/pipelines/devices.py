"""Devices of pipelines: the possible numbers of stages and orders of device kinds.

Devices of one kind have one order. In a bundle of several kinds each stage has equally many devices
of one kind, so a kind's device count gives its number of stages. Stages of one kind are
consecutive; every order of kinds is tried: 2 for two kinds, 6 for three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from shardwise.cost.mixed.cluster import mesh_over
from shardwise.cost.of_kinds import alike, costed_of_kinds
from shardwise.cost.options import Options, Progress
from shardwise.hardware import Blocks, Devices, Hardware, Mesh
from shardwise.search.pipelines.hops import RankLinks, StageAxes
from shardwise.search.pipelines.kind_axes import KindAxes
from shardwise.search.search import Draft, Subject, mesh_of

STAGES = "stages"
"""The name of the axis over stages of several kinds."""


@dataclass(frozen=True)
class Order:
    """Ranks on the devices of a mesh: rank r has the kind `kind_of[r]`."""

    mesh: Mesh
    axes: RankLinks
    kind_of: tuple[int, ...]


@dataclass(frozen=True)
class AlikeDevices:
    """A number of devices of one kind."""

    hardware: Hardware
    mesh: Mesh

    several = (None, None)
    """The profile and the bundle if there are several kinds."""

    @property
    def gpus(self) -> int:
        """The number of devices."""
        return self.mesh.gpus

    def __str__(self) -> str:
        return f"{self.gpus} devices"

    def orders(self, ranks: int) -> list[Order]:
        """Returns the orders of this many ranks; none if impossible."""
        axes = StageAxes.of(self.hardware, self.mesh, ranks)
        if self.gpus % ranks or axes is None:
            return []
        return [Order(self.mesh, axes, (0,) * ranks)]

    def drafts(
        self, subject: Subject, ranks: int, options: Options, progress: Progress, batches: int
    ) -> Mapping[str, Draft]:
        """Returns the model's costs on the devices of a rank, by group of the profile."""
        mesh = mesh_of(self.hardware, self.gpus // ranks)
        return {"": Draft.of(subject, self.hardware, mesh, options, progress, batches)}


@dataclass(frozen=True)
class BundledDevices:
    """The devices of a bundle, of one kind or several."""

    hardware: Hardware
    bundle: Devices

    @property
    def several(self) -> tuple[Hardware, Devices]:
        """The profile and the bundle."""
        return self.hardware, self.bundle

    @property
    def gpus(self) -> int:
        """The number of devices."""
        return self.bundle.gpus

    def __str__(self) -> str:
        return str(self.bundle)

    @cached_property
    def _nodes(self) -> int:
        return Blocks.of(self.hardware, self.bundle).nodes

    def orders(self, ranks: int) -> list[Order]:
        """Returns the orders of this many ranks; none if impossible. Each group must consist of
        whole ranks with equal meshes, whose axes are axes of the group."""
        devices, rest = divmod(self.gpus, ranks)
        counts = self.bundle.counts
        if rest or any(count % devices for _, count in counts):
            return []
        if not alike(list(self._meshes(devices).values())):
            return []
        mesh, orders = _mesh(devices, ranks, self._nodes), []
        for chosen in permutations(range(len(counts))):
            kind_of = tuple(n for n in chosen for _ in range(counts[n][1] // devices))
            names = [counts[n][0] for n in kind_of]
            axes = KindAxes.of(self.hardware, self.bundle, names, devices)
            if axes is not None:
                orders.append(Order(mesh, axes, kind_of))
        return orders

    def _meshes(self, devices: int) -> dict[str, Mesh]:
        """Returns the mesh of a rank's devices of each group."""
        return {
            name: Mesh.build(self.hardware.of_group(name), devices)
            for name, _ in self.bundle.counts
        }

    def drafts(
        self, subject: Subject, ranks: int, options: Options, progress: Progress, batches: int
    ) -> Mapping[str, Draft]:
        """Returns the model's costs on the devices of a rank of each group, by its name."""
        meshes = self._meshes(self.gpus // ranks)
        kinds = [(self.hardware.of_group(name), mesh) for name, mesh in meshes.items()]
        variant = subject.variant(options, batches)
        costed = costed_of_kinds(variant, kinds, options, progress, batches)
        return {
            name: Draft(subject, hardware, mesh, options, groups)
            for name, (hardware, mesh), groups in zip(meshes, kinds, costed, strict=True)
        }


def devices_for(hardware: Hardware, gpus: Devices) -> AlikeDevices | BundledDevices:
    """Returns the devices of a query; raises as `mesh_of` and `Devices.of`."""
    if gpus.of_groups:
        return BundledDevices(hardware, Devices.of(hardware, dict(gpus.counts)))
    return AlikeDevices(hardware, mesh_of(hardware, gpus.gpus))


def _mesh(devices: int, ranks: int, nodes: int) -> Mesh:
    """Returns the mesh of ranks of several kinds: an axis over them, and those of a rank."""
    mesh = mesh_over(devices, ranks, nodes)
    stages, *inner = mesh.axes
    return replace(mesh, axes=(replace(stages, name=STAGES), *inner))
