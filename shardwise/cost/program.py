"""The program that an answer is about, in words: what launches a step and how it runs."""

from __future__ import annotations

from shardwise.cost.options import MOMENTS, Options
from shardwise.cost.software import COMPILED, EAGER, FRAMEWORKS, FUSED, GRAPHS, MEGATRON
from shardwise.cost.step_settings import CAPTURED, CUDA, EIGHT_BITS, FLOAT32
from shardwise.hardware import Hardware

_FRAMEWORKS = {
    EAGER: "eager torch",
    COMPILED: "compiled torch",
    GRAPHS: "torch in CUDA graphs",
    MEGATRON: "Megatron",
}
_KERNELS = {EAGER: "unfused kernels", COMPILED: "kernels as compiled", FUSED: "fused kernels"}
_STATES = {FLOAT32: "float32 state", CAPTURED: "state as captured", EIGHT_BITS: "8-bit state"}


def program_text(options: Options, hardware: Hardware) -> str:
    """Returns text such as `eager torch; adam, float32 state, foreach update`.

    On GPUs, of the eager program, also with what people train large models.
    """
    step, framework = options.step, options.framework
    runs = [_FRAMEWORKS.get(framework, framework)]
    if options.light_kernels != FRAMEWORKS[framework].kernels:
        runs.append(_KERNELS[options.light_kernels])
    keeps = [options.optimizer]
    if MOMENTS[options.optimizer] or step.state != FLOAT32:
        keeps.append(_STATES[step.state])
    keeps.append(f"{step.update} update")
    if step.gradients == FLOAT32:
        keeps.append("float32 gradients")
    text = f"{', '.join(runs)}; {', '.join(keeps)}"
    if options.power_limit_w is not None:
        text += f"; GPUs at {options.power_limit_w:g} W"
    if framework == EAGER and step.device == CUDA and hardware.host is not None:
        text += ". Large models are mostly trained compiled (--framework compiled) or by a trainer"
    return text
