"""Losses: means over the whole batch, and cross entropy over split classes.

    loss_b = log Σ_c exp z[b, c] - z[b, target_b]

Over shares of the classes the maximum, the sum of exponentials and the target's logit are reduced.
A sum over the batch is a term of the sum, or whole if its divisor is.
"""

from __future__ import annotations

from typing import Any

import torch

from shardwise.execute.local.calling import HALVES, Run, bind, in_float
from shardwise.execute.local.lookup import own_rows
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share
from shardwise.execute.local.softmax import shifted
from shardwise.torch_operators import by_rows

NONE, MEAN, SUM = 0, 1, 2


@form(
    *(f"{name}.default" for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "kl_div")),
    *(f"{name}.default" for name in ("soft_margin_loss", "hinge_embedding_loss", "l1_loss")),
    *(f"{name}.default" for name in ("poisson_nll_loss", "binary_cross_entropy")),
    *(f"{name}.default" for name in ("binary_cross_entropy_with_logits", "margin_ranking_loss")),
    *(f"{name}.default" for name in ("cosine_embedding_loss", "triplet_margin_loss")),
    *(f"{name}.default" for name in ("multi_margin_loss", "multilabel_margin_loss")),
)
def pointwise_loss(share: Share) -> Run:
    """Weights a mean over a share by its part of the whole."""
    if not share.reductions:
        return plain(share)
    share.refuse(share.statistics, "a sum inside every term has no exact form")
    run = bind(share.target, share.arguments, share.attributes, 1)
    if share.attributes["reduction"] != MEAN:
        return run
    part = share.fraction(share.reductions)
    return lambda *x: [run(*x)[0] * part]


@form("ctc_loss.IntList", "ctc_loss.Tensor")
def ctc_loss(share: Share) -> Run:
    """Treats sequences of the batch separately; cuts lengths in lists as the batch is cut."""
    if not share.variables:
        return plain(share)
    if len(share.inputs[1].shape) != 2:
        raise NotLocal("targets of all sequences in one row")
    rows = share.input_rows(0, 1)
    attributes = {
        name: value[rows.start : rows.stop] if name.endswith("_lengths") else value
        for name, value in share.attributes.items()
    }
    run = bind(share.target, share.arguments, attributes, 1)
    mean = attributes["reduction"] == MEAN and share.reductions
    part = share.fraction(share.reductions) if mean else 1.0
    return lambda *x: [run(*x)[0] * part]


@form("cross_entropy_loss.default")
def cross_entropy(share: Share) -> Run:
    """Compares logits with class numbers or probabilities, weighted and smoothed."""
    if not share.variables:
        run = plain(share)
        if share.attributes["reduction"] == NONE:
            return run
        return lambda *x: run(*by_rows(*x))
    return _Loss(share).cross_entropy()


