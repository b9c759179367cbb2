"""Recurrent layers as one operator, and their cells.

A layer is split along the batch alone: each step needs the whole state of the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.descriptions.movement import all_of
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply, named


def _layer_flops(call: Call) -> tuple[float, float]:
    """Every matrix meets every sample of every step once."""
    steps = prod(call.shapes["input"][:-1])
    weights = sum(prod(s) for n, s in call.shapes.items() if n.startswith("params") and len(s) > 1)
    forward = 2.0 * steps * weights
    return forward, 2.0 * forward


@op(
    "aten.lstm.input",
    "aten.gru.input",
    "aten.rnn_tanh.input",
    "aten.rnn_relu.input",
    saves=("input", "hx", "params", "output"),
    flops=_layer_flops,
    note="gates that cuDNN keeps are not counted",
)
def layer(
    input: TensorHandle,
    hx: TensorHandle | list[TensorHandle],
    params: list[TensorHandle],
    *,
    batch_first: bool = False,
    out: Any,
) -> list[Callable[..., Any]]:
    """y[t, b, :], state[layer, b, :] = run(x[:, b, :], state[:, b, :], weights)"""
    if input.rank != len(out[0]) or input.rank != 3:
        raise NotCovered("a recurrent layer of one sequence without a batch")
    run = Opaque()
    states = hx if isinstance(hx, list) else [hx]

    def result(b: Any) -> Any:
        data = input[b, :, :] if batch_first else input[:, b, :]
        return run(data, *(state[:, b, :] for state in states), *map(all_of, params))

    if batch_first:
        values = named(lambda *i: result(i[0]), "b", "time", "hidden")
    else:
        values = named(lambda *i: result(i[1]), "time", "b", "hidden")
    state = named(lambda *i: result(i[1]), "layer", "b", "unit")
    return [values, *[state] * (len(out) - 1)]


def _cell_flops(call: Call) -> tuple[float, float]:
    batch = call.outputs[0][0]
    forward = 2.0 * batch * (prod(call.shapes["w_ih"]) + prod(call.shapes["w_hh"]))
    return forward, 2.0 * forward


def _whole(*weights: TensorHandle | None) -> list[Any]:
    """Every element of the weights that there are."""
    return [all_of(t) for t in weights if t is not None]


@op(
    "aten.lstm_cell.default",
    saves=("input", "hx", "w_ih", "w_hh", "output"),
    flops=_cell_flops,
)
def lstm_cell(
    input: TensorHandle,
    hx: list[TensorHandle],
    w_ih: TensorHandle,
    w_hh: TensorHandle,
    b_ih: TensorHandle | None = None,
    b_hh: TensorHandle | None = None,
) -> list[Callable[..., Any]]:
    """h'[b, j], c'[b, j] = f(x[b, :], h[b, :], c[b, j], weights of four gates)"""
    gates = Opaque()
    weights = _whole(w_ih, w_hh, b_ih, b_hh)
    hidden, cell = hx
    step = named(lambda b, j: gates(input[b, :], hidden[b, :], cell[b, j], *weights), "b", "unit")
    return [step, step]


@op("aten.gru_cell.default", saves=("input", "hx", "w_ih", "w_hh", "output"), flops=_cell_flops)
def gru_cell(
    input: TensorHandle,
    hx: TensorHandle,
    w_ih: TensorHandle,
    w_hh: TensorHandle,
    b_ih: TensorHandle | None = None,
    b_hh: TensorHandle | None = None,
) -> Callable[..., Any]:
    """h'[b, :] = f(x[b, :], h[b, :], weights of three gates)"""
    gates = Opaque()
    weights = _whole(w_ih, w_hh, b_ih, b_hh)
    return lambda b, unit: gates(input[b, :], hx[b, :], *weights)


@op(
    "aten.rnn_tanh_cell.default",
    "aten.rnn_relu_cell.default",
    saves=("input", "hx", "w_ih", "w_hh", "output"),
    flops=_cell_flops,
)
def rnn_cell(
    input: TensorHandle,
    hx: TensorHandle,
    w_ih: TensorHandle,
    w_hh: TensorHandle,
    b_ih: TensorHandle | None = None,
    b_hh: TensorHandle | None = None,
) -> Callable[..., Any]:
    """h'[b, j] = f(Σ_k x[b, k] w[j, k] + Σ_l h[b, l] u[j, l] + b[j]): two statistics"""

    def output(b: Any, unit: Any) -> Any:
        biases = [t[unit] for t in (b_ih, b_hh) if t is not None]
        return apply(
            Sum(named(lambda *k: input[(b, *k)] * w_ih[(unit, *k)], "in"), w_ih.shape[1:]),
            Sum(named(lambda *k: hx[(b, *k)] * w_hh[(unit, *k)], "state"), w_hh.shape[1:]),
            *biases,
        )

    return output
