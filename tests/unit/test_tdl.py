"""TDL: Tofu's own examples, halos, dimension maps, statistics, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardwise.graph import Operator, Tensor
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.tdl import (
    Max,
    NotAffine,
    Opaque,
    Sum,
    analyse,
    apply,
    described_kinds,
    description,
    named,
)
from shardwise.tdl.analysis import Splits, analyse_lambdas
from shardwise.tdl.describe import kind_of
from shardwise.tdl.language import TensorHandle


def _splits(
    shapes: list[tuple[int, ...]], out: tuple[int, ...], describe: Callable[..., Any]
) -> Splits:
    handles = [TensorHandle(i, shape) for i, shape in enumerate(shapes)]
    return analyse_lambdas(handles, [(describe(*handles), out)])


def _by_name(splits: Splits, tensor: int) -> dict[str, Access]:
    return {splits.variables[v].name: a for v, a in splits.inputs[tensor].items()}


def _operator(
    kind: str,
    shapes: list[tuple[int, ...]],
    outs: list[tuple[int, ...]],
    dtype: str = "float32",
    **attributes: Any,
) -> OperatorSemantics:
    names = [f"t{i}" for i in range(len(shapes))]
    results = [f"y{i}" for i in range(len(outs))]
    tensors = {n: Tensor(n, s, dtype, "activation") for n, s in zip(names, shapes, strict=True)}
    tensors |= {n: Tensor(n, s, dtype, "activation") for n, s in zip(results, outs, strict=True)}
    return analyse(Operator("op", kind, tuple(names), tuple(results), attributes), tensors)


def _axes(sem: OperatorSemantics, tensor: int) -> dict[str, int]:
    return {sem.variables[v].name: a.dim for v, a in sem.inputs[tensor].items()}


def test_shift_two_reads_two_elements_beyond_its_share() -> None:
    splits = _splits([(12,)], (10,), lambda a: lambda i: a[i + 2])
    # Ten shares of twelve elements are even only two at a time.
    assert splits.inputs[0][0] == Access(0, 0, 1, granularity=2)


def test_conv1d_of_the_paper() -> None:
    splits = _splits(
        [(8, 16, 34), (16, 32, 3)],
        (8, 32, 32),
        lambda data, filters: (
            lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])
        ),
    )
    assert [(v.name, v.extent, v.reducer) for v in splits.variables] == [
        ("b", 8, None),
        ("co", 32, None),
        ("x", 32, None),
        ("ci", 16, "sum"),
        ("dx", 3, "sum"),
    ]
    data, filters = _by_name(splits, 0), _by_name(splits, 1)
    assert data == {"b": Access(0), "x": Access(2, 1, 1, granularity=2), "ci": Access(1)}
    assert filters == {"co": Access(1), "ci": Access(0), "dx": Access(2)}
    assert {splits.variables[v].name: a.dim for v, a in splits.outputs[0].items()} == {
        "b": 0,
        "co": 1,
        "x": 2,
    }


def test_batch_cholesky_splits_along_the_batch_alone() -> None:
    cholesky = Opaque()
    splits = _splits([(8, 5, 5)], (8, 5, 5), lambda m: lambda b, i, j: cholesky(m[b, :, :])[i, j])
    assert [v.name for v in splits.variables] == ["b"]


def test_a_product_of_matrices_has_an_output_reduction() -> None:
    splits = _splits(
        [(4, 6), (6, 8)], (4, 8), lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j])
    )
    assert [(v.name, v.reducer) for v in splits.variables] == [
        ("i", None),
        ("j", None),
        ("k", "sum"),
    ]
    assert _by_name(splits, 0) == {"i": Access(0), "k": Access(1)}
    assert _by_name(splits, 1) == {"j": Access(1), "k": Access(0)}


def test_a_bias_does_not_hide_the_reduction() -> None:
    splits = _splits(
        [(4, 6), (6, 8), (8,)],
        (4, 8),
        lambda a, b, c: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]) + c[j],
    )
    assert [v.reducer for v in splits.variables] == [None, None, "sum"]


def test_a_non_linear_function_hides_the_reduction() -> None:
    splits = _splits(
        [(4, 6), (6, 8)],
        (4, 8),
        lambda a, b: lambda i, j: apply(Sum(lambda k: a[i, k] * b[k, j])),
    )
    assert all(v.reducer is None for v in splits.variables)
    assert splits.statistics


def test_a_maximum_is_an_output_reduction_of_its_own_kind() -> None:
    splits = _splits([(4, 6)], (4,), lambda a: lambda i: Max(lambda k: a[i, k]))
    assert [(v.name, v.reducer) for v in splits.variables] == [("i", None), ("k", "max")]


def test_softmax_splits_its_own_dimension_with_a_statistic() -> None:
    sem = _operator("aten.softmax.int", [(4, 6, 8)], [(4, 6, 8)], dim=-1)
    assert _axes(sem, 0) == {"d0": 0, "d1": 1, "d2": 2}
    (statistic,) = sem.statistics
    assert statistic.reduced == {2}
    assert statistic.indexed == {0, 1}
    assert statistic.values == 2


def test_batch_norm_has_statistics_per_channel() -> None:
    sem = _operator(
        "aten.batch_norm.default",
        [(8, 16, 32, 32), (16,), (16,)],
        [(8, 16, 32, 32)],
        training=True,
        tensor_arguments=["input", "weight", "bias"],
    )
    (statistic,) = sem.statistics
    assert {sem.variables[v].extent for v in statistic.indexed} == {16}
    assert len(statistic.reduced) == 3


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "out", "before", "after"),
    [(1, 1, 1, 32, 1, 1), (1, 0, 1, 30, 1, 1), (1, 2, 2, 32, 2, 2), (2, 1, 1, 16, 1, 0)],
)
def test_halo_of_a_convolution(
    stride: int, padding: int, dilation: int, out: int, before: int, after: int
) -> None:
    sem = _operator(
        "aten.conv2d.default",
        [(8, 16, 32, 32), (24, 16, 3, 3)],
        [(8, 24, out, out)],
        stride=[stride, stride],
        padding=[padding, padding],
        dilation=[dilation, dilation],
        groups=1,
        tensor_arguments=["input", "weight"],
    )
    names = {v.name: i for i, v in enumerate(sem.variables)}
    access = sem.inputs[0][names["y"]]
    assert access.dim == 2
    assert (access.halo_before, access.halo_after) == (before, after)


def test_pooling_without_overlap_has_no_halo() -> None:
    sem = _operator(
        "aten.max_pool2d.default", [(8, 16, 32, 32)], [(8, 16, 16, 16)], kernel_size=[2, 2]
    )
    access = sem.inputs[0][2]
    assert (access.dim, access.halo_before, access.halo_after) == (2, 0, 0)
    assert access.granularity == 16


def test_splitting_a_dimension_splits_its_outer_part() -> None:
    sem = _operator("aten.view.default", [(4, 6, 32)], [(4, 6, 8, 4)], size=[4, 6, 8, 4])
    assert sem.inputs[0][2] == Access(2, granularity=8)
    assert 3 not in sem.inputs[0]


def test_merging_dimensions_splits_along_the_outer_one() -> None:
    sem = _operator("aten.view.default", [(4, 6, 8)], [(4, 48)], size=[4, 48])
    assert sem.inputs[0][1] == Access(1, granularity=6)


def test_merging_batch_and_sequence_keeps_the_batch_splittable() -> None:
    sem = _operator("aten.view.default", [(4, 6, 8)], [(24, 8)], size=[-1, 8])
    assert sem.inputs[0] == {0: Access(0, granularity=4), 1: Access(2)}


def test_half_of_a_dimension_is_not_an_even_share() -> None:
    sem = _operator("aten.slice.Tensor", [(4, 128)], [(4, 64)], dim=1, start=0, end=64, step=1)
    assert _axes(sem, 0) == {"d0": 0}


def test_the_pieces_of_a_split_need_their_dimension_whole() -> None:
    sem = _operator("aten.split.Tensor", [(4, 24)], [(4, 8)] * 3, dim=1, split_size=8)
    assert [v.extent for v in sem.variables] == [4]
    assert all(out == {0: Access(0)} for out in sem.outputs)


def test_grouped_query_heads_split_in_whole_groups() -> None:
    sem = _operator(
        "aten.scaled_dot_product_attention.default",
        [(2, 32, 64, 16), (2, 8, 64, 16), (2, 8, 64, 16)],
        [(2, 32, 64, 16)],
        is_causal=True,
        tensor_arguments=["query", "key", "value"],
    )
    head = next(i for i, v in enumerate(sem.variables) if v.name == "head")
    assert sem.inputs[0][head] == Access(1)
    assert sem.inputs[1][head] == Access(1, granularity=8)
    query = next(i for i, v in enumerate(sem.variables) if v.name == "query")
    assert query not in sem.inputs[1]


def test_a_split_vocabulary_gives_partial_rows() -> None:
    sem = _operator(
        "aten.embedding.default",
        [(100, 16), (4, 6)],
        [(4, 6, 16)],
        tensor_arguments=["weight", "indices"],
    )
    vocabulary = next(i for i, v in enumerate(sem.variables) if v.name == "vocab")
    assert sem.variables[vocabulary].reducer == "sum"
    assert sem.inputs[0][vocabulary] == Access(0)


def _several(
    shapes: list[tuple[int, ...]], outs: list[tuple[int, ...]], describe: Callable[..., Any]
) -> Splits:
    handles = [TensorHandle(i, shape) for i, shape in enumerate(shapes)]
    return analyse_lambdas(handles, list(zip(describe(*handles), outs, strict=True)))


def test_outputs_share_a_variable_by_its_name() -> None:
    run = Opaque()
    splits = _several(
        [(8, 6, 4)],
        [(8, 6, 10), (1, 8, 10)],
        lambda x: [lambda b, time, h: run(x[b, :, :]), lambda layer, b, unit: run(x[b, :, :])],
    )
    (batch,) = splits.variables
    assert batch.name == "b"
    assert splits.inputs[0] == {0: Access(0)}
    assert splits.outputs == ({0: Access(0)}, {0: Access(1)})


def test_names_keep_apart_what_has_one_extent() -> None:
    splits = _several(
        [(8, 6), (8, 6)],
        [(8, 6), (8, 6)],
        lambda x, y: [lambda a, b: apply(x[a, b]), lambda c, d: apply(y[c, d])],
    )
    assert [v.name for v in splits.variables] == ["a", "b", "c", "d"]


def test_a_sum_next_to_another_output_is_a_statistic() -> None:
    splits = _several(
        [(8, 6)],
        [(8, 6), (6,)],
        lambda x: [
            named(lambda *i: apply(x[i]), "row", "column"),
            named(lambda *i: Sum(lambda row: x[(row, *i)]), "column"),
        ],
    )
    assert all(v.reducer is None for v in splits.variables)
    assert [(s.reduced, s.indexed) for s in splits.statistics] == [({0}, {1})]
    assert splits.outputs[1] == {1: Access(0)}


def test_a_window_is_not_split_element_by_element() -> None:
    splits = _splits([(6,)], (2,), lambda x: lambda i: apply(Sum(lambda d: x[i * 3 + d], (3,))))
    assert [v.name for v in splits.variables] == ["i"]


def test_a_halo_that_the_ends_hide_is_seen_between() -> None:
    # Five shares of three; what the first and the last read ends with the input.
    splits = _splits([(5,)], (15,), lambda x: lambda i: x[i - 4])
    (access,) = splits.inputs[0].values()
    assert access == Access(0, 1, 2, granularity=5)
    for share in range(5):
        read = [i - 4 for i in range(share * 3, share * 3 + 3) if 0 <= i - 4 < 5]
        assert all(share - access.halo_before <= r <= share + access.halo_after for r in read)


def test_what_cannot_be_split_is_described_with_its_reason() -> None:
    sem = _operator("aten.nonzero.default", [(4, 6)], [(12, 2)])
    assert sem.described
    assert sem.variables == ()
    described = description("aten::nonzero")
    assert described is not None
    assert "depends on the values" in described.replicated


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mylib::my_op", "mylib.my_op.default"),
        ("mylib::my_op.int", "mylib.my_op.int"),
        ("mylib.my_op.default", "mylib.my_op.default"),
    ],
)
def test_kinds_are_written_as_in_torch_or_as_in_a_graph(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_linear_flops() -> None:
    sem = _operator(
        "aten.linear.default",
        [(4, 6, 8), (16, 8)],
        [(4, 6, 16)],
        tensor_arguments=["input", "weight"],
    )
    assert sem.forward_flops == 2 * 4 * 6 * 8 * 16
    assert sem.backward_flops == 2 * sem.forward_flops
    assert sem.saves_inputs == (True, True)


def test_an_undescribed_operator_has_no_splits() -> None:
    sem = _operator("mylib.mystery.default", [(4, 6)], [(4, 6)])
    assert not sem.described
    assert sem.variables == ()


def test_arguments_that_a_description_does_not_cover_are_undescribed() -> None:
    sem = _operator(
        "aten.cross_entropy_loss.default",
        [(16,), ()],
        [()],
        reduction=1,
        tensor_arguments=["self", "target"],
    )
    assert not sem.described


def test_a_stride_that_leaves_no_even_shares_is_not_a_split() -> None:
    sem = _operator(
        "aten.conv2d.default",
        [(8, 16, 32, 32), (24, 16, 3, 3)],
        [(8, 24, 15, 15)],
        stride=[2, 2],
        padding=[0, 0],
        tensor_arguments=["input", "weight"],
    )
    assert {v.name for v in sem.variables} & {"y", "x"} == set()


def test_products_and_comparisons_of_indices_are_refused() -> None:
    with pytest.raises(NotAffine):
        _splits([(16,)], (4,), lambda a: lambda i: a[i * i])
    with pytest.raises(NotAffine):
        _splits([(16,)], (4,), lambda a: lambda i: a[i] if i < 2 else a[i + 1])


def test_the_registry_covers_what_the_models_need() -> None:
    kinds = set(described_kinds())
    assert {
        "aten.linear.default",
        "aten.conv2d.default",
        "aten.scaled_dot_product_attention.default",
        "aten.cross_entropy_loss.default",
    } <= kinds
    assert len(kinds) > 130
