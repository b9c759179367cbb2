"""What plans predict of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import ComputeShares, Expected


class Mixture(msgspec.Struct, frozen=True):
    """A part of a strategy: what its groups do, with their share of all parameters and of the
    compute time."""

    label: str
    parameters: float
    compute: float


class Faster(msgspec.Struct, frozen=True):
    """The fastest strategy that was found, where a plan is a simpler one: its label, what it saves
    of the plan's step, relative, and its own step and peak."""

    label: str
    saves: float
    replayed_time_s: float
    peak_bytes: int


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What every plan predicts; a member that a form of plan does not write is unset."""

    if TYPE_CHECKING:
        peak_bytes: int
        samples_per_s: float | None

    @property
    def peak_stage(self) -> int:
        """The stage that reaches the peak."""
        return 0

    @property
    def label(self) -> str | UnsetType:
        """The strategy in the words of parallel training."""
        return UNSET

    @property
    def model_flops_utilisation(self) -> float | UnsetType:
        """What the model's products would take at the GPUs' peak, over the step."""
        return UNSET

    @property
    def causal_flops_utilisation(self) -> float | UnsetType:
        """The same with causal attention counted as its kernels compute it."""
        return UNSET

    @property
    def tokens_per_s(self) -> float | UnsetType | None:
        """Tokens of samples that are sequences of them."""
        return UNSET

    @property
    def expected(self) -> Expected | UnsetType:
        """How far published steps on such GPUs were from their predictions."""
        return UNSET


class Prediction(Predicted, frozen=True):
    """What a plan is predicted to take: sums of the search, and the step as it was replayed.

    `gap` is how much longer than the shortest possible the time may be, relative, null without a
    proof. `label` is the strategy in the words of parallel training (docs/strategies.md), and
    `mixtures` what it consists of, the largest part first. `faster` is there where a faster
    strategy was found, within the tolerance of the search, that makes more different choices.
    `expected` says how far published steps on such GPUs were from their predictions, where enough
    were compared.
    `model_flops_utilisation` is what the model's products would take at the GPUs' peak, over the
    time that ranks; recomputation does not count. Causal attention counts whole in it, and as its
    kernels compute it in `causal_flops_utilisation`. `tokens_per_s` is null where samples are not
    sequences of tokens. `host_s` is how long the host launches the step's work, for which GPUs may
    wait. `bound_by` is `compute`, `links inside a node`, `links between nodes`, `memory limit` or
    `host`, and `to_go_faster` says in a sentence what would shorten the step.
    """

    memory_bytes: int
    peak_bytes: int
    fixed_memory_bytes: float
    time_s: float
    replayed_time_s: float
    exposed_communication_s: float
    compute_s: float
    compute_shares: ComputeShares | None
    communication_s: float
    fixed_time_s: float
    samples_per_s: float | None
    gap: float | None
    label: str | UnsetType = UNSET
    model_flops_utilisation: float | UnsetType = UNSET
    causal_flops_utilisation: float | UnsetType = UNSET
    tokens_per_s: float | UnsetType | None = UNSET
    bound_by: str | UnsetType = UNSET
    to_go_faster: str | UnsetType = UNSET
    host_s: float | UnsetType = UNSET
    mixtures: list[Mixture] | UnsetType = UNSET
    faster: Faster | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET
