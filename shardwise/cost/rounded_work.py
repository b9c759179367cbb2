"""Products in 8 and 4 bits: their times, the passes that round, and what is kept of data.

A recipe (`sharding/recipes.py`) says what is rounded. With n numbers of h bytes each, read r times
and written in w ways of i bytes,

    a pass      r n h + w n i bytes at the memory's rate, and the latency of r kernels
    forward     the product at the peak of the recipe's units, and a pass over x
    backward    both products, and a pass over dy; over w twice where it is rounded in every pass

x is rounded by the first product that reads it, for all. Where kernels of the units were measured
(`products.py`) the products take their times, otherwise the roofline's. A CPU has no such units:
the product takes as long as in the graph's dtype, and the passes are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.cost.passes import Work
from shardwise.cost.products import Product, operands
from shardwise.graph.graph import DTYPE_BYTES, Operator
from shardwise.hardware.device import Device
from shardwise.hardware.sources import INTERPOLATED, MODELLED, Codes
from shardwise.sharding.layout import Floats
from shardwise.sharding.recipes import Block, Recipe
from shardwise.sharding.rounded import Rounded

BLOCK_UNITS = "mxfp8"
"""What devices have whose units apply scales of blocks; they read 8 bits along any dimension."""


@dataclass(frozen=True)
class RoundedWork:
    """A member's product under a recipe, under each of n assignments: arrays (n,).

    `flops` are those of one of the three products; `data`, `weight` and `result` the numbers that
    x, w and y have on a device, of dtype `wide`; `needs` says whether dx and dw are computed.
    """

    how: Rounded
    operator: Operator
    device: Device
    flops: Floats
    data: Floats
    weight: Floats
    result: Floats
    wide: str
    needs: tuple[bool, bool]

    @property
    def kept_bytes(self) -> Floats:
        """Bytes of data as it is kept rounded, where that is done here."""
        keeps = self.how.keeps and self.needs[1]
        return self.data * self.how.recipe.item_bytes * keeps

    @cached_property
    def rounding_s(self) -> tuple[Floats, Floats]:
        """Seconds of the passes that round, in forward and in backward."""
        recipe, wide = self.how.recipe, DTYPE_BYTES[self.wide]

        def of(elements: Floats, block: Block, products: int) -> Floats:
            return pass_s(self.device, recipe, elements, wide, block, products)

        forward, backward = np.zeros_like(self.data), np.zeros_like(self.data)
        if self.how.is_first:
            forward = of(self.data, recipe.data_block, 1 + (self.needs[1] and recipe.rounds_dw))
        products = self.needs[0] + (self.needs[1] and recipe.rounds_dw)
        if products:
            backward = of(self.result, recipe.data_block, products)
        if not recipe.once:
            forward = forward + of(self.weight, recipe.weight_block, 1)
            block = recipe.weight_block_x or recipe.weight_block
            backward = backward + of(self.weight, block, 1) * self.needs[0]
        return forward, backward

    @property
    def inputs_s(self) -> Floats:
        """Seconds of dx."""
        return self._product_s("dx") * self.needs[0]

    @property
    def weights_s(self) -> Floats:
        """Seconds of dw."""
        return self._product_s("dw") * self.needs[1]

    @property
    def backward_s(self) -> Floats:
        """Seconds of dx and dw."""
        return self.inputs_s + self.weights_s

    def time(self, work: Work) -> tuple[Floats, Codes]:
        """Returns seconds of one direction, and their sources."""
        forward_s, backward_s = self.rounding_s
        if work.direction == "forward":
            seconds = self._product_s("y") + forward_s
        else:
            seconds = self.backward_s + backward_s
        measured = self._measured(self._units("y")) is not None
        code = INTERPOLATED if measured else MODELLED
        return (
            np.asarray(seconds + self.device.kernel_latency_s),
            np.full(len(self.flops), code, dtype=np.int8),
        )

    def _units(self, which: str) -> str:
        """Returns the dtype at whose peak one of the three products runs."""
        rounds = which != "dw" or self.how.recipe.rounds_dw
        return (
            self.how.recipe.units
            if rounds and has_units(self.device, self.how.recipe)
            else self.wide
        )

    def _measured(self, units: str) -> Product | None:
        table = self.device.product_table(units)
        if table is None or operands(self.operator) is None:
            return None
        sizes = self.data, self.weight, self.result
        return Product(table, self.flops, *sizes, self._item(units), is_window=False)

    def _item(self, units: str) -> float:
        return (
            self.how.recipe.item_bytes if units == self.how.recipe.units else DTYPE_BYTES[self.wide]
        )

    def _product_s(self, which: str) -> Floats:
        units = self._units(which)
        product = self._measured(units)
        if product is not None:
            gradients = None if which == "y" else (which == "dx", which == "dw")
            return product.times(self.device, units, gradients)
        wide = DTYPE_BYTES[self.wide]
        operands_of = {
            "y": (self.data, self.weight, self.result),
            "dx": (self.result, self.weight, self.data),
            "dw": (self.data, self.result, self.weight),
        }
        left, right, made = operands_of[which]
        moved = (left + right) * self._item(units) + made * wide
        latency = self.device.kernel_latency_s
        return self.device.roofline_times(self.flops, moved, units) - latency


def pass_s(
    device: Device, recipe: Recipe, elements: Floats, wide: int, block: Block, products: int
) -> Floats:
    """Returns seconds of rounding `elements` numbers of `wide` bytes for one or two products."""
    ways = 1
    if products > 1:
        ways = recipe.ways(block, transposes=not has_block_units(device))
    reads = recipe.reads if products > 1 or block == (None, None) or recipe.two_levels else 1
    nothing = np.zeros_like(elements)
    moved = elements * (reads * wide + ways * recipe.item_bytes)
    times = device.roofline_times(nothing, moved, "float32")
    return np.asarray(times + (reads - 1) * device.kernel_latency_s)


def weight_copies(device: Device, recipe: Recipe) -> int:
    """Returns the number of copies of a weight that is rounded once per step."""
    return recipe.ways(recipe.weight_block, transposes=not has_block_units(device))


def has_units(device: Device, recipe: Recipe) -> bool:
    """Returns whether a device has units for the products of a recipe."""
    return recipe.units in device.peak_flops_per_s


def has_block_units(device: Device) -> bool:
    """Returns whether a device's units apply scales of blocks."""
    return BLOCK_UNITS in device.peak_flops_per_s
