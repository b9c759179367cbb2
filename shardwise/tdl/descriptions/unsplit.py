"""Operators that no share of the work can do alone: every device repeats them, by name and reason.

They are described, not unknown: what they keep and cost is counted, and nothing is guessed.
"""

from __future__ import annotations

from shardwise.tdl.describe import replicated

DATA_SHAPE = "the shape of its output depends on the values of its input"
NUMBER = "gives a number to the program, not a tensor of the graph"
MIXED = "every output reads most of the input, in no order of shares"
PACKED = "packed sequences mix the samples of a batch in one dimension, by their lengths"
STORAGE = "reads memory by strides, whatever the dimensions are"

replicated(
    *(f"aten.{name}.default" for name in ("nonzero", "nonzero_numpy", "argwhere")),
    *(
        f"aten.{name}.default"
        for name in ("unique_consecutive", "unique_dim", "_unique", "_unique2")
    ),
    "aten.unique_dim_consecutive.default",
    "aten.bincount.default",
    "aten.repeat_interleave.Tensor",
    "aten.repeat_interleave.self_Tensor",
    reason=DATA_SHAPE,
)
replicated("aten.masked_select.default", reason=DATA_SHAPE, saves=("*",))
replicated(
    "aten._local_scalar_dense.default",
    "aten.item.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
    reason=NUMBER,
)
replicated(
    *(f"aten.sym_{name}.int" for name in ("size", "stride")),
    *(f"aten.sym_{name}.default" for name in ("numel", "size", "stride")),
    reason=NUMBER,
)
replicated(
    "aten.as_strided.default",
    "aten.as_strided_copy.default",
    "aten.as_strided_scatter.default",
    "aten.view.dtype",
    "aten.view_copy.dtype",
    reason=STORAGE,
)
replicated("aten.sym_storage_offset.default", "aten.sym_is_contiguous.default", reason=NUMBER)
replicated("aten.resize_.default", reason="changes the memory of its argument, not its values")
replicated(
    "aten.randperm.default",
    reason="one permutation must be the same everywhere",
)
replicated(
    "aten.nonzero_static.default",
    reason="the place of each result depends on all values before it",
)
replicated(
    "aten.combinations.default",
    "aten.vander.default",
    "aten.istft.default",
    "aten.corrcoef.default",
    "aten.cov.default",
    reason=MIXED,
    saves=("*",),
)
replicated("aten.segment_reduce.default", reason=MIXED, saves=("*", "output"))
replicated("aten.histogram.bin_ct", "aten.histogram.bins_tensor", reason=MIXED)
replicated(
    "aten.tensor_split.tensor_indices_or_sections",
    reason="where it is cut depends on the values of a tensor",
)
replicated(
    "aten.lstm.data",
    "aten.gru.data",
    "aten.rnn_tanh.data",
    "aten.rnn_relu.data",
    reason=PACKED,
    saves=("*", "output"),
    category="heavy",
)
replicated("aten._pack_padded_sequence.default", reason=PACKED, saves=("output.1",))
replicated("aten._pad_packed_sequence.default", reason=PACKED)
