"""The program that an answer is about: what launches a step and how it runs."""

from __future__ import annotations

from dataclasses import replace

from shardwise.cost.options import MOMENTS, Options
from shardwise.cost.software import COMPILED, EAGER, FRAMEWORKS, FUSED, GRAPHS, MEGATRON
from shardwise.cost.step_settings import CAPTURED, EIGHT_BITS, FLOAT32, FOREACH
from shardwise.graph import Graph
from shardwise.graph.tuning import tuning_text
from shardwise.hardware import Hardware

_FRAMEWORKS = {
    EAGER: "eager torch",
    COMPILED: "compiled torch",
    GRAPHS: "torch in CUDA graphs",
    MEGATRON: "Megatron",
}
_KERNELS = {EAGER: "unfused kernels", COMPILED: "kernels as compiled", FUSED: "fused kernels"}
_STATES = {FLOAT32: "float32 state", CAPTURED: "state as captured", EIGHT_BITS: "8-bit state"}


def assumed(options: Options | None, hardware: Hardware) -> Options:
    """Returns the options with the program of a step filled in, if left open, as usual on a
    profile.

    On devices with a host (`Hardware.host`: GPUs) that is torch.compile with a fused update, as
    large models are trained; elsewhere, and with kernels that torch.compile does not write, eager
    torch. The update follows the framework. Given options stay.
    """
    options = options or Options()
    if options.framework is None:
        compiles = hardware.host is not None and options.kernels in (None, COMPILED)
        framework = COMPILED if compiles else EAGER
        options = replace(options, framework=framework, assumed=True)
    if options.step.update is None:
        update = options.launching.update
        options = replace(options, step=replace(options.step, update=update))
    return options


def program_text(options: Options, graph: Graph) -> str:
    """Returns text such as `compiled torch; adam, float32 state, fused update`.

    It begins with the trained part of the graph, unless that is all. A compiled program by default
    is called assumed, with the option for another.
    """
    step, framework = options.step, options.launched_by
    runs = [_FRAMEWORKS.get(framework, framework)]
    if options.light_kernels != FRAMEWORKS[framework].kernels:
        runs.append(_KERNELS[options.light_kernels])
    keeps = [options.optimizer]
    if MOMENTS[options.optimizer] or step.state != FLOAT32:
        keeps.append(_STATES.get(step.state, f"state of {step.state} bits"))
    keeps.append(f"{step.update or FOREACH} update")
    if step.offloads_states:
        keeps[-1] = "states and update on the host"
    if step.gradients == FLOAT32:
        keeps.append("float32 gradients")
    parts = filter(None, (tuning_text(graph), ", ".join(runs), ", ".join(keeps)))
    text = "; ".join(parts)
    if options.power_limit_w is not None:
        text += f"; GPUs at {options.power_limit_w:g} W"
    if options.assumed and framework == COMPILED:
        text += " (assumed; or --framework eager)"
    return text
