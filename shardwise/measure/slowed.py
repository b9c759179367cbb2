"""Ranks that compute slower on purpose, so that one CPU has devices of several kinds.

A rank that is r times as slow, r = 1, 1.25, … 4, runs each local operator r times, forward and
backward: whole runs, and for the rest one on a part of the rows of its batch. What it communicates
takes as long as before. Results are those of the first run. So the times of plans on several kinds
can be compared with what they predict, without any rights that a quota would need.

An operator that communicates inside is repeated without sending anything. Updates of parameters,
and copies that pack what is sent, run once. Where an operator cannot run on a part of its rows (a
view has its sizes in it), every fourth, second or all but every fourth of its runs is repeated
whole instead, which is the same on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

from shardwise.errors import BadInput

QUARTERS = 4
MOST = 4

Run = Callable[..., list[Any]]
"""Maps the inputs of an operator to its outputs."""

Silently = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which an operator sends nothing."""

Copy = tuple[list[Any], list[Any], "int | None"]
"""Outputs and inputs of one more run, and on how many rows it was, None for all."""


class Slowed:
    """Makes operators `times` as slow, while it is `active`."""

    def __init__(self, times: float) -> None:
        """Raises `BadInput` unless `times` is a number of quarters from 1 to 4."""
        quarters = times * QUARTERS
        if not (QUARTERS <= quarters <= MOST * QUARTERS and quarters == int(quarters)):
            raise BadInput(
                f"{times} times as slow", field="times", expected="1, 1.25, 1.5, … or 4 times"
            )
        self.times = Fraction(int(quarters), QUARTERS)
        self.active = True

    def around(
        self,
        run: Run,
        cut: Sequence[bool],
        written: Sequence[int] = (),
        silently: Silently = nullcontext,
    ) -> Run:
        """Returns `run`, slower.

        `cut` says of each input whether its first dimension are rows of the batch. The inputs
        `written` are changed by a run, and only the first may do so. All other runs are inside
        `silently()`, forward and backward.
        """
        if self.times == 1:
            return run
        repeated = _Repeated(run, self.times, tuple(cut), tuple(written), silently)
        return lambda *x: (repeated if self.active else run)(*x)


NOT_SLOWED = Slowed(1)


class _Repeated:
    """An operator that runs several times."""

    def __init__(
        self,
        run: Run,
        times: Fraction,
        cut: tuple[bool, ...],
        written: tuple[int, ...],
        silently: Silently,
    ) -> None:
        self._run, self._cut, self._written, self._silently = run, cut, written, silently
        self._whole, self._part = divmod(times - 1, 1)
        self._by_rows = any(cut)
        self._runs = 0

    def __call__(self, *x: Any) -> list[Any]:
        import torch

        results = self._run(*x)
        records = torch.is_grad_enabled() and any(_has_gradient(y) for y in results)
        copies = [self._again(x, None, records) for _ in range(int(self._whole))]
        if self._part:
            copies += self._rest(x, records)
        if records:
            _repeat_backward(results, copies, self._silently)
        return results

    def _rest(self, x: Sequence[Any], records: bool) -> list[Copy]:
        """Returns the run of less than all rows, or of all in this many of the calls."""
        if self._by_rows:
            most = min(len(t) for t, cut in zip(x, self._cut, strict=False) if cut and t.dim())
            rows = -int(-most * self._part // 1)
            try:
                return [self._again(x, rows, records)]
            except (RuntimeError, IndexError, ValueError):
                self._by_rows = False
        self._runs += 1
        before, now = ((self._runs + k) * self._part // 1 for k in (-1, 0))
        return [self._again(x, None, records)] if now > before else []

    def _again(self, x: Sequence[Any], rows: int | None, records: bool) -> Copy:
        """Runs once more, on the first rows alone if told so."""
        import torch

        inputs = []
        for place, tensor in enumerate(x):
            given = tensor.detach()
            if place in self._written:
                given = given.clone()
            if rows is not None and self._cut[place]:
                given = given[:rows]
            inputs.append(given.requires_grad_(tensor.requires_grad and records))
        # What the copy saves is its own: no hooks of the step see it.
        hooks = torch.autograd.graph.saved_tensors_hooks(_same, _same)
        with torch.set_grad_enabled(records), hooks, self._silently():
            return self._run(*inputs), inputs, rows


def _repeat_backward(results: Sequence[Any], copies: list[Copy], silently: Silently) -> None:
    """Lets the copies run backward when the gradient of the first result arrives."""
    import torch

    number = next(n for n, y in enumerate(results) if _has_gradient(y))

    def again(gradient: Any) -> None:
        while copies:
            outputs, inputs, rows = copies.pop()
            leaves = [t for t in inputs if t.requires_grad]
            output = outputs[number]
            given = gradient
            if rows is not None and output.dim() and output.shape != gradient.shape:
                given = gradient[: len(output)]
            if output.requires_grad:
                with silently():
                    torch.autograd.grad(
                        output, leaves, given.reshape(output.shape), allow_unused=True
                    )

    results[number].register_hook(again)


def _has_gradient(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.requires_grad


def _same(tensor: Any) -> Any:
    return tensor
