"""Described kinds that have no example, and why: nothing of them can be compared here."""

NUMBER = "gives a number, not a tensor"
DRAWS = "draws as many random numbers as its input asks for"
UNINITIALISED = "gives uninitialised memory"

UNVERIFIED: dict[str, str] = {
    "aten._local_scalar_dense.default": NUMBER,
    "aten._scaled_mm.default": "needs a GPU with 8-bit floats and a transposed memory layout",
    "aten._standard_gamma.default": DRAWS,
    "aten.poisson.default": DRAWS,
    "aten.empty.memory_format": UNINITIALISED,
    "aten.empty_like.default": UNINITIALISED,
    "aten.empty_permuted.default": UNINITIALISED,
    "aten.empty_strided.default": UNINITIALISED,
    "aten.equal.default": NUMBER,
    "aten.is_nonzero.default": NUMBER,
    "aten.item.default": NUMBER,
    "aten.new_empty.default": UNINITIALISED,
    "aten.resize_.default": "leaves new elements uninitialised",
    "aten.sym_is_contiguous.default": NUMBER,
    "aten.sym_numel.default": NUMBER,
    "aten.sym_size.default": NUMBER,
    "aten.sym_size.int": NUMBER,
    "aten.sym_storage_offset.default": NUMBER,
    "aten.sym_stride.default": NUMBER,
    "aten.sym_stride.int": NUMBER,
}