@form("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def nll_loss(share: Share) -> Run:
    """Takes the negative log-probability of the target."""
    if not share.variables:
        return plain(share)
    return _Loss(share).likelihood()


@form("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss_forward(share: Share) -> Run:
    """Works like nll_loss, and also gives the weight of all targets."""
    if not share.variables:
        return plain(share)
    return _Loss(share).likelihood()


class _Loss:
    """What both losses share: the classes are dimension 1 of the first input."""

    def __init__(self, share: Share) -> None:
        attributes = share.attributes
        self.exchange = share.exchange
        self.classes = share.inputs[0].shape[1]
        self.class_axes = share.input_axes(0, 1)
        self.rows = share.input_rows(0, 1)
        self.by_number = len(share.inputs[1].shape) < len(share.inputs[0].shape)
        self.weighted = share.argument("weight")
        self.reduction = attributes["reduction"]
        self.ignored = attributes.get("ignore_index", -100)
        self.smoothing = attributes.get("label_smoothing", 0.0)
        batch = [v for v in share.variables if (a := share.reads(0, v)) is not None and a.dim != 1]
        self.batch_axes = share.axes(*batch)
        # Sums over the batch are whole if their divisor is a statistic.
        self.whole_axes = share.axes(*(v for v in batch if not share.is_reduction(v)))
        shape = share.inputs[0].shape
        self.samples = shape[0]
        for extent in shape[2:]:
            self.samples *= extent
        self.outputs = len(share.outputs)

    def cross_entropy(self) -> Run:
        whole_rows = not self.class_axes and not self.whole_axes and not self.weighted
        if whole_rows and self.by_number and self.reduction == MEAN:
            return self._of_whole_rows

        def run(x: Any, target: Any, weight: Any = None) -> list[Any]:
            rest, _ = shifted(x, (1,), self.class_axes, self.exchange)
            # Every share's log-probabilities read the sum.
            total = self.exchange.sum(rest.exp().sum(1, keepdim=True), self.class_axes)
            logp = rest - total.log()
            if not self.by_number:
                return self._of_probabilities(logp, target, weight)
            return self._of_numbers(logp, target, weight)

        return self._in_float(run)

    def _of_whole_rows(self, x: Any, target: Any) -> list[Any]:
        """Sums samples with all their classes by torch's kernel, over the count of all samples."""
        # Halves: round each sample's term, not the sum, to avoid a float copy of all logits.
        half = x.dtype in HALVES
        mine = (target != self.ignored).sum().to(torch.float32 if half else x.dtype)
        count = self.exchange.begin_total(mine, self.batch_axes)
        x, target = by_rows(x, target)
        total = torch.nn.functional.cross_entropy(
            x,
            target,
            ignore_index=self.ignored,
            reduction="none" if half else "sum",
            label_smoothing=self.smoothing,
        )
        if half:
            total = total.float().sum()
        return [(total / count()).to(x.dtype)]

    def likelihood(self) -> Run:
        def run(logp: Any, target: Any, weight: Any = None) -> list[Any]:
            return self._of_numbers(logp, target, weight)

        return self._in_float(run)

    def _in_float(self, run: Run) -> Run:
        """Sums and counts halves in float, as torch's kernels do."""

        def wide(x: Any, target: Any, weight: Any = None) -> list[Any]:
            return [y.to(x.dtype) for y in run(in_float(x), in_float(target), in_float(weight))]

        return wide

    def _over_classes(self, x: Any) -> Any:
        """Returns a sum over the classes that is whole on every rank: [b, …]."""
        return self.exchange.total(x.sum(1), self.class_axes)

    def _of_probabilities(self, logp: Any, target: Any, weight: Any) -> list[Any]:
        if self.smoothing:
            target = target * (1 - self.smoothing) + self.smoothing / self.classes
        term = logp * target
        if weight is not None:
            term = term * _along_classes(weight, logp)
        rows = -self._over_classes(term)
        if self.reduction == NONE:
            return [rows]
        total = self.exchange.total(rows.sum(), self.whole_axes)
        return [total / self.samples if self.reduction == MEAN else total]

    def _of_numbers(self, logp: Any, target: Any, weight: Any) -> list[Any]:
        counted = target != self.ignored
        safe = torch.where(counted, target, 0)
        places, inside = own_rows(safe, self.rows)
        inside = inside & counted
        places = places.unsqueeze(1)
        # A share without classes has nothing to look up: zeros, with a gradient like any other.
        chosen = logp.gather(1, places).squeeze(1) if len(self.rows) else logp.sum(1)
        each = inside.to(logp.dtype)
        if weight is not None and len(self.rows):
            each = each * weight[places.squeeze(1)]
        rows = self._picked(-torch.where(inside, chosen, 0.0) * each)
        weights = self._picked(each.detach())
        if self.smoothing:
            smooth = -logp if weight is None else -logp * _along_classes(weight, logp)
            smooth = torch.where(counted, self._over_classes(smooth), 0.0)
            rows = rows * (1 - self.smoothing) + smooth * (self.smoothing / self.classes)
        weight_sum = self.exchange.total(weights.sum(), self.batch_axes)
        if self.reduction != NONE:
            rows = self.exchange.total(rows.sum(), self.whole_axes)
            rows = rows / weight_sum if self.reduction == MEAN else rows
        if self.outputs == 2:
            return [rows, torch.zeros_like(weight_sum) if self.reduction == NONE else weight_sum]
        return [rows]

    def _picked(self, x: Any) -> Any:
        """Returns, on every rank, what the rank with the target's class has."""
        return self.exchange.total(x, self.class_axes)


def _along_classes(weight: Any, like: Any) -> Any:
    return weight.view(1, -1, *[1] * (like.dim() - 2))
