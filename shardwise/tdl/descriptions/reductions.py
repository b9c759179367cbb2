"""Reductions over given dimensions: outputs summed, or statistics of a non-linear function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import op
from shardwise.tdl.descriptions.arguments import dims_of
from shardwise.tdl.descriptions.movement import common_shape, gather_back, over, per_input, whole
from shardwise.tdl.language import Max, Min, Prod, Sum, TensorHandle, apply


@op(
    "aten.sum.dim_IntList",
    "aten.sum.default",
    "aten.mean.dim",
    "aten.mean.default",
    category="light",
    saves=(),
    flops=per_input,
    note="a mean is a sum of shares, each divided by the whole count",
)
def sum_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Σ_j x[…, j]"""
    return over(Sum, self, dim, keepdim)


@op(
    "aten.amax.default",
    "aten.max.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def amax(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = max_j x[…, j]"""
    return over(Max, self, dim, keepdim)


@op(
    "aten.amin.default",
    "aten.min.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def amin(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = min_j x[…, j]"""
    return over(Min, self, dim, keepdim)


@op(
    "aten.any.default", "aten.any.dim", "aten.any.dims", category="light", saves=(),
    flops=gather_back,
)  # fmt: skip
def any_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = max_j [x[…, j]]"""
    return over(Max, self, dim, keepdim)


@op(
    "aten.all.default", "aten.all.dim", "aten.all.dims", category="light", saves=(),
    flops=gather_back,
)  # fmt: skip
def all_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = min_j [x[…, j]]"""
    return over(Min, self, dim, keepdim)


@op(
    "aten.prod.default",
    "aten.prod.dim_int",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def prod(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Π_j x[…, j]"""
    return over(Prod, self, dim, keepdim)


@op(
    "aten.var.dim",
    "aten.var.correction",
    "aten.var.default",
    category="light",
    saves=("self",),
    flops=per_input,
)
def var(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = f(Σ_j x[…, j], Σ_j x[…, j]²): two statistics"""
    first, second = over(Sum, self, dim, keepdim), over(Sum, self, dim, keepdim)
    return lambda *i: apply(first(*i), second(*i))


@op(
    "aten.std.dim",
    "aten.std.correction",
    "aten.std.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def std(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = f(Σ_j x[…, j], Σ_j x[…, j]²): two statistics"""
    return var(self, dim=dim, keepdim=keepdim)


@op("aten.logsumexp.default", category="light", saves=("self", "output"), flops=per_input)
def logsumexp(self: TensorHandle, *, dim: Any, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = log Σ_j exp x[…, j]: two statistics, the maximum and the sum"""
    largest, total = over(Max, self, dim, keepdim), over(Sum, self, dim, keepdim)
    return lambda *i: apply(largest(*i), total(*i))


@op(
    "aten.linalg_vector_norm.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def vector_norm(
    self: TensorHandle, *, dim: Any = None, keepdim: bool = False
) -> Callable[..., Any]:
    """y[…] = f(Σ_j |x[…, j]|^p): a statistic"""
    total = over(Sum, self, dim, keepdim)
    return lambda *i: apply(total(*i))


@op("aten.sum_to_size.default", category="light", saves=(), flops=per_input)
def sum_to_size(self: TensorHandle, *, out: tuple[int, ...]) -> Callable[..., Any]:
    """y[…, 0, …] = Σ_j x[…, j, …] where one element is left"""
    extra = self.rank - len(out)
    shape = (1,) * extra + tuple(out)
    dims = [d for d, (n, m) in enumerate(zip(self.shape, shape, strict=True)) if n != m]
    if not dims:
        return lambda *i: apply(self[(*[0] * extra, *i)])

    def output(*i: Any) -> Any:
        def term(*j: Any) -> Any:
            summed = dict(zip(dims, j, strict=True))
            return self[tuple(summed[d] if d in summed else i[d - extra] for d in range(self.rank))]

        return Sum(term, [self.shape[d] for d in dims])

    return output


@op(
    "aten.count_nonzero.default",
    "aten.count_nonzero.dim_IntList",
    category="light",
    saves=(),
    flops=gather_back,
)
def count_nonzero(self: TensorHandle, *, dim: Any = None) -> Callable[..., Any]:
    """y[…] = Σ_j [x[…, j] ≠ 0]"""
    return over(Sum, self, dim, False)


@op("aten.nansum.default", category="light", saves=("self",), flops=per_input)
def nansum(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Σ_j x[…, j], numbers only"""
    return over(Sum, self, dim, keepdim)


@op("aten.nanmean.default", category="light", saves=("self",), flops=per_input)
def nanmean(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Σ_j x[…, j] / Σ_j [x[…, j] is a number]: two statistics"""
    return var(self, dim=dim, keepdim=keepdim)


@op(
    *(f"aten.std_mean.{form}" for form in ("default", "dim", "correction")),
    category="light",
    saves=("self", "output.0"),
    flops=per_input,
)
@op(
    *(f"aten.var_mean.{form}" for form in ("default", "dim", "correction")),
    category="light",
    saves=("self",),
    flops=per_input,
)
def var_mean(
    self: TensorHandle, *, dim: Any = None, keepdim: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """variance[…], mean[…] = f(Σ_j x[…, j], Σ_j x[…, j]²): statistics"""
    total = over(Sum, self, dim, keepdim)
    return var(self, dim=dim, keepdim=keepdim), lambda *i: apply(total(*i))


@op("aten.aminmax.default", category="light", saves=("self", "output"), flops=per_input)
def aminmax(
    self: TensorHandle, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """low[…], high[…] = min_j x[…, j], max_j x[…, j]: statistics"""
    low, high = over(Min, self, dim, keepdim), over(Max, self, dim, keepdim)
    return lambda *i: apply(low(*i)), lambda *i: apply(high(*i))


@op(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
    "aten.frobenius_norm.dim",
    "aten.linalg_norm.default",
    "aten.linalg_matrix_norm.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def norm(
    self: TensorHandle, *, dim: Any = None, keepdim: bool = False, p: Any = 2, ord: Any = None
) -> Callable[..., Any]:
    """y[…] = f(Σ_j |x[…, j]|^p): a statistic"""
    if ord in (2, -2, "nuc") and (dim is None or dim == [] or len(dims_of(dim, self.rank)) == 2):
        return whole(self, dim, keepdim)
    return vector_norm(self, dim=dim, keepdim=keepdim)


@op(
    "aten.linalg_cond.default",
    category="light",
    saves=("self", "output"),
    flops=per_input,
)
def condition_number(self: TensorHandle) -> Callable[..., Any]:
    """y[b…] = condition(x[b…, :, :])"""
    return whole(self, [-2, -1], False)


@op("aten.cosine_similarity.default", category="light", saves=("*",), flops=per_input)
def cosine_similarity(x1: TensorHandle, x2: TensorHandle, *, dim: int = 1) -> Callable[..., Any]:
    """y[…] = f(Σ_j a[…, j] b[…, j], Σ_j a², Σ_j b²): three statistics"""
    rank = max(x1.rank, x2.rank)
    (at,) = dims_of(dim, rank)
    extent = max(t.shape[at - rank + t.rank] for t in (x1, x2) if at - rank + t.rank >= 0)

    def output(*i: Any) -> Any:
        def both(j: Any) -> Any:
            index = (*i[:at], j, *i[at:])
            return apply(x1.at(index), x2.at(index))

        return apply(*(Sum(both, (extent,)) for _ in range(3)))

    return output


@op("aten.pairwise_distance.default", category="light", saves=("x1", "output"), flops=per_input)
def pairwise_distance(
    x1: TensorHandle, x2: TensorHandle, *, keepdim: bool = False
) -> Callable[..., Any]:
    """y[…] = f(Σ_j |a[…, j] - b[…, j]|^p): a statistic"""
    extent = max(x1.shape[-1], x2.shape[-1])

    def output(*i: Any) -> Any:
        outer = i[:-1] if keepdim else i
        return apply(Sum(lambda j: apply(x1.at((*outer, j)), x2.at((*outer, j))), (extent,)))

    return output


@op("aten.dist.default", category="light", saves=("*", "output"), flops=per_input)
def dist(self: TensorHandle, other: TensorHandle) -> Callable[..., Any]:
    """y = f(Σ_i |a[i] - b[i]|^p): a statistic"""
    shape = common_shape(self, other)
    return lambda: apply(Sum(lambda *j: apply(self.at(j), other.at(j)), shape))


@op(
    *(f"aten.cdist.{form}" for form in ("default",)),
    "aten._cdist_forward.default",
    "aten._euclidean_dist.default",
    category="heavy",
    saves=("*", "output"),
)
def cdist(x1: TensorHandle, x2: TensorHandle) -> Callable[..., Any]:
    """y[b, i, j] = f(Σ_k |a[b, i, k] - c[b, j, k]|^p): a statistic"""

    def output(*i: Any) -> Any:
        def term(k: Any) -> Any:
            return apply(x1.at((*i[:-1], k)), x2.at((*i[:-2], i[-1], k)))

        return apply(Sum(term, x1.shape[-1:]))

    return output


@op("aten.pdist.default", "aten._pdist_forward.default", saves=("self", "output"))
def pdist(self: TensorHandle) -> Callable[..., Any]:
    """y[pair] = f(Σ_k |x[i, k] - x[j, k]|^p): a statistic; the rows are needed whole"""
    return lambda pair: apply(Sum(lambda k: apply(self[:, k]), self.shape[1:]))


@op("aten.trace.default", category="light", saves=(), flops=per_input)
def trace(self: TensorHandle) -> Callable[..., Any]:
    """y = Σ_i x[i, i]: the matrix is needed whole"""
    return lambda: Sum(lambda i: self[i, i], (min(self.shape),))


@op(
    *(f"aten.{name}.default" for name in ("median", "nanmedian", "quantile", "nanquantile")),
    "aten.quantile.scalar",
    "aten.nanquantile.scalar",
    category="light",
    saves=("self", "output"),
    flops=gather_back,
)
def quantile(
    self: TensorHandle,
    q: TensorHandle | None = None,
    *,
    dim: int | None = None,
    keepdim: bool = False,
) -> Callable[..., Any]:
    """y[…] = the middle of x[…, :]: the dimension is needed whole"""
    pick = whole(self, dim, keepdim)
    if q is None or q.rank == 0:
        return pick
    return lambda *i: apply(pick(*i[1:]), q[i[0]])
