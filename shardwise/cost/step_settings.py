"""How a training step is executed, as far as its memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadInput

CUDA, CPU = "cuda", "cpu"
DEVICES = (CUDA, CPU)
UPDATES = ("foreach", "for-loop", "fused")


@dataclass(frozen=True)
class StepSettings:
    """`device` says which kernels run, `update` how the optimizer goes over the parameters.

    `foreach`: all at once, torch's default on GPUs; `for-loop`: one by one, its default on CPUs;
    `fused`: without temporaries. `block_bytes` is what the allocator rounds up to: 512 in the CUDA
    caching allocator.
    """

    device: str = CUDA
    update: str = "foreach"
    block_bytes: int = 512

    def __post_init__(self) -> None:
        for field, value, known in (
            ("device", self.device, DEVICES),
            ("update", self.update, UPDATES),
        ):
            if value not in known:
                raise BadInput(f"unknown {field} {value!r}", field=field, expected=", ".join(known))
        if self.block_bytes < 1:
            raise BadInput(
                f"blocks of {self.block_bytes} bytes", field="block_bytes", expected="at least 1"
            )
