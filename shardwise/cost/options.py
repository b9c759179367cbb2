"""The options of a search, besides model, hardware and GPU count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isqrt

from shardwise.cost.pins import Pin
from shardwise.cost.software import (
    COMPILED,
    EAGER,
    FRAMEWORKS,
    JOINS,
    KERNELS,
    LOSS_OF,
    NEEDED,
    RERUNS,
    Framework,
)
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput, Cancelled
from shardwise.graph.tuning import FULL, parse_tuning
from shardwise.sharding.fusion import ALONE, LOSS, Fusing
from shardwise.sharding.precision import PRECISIONS

Progress = Callable[[str, float], bool]
"""Called with (stage, fraction done); returning False cancels."""

MOMENTS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Tensors like the parameter that an optimizer keeps."""

SOLVER_METHODS = ("auto", "elimination", "ldp", "heuristic", "brute-force")
"""Ways to solve a problem file; each returns a frontier."""

ZERO_STAGES = (0, 1, 2, 3)
NEVER, AUTO, ALWAYS = RECOMPUTE = ("never", "auto", "always")
SIMPLEST = (AUTO, NEVER)

TOFU = "tofu"
"""Tofu's recursive search: a peer to compare with, one strategy instead of a frontier."""

METHODS = (*SOLVER_METHODS, TOFU)
"""Ways to search a graph."""


SMALLEST_SEARCH = 16 * 2**20
"""Minimum of `search_memory_bytes`."""


MOST_IMBALANCE = 1000.0
"""Maximum `expert_imbalance`: one of a thousand devices gets all rows."""


