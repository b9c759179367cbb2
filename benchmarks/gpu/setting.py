"""What a run measures, and on which device.

Sizes are for a GPU of 24 GB; batches grow with its memory. Those of a quick run try the program out
in seconds, on a CPU too, and say nothing about training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardwise.answers import Options
from shardwise.cost.step_settings import StepSettings
from shardwise.hardware import Hardware, load_hardware
from shardwise.measure.host import STACKS, TINY_GPT2
from shardwise.measure.real_module import SizedSource

LLAMA = (
    "hf:LlamaConfig:hidden_size=2048,intermediate_size=8192,num_attention_heads=32,"
    "num_key_value_heads=8,vocab_size=32000,num_hidden_layers=16"
)
BERT = (
    "hf:BertConfig:hidden_size=1024,num_attention_heads=16,intermediate_size=4096,"
    "num_hidden_layers=24"
)
TINY = (
    "Config:hidden_size=64,num_hidden_layers=2,num_attention_heads=2,intermediate_size=128,"
    "vocab_size=256"
)
TABLED = (
    SizedSource("gpt2", "hf:GPT2Config", 8, 1024),
    SizedSource("llama-1b", LLAMA, 1, 1024),
    SizedSource("resnet50", "timm:resnet50", 64),
)
"""Those whose operators are measured; repeated layers make the same calls."""
STEPPED = (
    *TABLED,
    SizedSource("vit-base", "timm:vit_base_patch16_224", 64),
    SizedSource("bert-large", BERT, 8, 512),
)
QUICK = (
    SizedSource("mlp", "zoo:mlp:layers=2,inputs=64,hidden=64", 8),
    SizedSource("gpt2", f"{TINY_GPT2}2", 2, 32),
    SizedSource("resnet", "timm:test_resnet:img_size=64", 2),
    SizedSource("llama", f"hf:Llama{TINY}", 2, 32),
    SizedSource("bert", f"hf:Bert{TINY}", 2, 32),
)


@dataclass(frozen=True)
class Setting:
    """A run on torch's `device` (`cpu` or `cuda`), weights and activations in `dtype`.

    `hardware` is the profile that measurements are compared with, `measured` the same with what has
    been measured so far. Of `compiled` models steps are compiled too. `shrink` divides the sizes of
    kernels; `tables_s` bounds the seconds for one model's operators.
    """

    device: str
    dtype: str
    hardware: Hardware
    measured: Hardware
    stepped: tuple[SizedSource, ...] = QUICK
    tabled: tuple[SizedSource, ...] = QUICK[:3]
    stacks: tuple[SizedSource, ...] = QUICK[:2]
    compiled: tuple[SizedSource, ...] = QUICK[:1]
    shrink: int = 64
    tables_s: float = 1.0

    @property
    def on_gpu(self) -> bool:
        """Whether times come from a GPU's events."""
        return self.device == "cuda"

    def options(self, framework: str) -> Options:
        """Returns the options that leave one strategy on one device, which no memory refuses."""
        return Options(
            zero=(0,),
            recompute="never",
            micro_batches=(1,),
            memory_limit_bytes=1e15,
            step=StepSettings(device=self.device, update="for-loop"),
            framework=framework,
        )


def make_setting(device: str, quick: bool, dtype: str, hardware: Hardware) -> Setting:
    """Returns the setting of a run on the first device of a profile."""
    if quick:
        return Setting(device, dtype, hardware, hardware)
    memory = hardware.devices[0].memory_bytes
    times = next((times for times, least in ((4, 70), (2, 36)) if memory > least * 2**30), 1)
    stepped = tuple(replace(model, batch=model.batch * times) for model in STEPPED)
    tabled = stepped[: len(TABLED)]
    return Setting(device, dtype, hardware, hardware, stepped, tabled, STACKS, stepped, 1, 60.0)


BUILT_IN = {
    "gb200-nvl72": r"\bGB200",
    "b200-8": r"\bB200",
    "h200-8": r"\bH200(?! NVL)",
    "dgx-h100": r"\bH100(?! PCIe| NVL)",
    "grand-teton-h100-96gb": r"\bH100(?! PCIe| NVL)",
    "dgx-a100-80gb": r"\bA100-SXM",
    "dgx-a100-40gb": r"\bA100-SXM",
    "dgx-v100-16gb": r"\bV100-SXM2",
    "dgx1-v100-32gb": r"\bV100-SXM2",
    "dgx2-v100-32gb": r"\bV100-SXM3",
    "pcie-v100-8": r"\bV100-PCI",
    "l4": r"\bL4\b",
    "mi300x-8": r"\bMI300X",
}
"""Of each built-in profile what torch calls its GPU; the memory must agree as well."""
SAME_MEMORY = 0.12
"""Relative: drivers show up to a tenth more or less than data sheets."""


def built_in(name: str, memory_bytes: float) -> str | None:
    """Returns the built-in profile of a GPU by torch's name of it; None for any other."""
    for profile, pattern in BUILT_IN.items():
        stated = load_hardware(profile).devices[0].memory_bytes
        if re.search(pattern, name) and abs(memory_bytes / stated - 1.0) < SAME_MEMORY:
            return profile
    return None
