"""Replayed peaks against real training steps of torch on CPU tensors, allocation by allocation."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from replay_cases import Case, cases, compare
from tracked_step import allocated_peak, prepare, track_step

from harness.tiers import some

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

CLOSE = 0.03
"""What is wanted; 5 % is what is promised."""


# Other optimizers than Adam differ in their state alone: on one model of each kind.
CASES = [
    case for case in cases() if case.optimizer == "adam" or case.name in ("mlp", "GPT-2", "LSTM")
]


ALWAYS = ("mlp", "GPT-2")
"""Models of which `make test` runs every case: dtypes, optimizers, micro-batches, recomputation."""


@pytest.mark.parametrize(
    "case", some(CASES, lambda case: case.name in ALWAYS), ids=lambda case: case.label
)
def test_the_peak_is_that_of_a_real_step(case: Case) -> None:
    compared = compare(case, track_step)
    assert compared.predicted_parameters == compared.parameters
    assert compared.error == pytest.approx(0.0, abs=CLOSE), (compared.predicted, compared.measured)


def test_the_tracker_sees_what_the_allocator_gives() -> None:
    """On a model whose kernels take nothing for themselves."""
    source = "zoo:transformer:layers=2,hidden=128,heads=4,vocab=1000,seq=32"
    tracked = track_step(source, batch=8)
    assert tracked.before + allocated_peak(prepare(source, batch=8).step) == pytest.approx(
        tracked.peak, rel=0.005
    )