@dataclass(frozen=True)
class Options:
    """How to search.

    `epsilon` is the relative error that the frontier may have at most in memory and in time, which
    its certificate states. `memory_limit_bytes` is what one device may use; the default is
    the profile's device memory divided by `memory_headroom`. `memory_room_bytes` of that have to
    stay free: a step may take more than predicted. `max_configurations` bounds the
    strategies considered for one group: above it neighbouring mesh axes between nodes, then
    inside nodes, are split as one. `time_limit_s` is for all of one search; `search_memory_bytes`
    is what the solver's tables and partial strategies may take besides the problem itself.

    `overlap` searches the time of the replayed step, communication overlapped; without it the sum
    of all times, as TensorOpt has it. `step` says how replay runs a step, `framework` what launches
    its work (`FRAMEWORKS`; None: in answers as usual on the hardware, `program.assumed`, below them
    eager), `kernels` how its light operators run (`KERNELS`), `loss` how a cross entropy does
    (`LOSS`), `rerun` what recomputation runs again (`RERUNS`; None: as in the framework, and the
    loss as the kernels). `assumed` says that nobody named the framework.

    What a strategy may choose besides splits: `zero` the ZeRO stages, `recompute` whether forward
    may be run again in backward (`never`, `auto`: where it pays, `always`), `micro_batches` the
    numbers of micro-batches tried, `precision` what weights and activations are computed in,
    `pins` rules for single operators, scopes or the whole graph (docs/strategies.md). Left out,
    recomputation is `auto` and every divisor of the batch is a number of micro-batches; a search of
    sums has neither. TensorOpt's own space is `overlap=False, zero=(0,)`.

    `gradients_applied_at_once`: every gradient is applied and freed as soon as it is there, as
    TensorFlow's graphs did with plain SGD, and is no more counted than other transient buffers.

    `simplest` says whether the answer is the simplest strategy within `epsilon` of the fastest that
    was found (`auto`), or that one (`never`).

    `power_limit_w` is the power that a GPU may take, in watts (None: that of the profile), by which
    busy products slow down (`hardware/power.py`).

    `expert_imbalance` is how many times the mean of the rows that are sent to a mixture's experts
    the busiest device gets.

    `shard_units` are numbers of neighbouring devices within which ZeRO may shard, besides a node
    and the like; pricing adds the unit of the configuration.

    `tune` is what of the model is trained: `full`, or adapters (`graph/tuning.py`).

    `policy` is a file of weights (docs/policy.md): on devices of several kinds its strategies are
    among those that a search begins with.
    """

    epsilon: float = 0.01
    memory_limit_bytes: float | None = None
    memory_headroom: float = 1.1  # TensorOpt §5.2: 14.5 GB of 16 GB are safe
    memory_room_bytes: float = 0.0
    optimizer: str = "adam"
    time_limit_s: float | None = None
    search_memory_bytes: int | None = None
    threads: int = 0
    method: str = "auto"
    max_configurations: int = 200
    zero: tuple[int, ...] = ZERO_STAGES
    recompute: str | None = None
    micro_batches: tuple[int, ...] = ()
    precision: str = "captured"
    pins: tuple[Pin, ...] = ()
    gradients_applied_at_once: bool = False
    overlap: bool = True
    step: StepSettings = field(default_factory=StepSettings)
    framework: str | None = None
    kernels: str | None = None
    loss: str | None = None
    rerun: str | None = None
    simplest: str = AUTO
    policy: str | None = None
    power_limit_w: float | None = None
    expert_imbalance: float = 1.0
    tune: str = FULL
    shard_units: tuple[int, ...] = ()
    assumed: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon <= 10.0:
            raise BadInput(f"{self.epsilon} is out of range", field="epsilon", expected="0 to 10")
        if self.optimizer not in MOMENTS:
            raise BadInput(
                f"unknown optimizer {self.optimizer!r}",
                field="optimizer",
                expected=", ".join(MOMENTS),
            )
        if self.method not in METHODS:
            raise BadInput(
                f"unknown method {self.method!r}", field="method", expected=", ".join(METHODS)
            )
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise BadInput(
                f"{self.time_limit_s} is not positive", field="time-limit", expected="seconds"
            )
        if self.search_memory_bytes is not None and self.search_memory_bytes < SMALLEST_SEARCH:
            raise BadInput(
                f"{self.search_memory_bytes} bytes are too few",
                field="search-memory",
                expected="at least 16MiB",
            )
        if self.max_configurations < 1:
            raise BadInput(
                f"got {self.max_configurations}", field="max-configurations", expected="at least 1"
            )
        if not 0 < self.memory_headroom < inf:
            raise BadInput(
                f"got {self.memory_headroom}", field="memory-headroom", expected="a number above 0"
            )
        self._check_choices()
        parse_tuning(self.tune)
        limit = self.memory_limit_bytes
        if limit is not None and not limit > 0:
            raise BadInput(f"{limit} is not positive", field="memory", expected="a size above 0")
        if not 0 <= self.memory_room_bytes < inf:
            raise BadInput(f"got {self.memory_room_bytes}", field="room", expected="a size")
        if not 1 <= self.expert_imbalance <= MOST_IMBALANCE:
            raise BadInput(
                f"got {self.expert_imbalance}",
                field="expert-imbalance",
                expected=f"the busiest device's rows over the mean, 1 to {MOST_IMBALANCE:g}",
            )
        if self.power_limit_w is not None and not 0 < self.power_limit_w < inf:
            raise BadInput(
                f"got {self.power_limit_w}", field="power-limit", expected="watts above 0"
            )

    def _check_choices(self) -> None:
        if not self.zero or not set(self.zero) <= set(ZERO_STAGES):
            raise BadInput(
                f"got ZeRO stages {list(self.zero)}", field="zero", expected="some of 0, 1, 2, 3"
            )
        for name, value, known in (
            ("recompute", self.recomputation, RECOMPUTE),
            ("precision", self.precision, tuple(PRECISIONS)),
            ("framework", self.launched_by, tuple(FRAMEWORKS)),
            ("kernels", self.kernels or EAGER, KERNELS),
            ("loss", self.loss or ALONE, LOSS),
            ("rerun", self.rerun or NEEDED, RERUNS),
            ("simplest", self.simplest, SIMPLEST),
        ):
            if value not in known:
                raise BadInput(f"unknown {name} {value!r}", field=name, expected=", ".join(known))
        if self.step.offloads_states and (self.method == TOFU or set(self.zero) == {0}):
            raise BadInput(
                "states on the host must be sharded by ZeRO",
                field="offload",
                expected="ZeRO stages from 1 on, and another method than tofu",
            )
        if self.pins and self.method == TOFU:
            raise BadInput(
                "Tofu's recursion does not support pins",
                field="pin",
                expected="another method, or no pins",
            )
        if self.micro_batches and min(self.micro_batches) < 1:
            raise BadInput(
                f"got {list(self.micro_batches)}", field="micro-batches", expected="numbers from 1"
            )
        if self.gradients_applied_at_once and set(self.micro_batches) - {1}:
            raise BadInput(
                "gradients of several micro-batches cannot be applied at once",
                field="micro-batches",
                expected="1",
            )

    @property
    def replays(self) -> bool:
        """Whether replayed times are searched; Tofu's recursion knows only its own sum."""
        return self.overlap and self.method != TOFU

    @property
    def launching(self) -> Framework:
        """What launches a step's work."""
        return FRAMEWORKS[self.launched_by]

    @property
    def launched_by(self) -> str:
        """The name of what launches a step's work: one of `FRAMEWORKS`."""
        return self.framework or EAGER

    @property
    def assumes_compiled(self) -> bool:
        """Whether light operators are compiled by default, without a request."""
        return self.assumed and self.kernels is None and self.light_kernels == COMPILED

    @property
    def light_kernels(self) -> str:
        """How memory-bound operators run: one of `KERNELS`."""
        return self.kernels or self.launching.kernels

    @property
    def fusing(self) -> Fusing:
        """Which operators run as one pass."""
        kernels = self.light_kernels
        return Fusing(JOINS[kernels], self.loss or LOSS_OF[kernels])

    @property
    def rerun_of_segments(self) -> str:
        """How much of a recomputation segment runs again: one of `RERUNS`."""
        return self.rerun or self.launching.rerun

    @property
    def recomputation(self) -> str:
        """Whether forward may be run again in backward: one of `RECOMPUTE`."""
        if self.recompute is not None:
            return self.recompute
        return AUTO if self.replays else NEVER

    def counts(self, batch: int | None) -> tuple[int, ...]:
        """Returns the numbers of micro-batches to try for a batch (None: nothing is a sample)."""
        if self.micro_batches:
            return self.micro_batches
        if not self.replays or self.gradients_applied_at_once or batch is None:
            return (1,)
        small = [count for count in range(1, isqrt(batch) + 1) if batch % count == 0]
        return tuple(sorted({*small, *(batch // count for count in small)}))

    def limit_for(self, device_memory_bytes: float) -> float:
        """Returns the memory limit of one device for a step, in bytes.

        Raises `BadInput` if the room to keep free leaves nothing.
        """
        limit = self.memory_limit_bytes
        may_use = device_memory_bytes / self.memory_headroom if limit is None else float(limit)
        left = may_use - self.memory_room_bytes
        if left <= 0:
            raise BadInput(
                f"{self.memory_room_bytes / 2**30:.4g} GiB of the {may_use / 2**30:.4g} GiB that a "
                "step may use are to stay free",
                field="room",
                expected="less",
            )
        return left

    def state_bytes_per_element(self, parameter_bytes: int) -> int:
        """Returns optimizer state (and master weight) of one parameter element, in bytes."""
        step = self.step
        moments = step.moments_bytes(parameter_bytes)[: MOMENTS[self.optimizer]]
        return sum(moments) + step.master_bytes(parameter_bytes)

    def host_bytes_per_element(self, parameter_bytes: int) -> int:
        """Returns the host's bytes per parameter element if it has the states: these, and the
        parameter if it has no wider copy."""
        copy = 0 if self.step.has_master(parameter_bytes) else parameter_bytes
        return self.state_bytes_per_element(parameter_bytes) + copy

    def training_bytes_per_element(self, parameter_bytes: int) -> int:
        """Returns weight, gradient and optimizer state of one parameter element, in bytes."""
        gradient = self.step.gradient_bytes(parameter_bytes)
        return parameter_bytes + gradient + self.state_bytes_per_element(parameter_bytes)


def go_on(progress: Progress, stage: str, fraction: float) -> None:
    """Reports progress. Raises `Cancelled` if `progress` returns False."""
    if not progress(stage, fraction):
        raise Cancelled


def quiet(stage: str, fraction: float) -> bool:
    """Ignores progress and never cancels."""
    return True
