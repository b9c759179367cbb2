"""Kernels that NVIDIA has measured, from the package `aiconfigurator-core`, as tables of a profile.

Utilisations are relative to the peak and the memory bandwidth of the GPU that was measured. They
are the profile's where it describes this GPU; where it describes another with the same chip, such
as an A100 with less memory, those that the package states: what memory bounds then follows the
profile's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.errors import BadInput
from shardwise.hardware.attention import AttentionTable
from shardwise.hardware.hardware import Hardware, table_key
from shardwise.hardware.imports.kernel_files import PACKAGE, Kernels, Package, installed
from shardwise.hardware.imports.kernel_tables import (
    ATTENTION,
    COLLECTIVES,
    PRODUCTS,
    attention_rows,
    attention_table,
    collective_tables,
    product_table,
)
from shardwise.hardware.products import ProductTable

DTYPES = {"bfloat16": ("bfloat16", 2, "vllm"), "fp8": ("float8_e4m3fn", 1, "trtllm")}
"""The package's names of operands; those of a profile, the bytes of an element, the library whose
products count: PyTorch's linear layer, and for fp8 what follows cuBLAS."""
THROTTLED = {("gb200", "bfloat16"): "trtllm"}
"""Libraries for tables in which large products fall to half of what the others of the same GPU
reach, 0.35 to 0.43 of the peak."""
ATTENTION_LIBRARY = "sglang"
"""Its FlashAttention on A100 is that of the paper; vLLM's is an eighth slower."""


def measured_device(system: str) -> str:
    """Returns the device that a system's products were measured on. Raises `BadInput`."""
    package = installed()
    package.check(system)
    return _halves(package, system).device


def with_kernels(
    hardware: Hardware, system: str, describes: Callable[[str, str], bool]
) -> Hardware:
    """Returns the profile with a system's measured kernels in place of its tables of the same kind.

    `describes` says whether a device of a profile is one that a file names. Raises `BadInput`.
    """
    package = installed()
    package.check(system)
    device = hardware.devices[0]
    factor, bandwidth = 1.0, device.memory_bandwidth_bytes_per_s
    if not describes(device.kind, _halves(package, system).device):
        peak, bandwidth = package.figures(system)
        factor = peak / device.peak("bfloat16")
    sources = dict(hardware.sources)

    def note(field: str, kernels: Kernels, what: str) -> None:
        sources[field] = _source(package, system, kernels, what)

    products: dict[str, ProductTable] = {table.dtype: table for table in device.products}
    for name, (dtype, item_bytes, _) in DTYPES.items():
        rows = _products(package, system, name)
        if rows is not None and dtype in device.peak_flops_per_s:
            peak = device.peak(dtype) * factor
            made = product_table(rows, dtype, item_bytes, peak, bandwidth)
            before = products.get(dtype)  # rows between loads are not in the package
            products[dtype] = replace(made, unaligned=before.unaligned) if before else made
            note(f"devices.products.{dtype}", rows, f"{len(rows):,} matrix products")
    attention: dict[tuple[str, float], AttentionTable] = {
        (table.dtype, table.head_size): table for table in device.attention
    }
    kernels = package.read(system, ATTENTION, ATTENTION_LIBRARY)
    for size, rows in ({} if kernels is None else attention_rows(kernels)).items():
        table = attention_table(rows, size, device.peak("bfloat16") * factor)
        attention[table.dtype, table.head_size] = table
        note(f"devices.attention.{size}", rows, f"{len(rows):,} causal attentions forward")
    collectives = {table_key(table): table for table in hardware.collectives}
    kernels = package.read(system, COLLECTIVES, "nccl")
    if kernels is not None:
        found = collective_tables(kernels, hardware.per_node)
        collectives |= {table_key(table): table for table in found}
        note("collectives", kernels, "collectives in a node")
    changed = replace(
        device, products=tuple(products.values()), attention=tuple(attention.values())
    )
    return replace(
        hardware,
        devices=(changed, *hardware.devices[1:]),
        collectives=tuple(collectives.values()),
        sources=sources,
    )


def _products(package: Package, system: str, name: str) -> Kernels | None:
    """Returns the measured products of one dtype; None where the system has none of it."""
    found = package.read(system, PRODUCTS, _library(system, name))
    if found is None:
        return None
    rows = found.where(found.columns["gemm_dtype"] == name)
    return rows if len(rows) else None


def _halves(package: Package, system: str) -> Kernels:
    """Returns the measured products in bfloat16. Raises `BadInput` where there are none."""
    found = _products(package, system, "bfloat16")
    if found is None:
        raise BadInput(
            f"{PACKAGE} {package.version} has no products in bfloat16 of "
            f"{_library(system, 'bfloat16')} for {system}",
            field="system",
            expected=f"a system with {PRODUCTS.name}",
        )
    return found


def _library(system: str, name: str) -> str:
    return THROTTLED.get((system, name), DTYPES[name][2])


def _source(package: Package, system: str, kernels: Kernels, what: str) -> str:
    """Returns the line that says where a table is from."""
    return (
        f"{PACKAGE} {package.version} (NVIDIA, Apache-2.0), system {system}: {what} measured by "
        f"NVIDIA with {kernels.library} {kernels.version} on {kernels.device or 'such a GPU'}, "
        "distilled by Shardwise"
    )
