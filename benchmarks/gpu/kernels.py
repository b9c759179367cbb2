"""Matrix products and attention alone, against the tables of the profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import sleep, time
from typing import Any

import numpy as np

from shardwise.hardware import Device
from shardwise.hardware.attention import BACKWARD

from .parts import Row, Work
from .setting import Setting
from .timing import Timer

FORWARD, OF_INPUT, OF_WEIGHT = "forward", "gradient of the input", "gradient of the weight"
TOKENS = 8192
LAYERS = {
    "gpt2": ((2304, 768), (768, 768), (3072, 768), (768, 3072)),
    "llama-8b": ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336)),
}
"""Outputs and inputs of linear layers."""
GRID = ((64, 256, 4096, 16384), (256, 2048, 16384), (256, 2048, 16384))
SIDE, REST_S, BURST_S, CHUNK_S, SUSTAINED_S = 8192, 1.0, 0.02, 0.1, 5.0
ATTENTIONS = ((16, 512), (128, 512), (16, 2048), (128, 2048), (16, 8192), (64, 8192))
"""Heads of all sequences of a batch, and tokens of a sequence."""
HEAD_SIZES = (64, 128)


def products(setting: Setting, work: Work) -> None:
    """Tells the utilisation of each product, then what of a short burst lasts under load."""
    import torch

    timer, device = Timer(torch, setting.on_gpu), setting.hardware.devices[0]
    chosen = [("grid", FORWARD, m, n, k) for m in GRID[0] for n in GRID[1] for k in GRID[2]]
    for layer, sizes in LAYERS.items():
        for n, k in sizes:
            roles = ((FORWARD, TOKENS, n, k), (OF_INPUT, TOKENS, k, n), (OF_WEIGHT, k, n, TOKENS))
            chosen += [(layer, *role) for role in roles]
    sustained_s = SUSTAINED_S / setting.shrink
    for number, (layer, role, *whole) in enumerate(chosen):
        if work.left_s < 2 * sustained_s:
            work.tell("left out", f"{len(chosen) - number} products: no time left")
            break
        m, n, k = (max(size // setting.shrink, 1) for size in whole)
        seconds = timer.typical(_product(torch, setting, role, m, n, k))
        found = _compared(device, setting.dtype, m, n, k, seconds)
        work.tell("product", {"of": layer, "role": role, "m": m, "n": n, "k": k, **found})
    work.tell("doing", "multiplying under load")
    work.tell("sustained", _sustained(torch, setting, timer, device, sustained_s))


def _product(torch: Any, setting: Setting, role: str, m: int, n: int, k: int) -> Callable[[], Any]:
    """Returns a product (m, n, k) of operands that lie in memory as in a linear layer."""

    def random(*shape: int) -> Any:
        # Of zeros a GPU takes less power, and keeps higher clocks.
        return torch.randn(shape, dtype=getattr(torch, setting.dtype), device=setting.device)

    left = random(k, m).t() if role == OF_WEIGHT else random(m, k)
    right = random(n, k).t() if role == FORWARD else random(k, n)
    return partial(torch.mm, left, right)


def _compared(device: Device, dtype: str, m: int, n: int, k: int, seconds: float) -> Row:
    """Returns measured and predicted utilisation of the roofline, and the error of the time."""
    operations, elements = 2.0 * m * n * k, float(m * k + k * n + m * n)
    moved = elements * (4 if dtype == "float32" else 2)
    bound_s = max(operations / device.peak(dtype), moved / device.memory_bandwidth_bytes_per_s)
    table = device.product_table(dtype)
    if table is None:
        time_s = device.roofline_times(np.array([operations]), np.array([moved]), dtype)
        of_profile = bound_s / float(time_s[0])
    else:
        of_profile = float(table.of(*(np.array([float(size)]) for size in (m, n, k)))[0])
    return {
        "time_s": seconds,
        "utilisation": bound_s / seconds,
        "profile_utilisation": of_profile,
        "error": bound_s / of_profile / seconds - 1.0,
    }


def _sustained(torch: Any, setting: Setting, timer: Timer, device: Device, long_s: float) -> Row:
    """Returns the utilisation of a large product in a burst after a rest, and in the second half of
    a long load."""
    side = SIDE // setting.shrink
    call = _product(torch, setting, FORWARD, side, side, side)
    once = timer.typical(call)
    sleep(REST_S / setting.shrink)
    burst_s = timer.seconds(call, max(int(BURST_S / once), 1))
    began, chunks = time(), [burst_s]
    while time() - began < long_s:
        chunks.append(timer.launched(call, max(int(CHUNK_S / once), 1)))
    late = chunks[len(chunks) // 2 :]
    lasting_s = sum(late) / len(late)
    burst, lasting = (
        _compared(device, setting.dtype, side, side, side, seconds)
        for seconds in (burst_s, lasting_s)
    )
    return {
        "side": side,
        "burst_utilisation": burst["utilisation"],
        "sustained_utilisation": lasting["utilisation"],
        "profile_utilisation": lasting["profile_utilisation"],
        "sustained_clock": min(burst_s / lasting_s, 1.0),
        "profile_clock": device.sustained_clock,
        "began": began,
        "ended": time(),
    }


def attention(setting: Setting, work: Work) -> None:
    """Tells the utilisation of causal attention, forward and backward."""
    import torch

    timer, device = Timer(torch, setting.on_gpu), setting.hardware.devices[0]
    for size in HEAD_SIZES:
        for heads, whole in ATTENTIONS:
            length = max(whole // setting.shrink, 16)
            what = f"attention of {heads} heads of {size}, {length} tokens"
            if work.left_s <= 0:
                work.tell("left out", f"{what}: no time left")
                continue
            work.tell("doing", what)
            shape = (heads // 8, 8, length, size)
            work.tell("attention", _attention(torch, setting, timer, device, shape))


def _attention(
    torch: Any, setting: Setting, timer: Timer, device: Device, shape: tuple[int, int, int, int]
) -> Row:
    kind = getattr(torch, setting.dtype)
    q, k, v, g = (torch.randn(shape, dtype=kind, device=setting.device) for _ in range(4))
    inputs = [tensor.requires_grad_(True) for tensor in (q, k, v)]
    attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    forward_s, out = timer.typical(attend), attend()
    backward_s = timer.typical(partial(torch.autograd.grad, out, inputs, g, retain_graph=True))
    heads, length, size = shape[0] * shape[1], shape[2], shape[3]
    peak_s = heads * length**2 * size / device.peak(setting.dtype)
    forward, backward = 2.0 * peak_s / forward_s, 5.0 * peak_s / backward_s
    table = device.attention_table(setting.dtype, size)
    of_profile = device.efficiency(setting.dtype)
    if table is not None:
        of_profile = float(table.of(np.array([float(heads)]), np.array([float(length)]))[0])
    return {
        "heads": heads,
        "tokens": length,
        "size": size,
        "forward_s": forward_s,
        "utilisation": forward,
        "profile_utilisation": of_profile,
        "error": forward / of_profile - 1.0,
        "backward_s": backward_s,
        "backward_utilisation": backward,
        "backward_over_forward": backward / forward,
        "profile_backward_over_forward": BACKWARD,
    }
