"""What descriptions say that backward keeps, against what autograd really keeps.

Autograd's saved tensors are taken by storage. A description agrees if it names the same arguments
and results, but for statistics that are small; or if what it names is as large as
what is kept (a contiguous copy of an argument, a mask that the result replaces). Whatever else
is different is a stated approximation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from harness.cases import every
from shardwise.tdl.coverage import shipped
from shardwise.tdl.example import Example
from shardwise.tdl.registry import analyse_strictly
from shardwise.tdl.verification import examples_of, graph_of, run_with_torch
from shardwise.torch_operators import call, overload

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

SMALL = 0.25
"""Statistics and the like: a share of what a description names."""

CLOSE = 0.15
"""How far sizes may be apart that replace each other."""

GATES = "gates of every step, which the kernels keep in ways of their own, are not counted"
UNFUSED = "the fused kernel is described; this machine runs several operators"
COMPOSITE = "several operators in a row keep temporaries; its tensors represent them"
FACTORS = "factors of a decomposition are not counted"

STATED: dict[str, str] = {
    "aten._fused_rms_norm.default": UNFUSED,
    "aten.rms_norm.default": UNFUSED,
    "aten.log_sigmoid.default": "a buffer that only this machine's kernel keeps",
    "aten.matmul.default": "broadcast batches are copied",
    "aten.einsum.default": "what is in one factor alone may be summed before",
    "aten.cosine_similarity.default": "normalised copies of both are not counted",
    "aten.ctc_loss.IntList": "scores of every alignment are not counted",
    "aten.ctc_loss.Tensor": "scores of every alignment are not counted",
    "aten.stft.center": "frames are not counted",
    "aten.instance_norm.default": "weights are repeated for every sample",
    **dict.fromkeys(
        [
            *(f"aten.{n}.input" for n in ("gru", "lstm")),
            *(f"aten.{n}.data" for n in ("gru", "rnn_tanh", "rnn_relu")),
            "aten.gru_cell.default",
        ],
        GATES,
    ),
    **dict.fromkeys(
        [
            f"aten.{n}.default"
            for n in (
                *("det", "linalg_det", "slogdet", "linalg_slogdet", "logdet"),
                *("linalg_solve", "linalg_solve_ex", "linalg_eigvalsh", "linalg_svdvals"),
                *("linalg_cond", "linalg_norm"),
            )
        ],
        FACTORS,
    ),
    **dict.fromkeys(
        [
            "aten.repeat_interleave.self_Tensor",
            *(
                f"aten.{n}.default"
                for n in (
                    *("hinge_embedding_loss", "poisson_nll_loss", "cosine_embedding_loss"),
                    *(
                        "multilabel_margin_loss",
                        "quantile",
                        "nanquantile",
                        "istft",
                        "triplet_margin_loss",
                    ),
                    *("corrcoef", "combinations", "vander"),
                )
            ),
        ],
        COMPOSITE,
    ),
}
"""Approximations: the kind, and what is different."""

CASES = [
    (d.kind, i, e)
    for d in shipped()
    for i, e in enumerate(examples_of(d))
    if not e.needs and "_backward" not in d.kind
]
"""Backward operators are not differentiated again."""


@dataclass(frozen=True)
class Kept:
    """Arguments and results that autograd keeps, and elements of tensors that are neither."""

    arguments: frozenset[str]
    results: frozenset[str]
    others: int
    sizes: dict[str, int]


def kept_by_autograd(kind: str, example: Example) -> Kept | None:
    """None where nothing is differentiable."""
    constant: set[str] = set()
    while True:
        try:
            return _kept(kind, example, constant)
        except RuntimeError as error:
            # Running statistics and the weights of losses have no gradient in some operators.
            refused = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
            if refused is None or refused[1] in constant:
                if re.search("not support|support automatic", str(error)):
                    return None
                raise
            constant.add(refused[1])


def _kept(kind: str, example: Example, constant: set[str]) -> Kept | None:
    arrays = example.draw(np.random.default_rng(0))
    inputs: dict[str, Any] = {}
    for name, array in zip(example.shapes, arrays, strict=True):
        tensor = torch.from_numpy(np.array(array))
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, example.dtype))
        if (tensor.is_floating_point() or tensor.is_complex()) and name not in constant:
            # Away from leaves, so that in-place operators and storages are as inside a model.
            tensor = tensor.requires_grad_() * 1
        inputs[name] = tensor
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = call(overload(kind), inputs, example.attributes)
    if not any(t.requires_grad for t in outputs):
        return None
    own = {_storage(t): n for n, t in inputs.items()}
    output_names: dict[int, str] = {}
    for place, t in enumerate(outputs):
        output_names.setdefault(_storage(t), f"output.{place}")
    places = {_storage(t) for t in kept}
    others = {_storage(t): t.numel() for t in kept if _storage(t) not in own | output_names}
    sizes = {n: prod(s) for n, s in example.shapes.items()}
    sizes |= {f"output.{place}": t.numel() for place, t in enumerate(outputs)}
    return Kept(
        frozenset(own[p] for p in places if p in own),
        frozenset(output_names[p] for p in places if p in output_names and p not in own),
        sum(others.values()),
        sizes,
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _differs(kind: str, example: Example) -> str:
    """What is different, in words; empty where the description agrees."""
    operator, tensors = graph_of(kind, example, run_with_torch(kind))
    semantics = analyse_strictly(operator, tensors)
    kept = kept_by_autograd(kind, example)
    if kept is None:
        return ""
    said = {n for n, s in zip(example.shapes, semantics.saves_inputs, strict=True) if s}
    said |= {f"output.{i}" for i, s in enumerate(semantics.saves_outputs) if s}
    real = kept.arguments | kept.results
    size = sum(kept.sizes[name] for name in said)
    really = sum(kept.sizes[name] for name in real) + kept.others
    if said == real and kept.others <= SMALL * size:
        return ""
    if abs(size - really) <= CLOSE * really:
        return ""
    return f"said {sorted(said)} ({size}), kept {sorted(real)} and {kept.others} ({really})"


def test_kept_tensors_are_as_described() -> None:
    def holds(case: tuple[str, int, Example]) -> None:
        kind, _, example = case
        differs = _differs(kind, example)
        if kind not in STATED:
            assert not differs

    every(CASES, holds, lambda case: f"{case[0]}-{case[1]}")


def test_stated_approximations_are_needed() -> None:
    def holds(kind: str) -> None:
        examples = [e for k, _, e in CASES if k == kind]
        assert examples
        assert any(_differs(kind, e) for e in examples), "agrees now: no longer an approximation"

    every(sorted(STATED), holds)
