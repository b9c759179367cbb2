"""Products in 8 and 4 bits as trainers' files say them, and ours (`sharding/recipes.py`).

torchtitan: `model.converters` and the section of each (its pages Float8 and MXFP8). Megatron:
`--fp8-format`, `--fp8-recipe` (delayed unless given), `--fp4-format` (Megatron Core, Low-Precision
Training Guide). Accelerate: `mixed_precision: fp8` with the backend's part of `fp8_config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.sharding.recipes import RECIPES
from shardwise.trainers.configuration import Section
from shardwise.trainers.megatron_flags import MegatronFlags

PRECISION = "precision"
"""What the option is called."""

FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"
"""torchtitan's converters; without their first words in 2025."""

_CONVERTERS = {FLOAT8: FLOAT8, "float8": FLOAT8, MX: MX, "mx": MX}
TORCHAO = {
    "tensorwise": "fp8:tensorwise",
    "rowwise": "fp8:rowwise",
    "rowwise_with_gw_hp": "fp8:rowwise_with_gw_hp",
}
"""Recipes of torchao's float8, by its names."""

MEGATRON = {
    "delayed": "fp8:delayed",
    "tensorwise": "fp8:tensorwise",
    "blockwise": "fp8:blockwise",
    "mxfp8": "fp8:mxfp8",
}
"""Megatron's `--fp8-recipe`."""

GATHERED = "priced with weights gathered in 16 bits"
"""What is said of gathers in 8 bits."""

OTHER = "priced with products in 16 bits"

MAXTEXT = {
    "fp8": "fp8:delayed",
    "nanoo_fp8": "fp8:delayed",
    "te_fp8_delayedscaling": "fp8:delayed",
    "te_fp8_currentscaling": "fp8:tensorwise",
    "te_mxfp8": "fp8:mxfp8",
}
"""MaxText's `quantization` (Flax' own operators scale by the steps before)."""


def of_titan(job: Section, model: Section, left_out: list[str]) -> str | None:
    """Returns the precision that a job of torchtitan has, if its converters give it one."""
    given = model.given("converters")
    names = [str(name) for name in given] if isinstance(given, list) else []
    former = job.section("float8")
    if former.has("enable_float8_linear") and former.flag("enable_float8_linear"):
        names.append("float8")
    found: str | None = None
    for name in names:
        known = _CONVERTERS.get(name)
        if known is None:
            left_out.append(f"model.converters {name[:60]}: {OTHER}")
            continue
        section = _section(job, name)
        if known == MX:
            section.ignore("recipe_name", "filter_fqns", "mxfp8_dim1_cast_kernel_choice")
            found = "fp8:mxfp8"
            continue
        recipe = section.word("recipe_name", "tensorwise", ("", *TORCHAO)) or "tensorwise"
        found = TORCHAO[recipe]
        if section.flag("enable_fsdp_float8_all_gather"):
            left_out.append(f"{section.path('enable_fsdp_float8_all_gather')}: {GATHERED}")
        section.ignore(
            *("precompute_float8_dynamic_scale_for_fsdp", "force_recompute_fp8_weight_in_bwd"),
            *("filter_fqns", "emulate"),
        )
    return found


def of_registry(converters: Sequence[str], recipes: Sequence[str]) -> str | None:
    """Returns the precision of torchtitan's converters by the words of their classes and the
    recipes that they name; None for several at once."""
    if list(converters) == ["MXFP8"]:
        return "fp8:mxfp8"
    if list(converters) == ["Float8"] and len(recipes) < 2:
        return TORCHAO[recipes[0]] if recipes else "fp8:tensorwise"
    return None


def _section(job: Section, converter: str) -> Section:
    section = job
    for part in converter.split("."):
        section = section.section(part)
    return section


def to_titan(precision: str) -> tuple[str, dict[str, Any]] | None:
    """Returns torchtitan's converter of a precision and its section; None where it has none."""
    name = _full(precision)
    if name == "fp8:mxfp8":
        return MX, {"recipe_name": "mxfp8_cublas", "filter_fqns": ["output"]}
    recipe = next((own for own, ours in TORCHAO.items() if ours == name), None)
    if recipe is None:
        return None
    return FLOAT8, {"recipe_name": recipe, "filter_fqns": ["output", "router.gate"]}


def of_megatron(flags: MegatronFlags) -> str | None:
    """Returns the precision of Megatron's flags, None where they ask for 16 bits or more.

    Raises `BadInput` for a recipe that has no price.
    """
    if "fp4-format" in flags:
        flags.word("fp4-recipe", "nvfp4", ("nvfp4",))
        return "nvfp4"
    if "fp8-format" not in flags:
        flags.ignore("fp8-recipe")
        return None
    if flags.values("fp8-format"):  # NeMo 1 has a truth there
        flags.word("fp8-format", "", ("e4m3", "hybrid"))
    flags.ignore("fp8-format", "fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-margin")
    return MEGATRON[flags.word("fp8-recipe", "delayed", MEGATRON)]


def to_megatron(precision: str) -> list[str] | None:
    """Returns Megatron's flags of a precision; None where it has none."""
    name = _full(precision)
    if name == "nvfp4":
        return ["--fp4-format e2m1", "--fp4-recipe nvfp4"]
    recipe = next((own for own, ours in MEGATRON.items() if ours == name), None)
    if recipe is None:
        return None
    gradients = RECIPES[name].gradient
    form = "hybrid" if gradients == "float8_e5m2" else "e4m3"
    return [f"--fp8-format {form}", f"--fp8-recipe {recipe}"]


def _word(top: Section, key: str, known: tuple[str, ...]) -> str:
    """Returns one of the words, the first of which YAML takes for false where it is not quoted."""
    return known[0] if top.given(key) is False else top.word(key, known[0], known)


def of_accelerate(top: Section) -> str | None:
    """Returns the precision of Accelerate's `mixed_precision: fp8`, by its backend; None without.

    TransformerEngine's is delayed, torchao's tensorwise; MS-AMP's is read as delayed.
    """
    wanted = _word(top, "mixed_precision", ("no", "fp16", "bf16", "fp8")) == "fp8"
    config = top.section("fp8_config")
    backend = config.word("backend", "TE").upper()
    config.ignore_all()
    if not wanted:
        return None
    return "fp8:tensorwise" if backend == "AO" else "fp8:delayed"


def to_accelerate(precision: str) -> dict[str, Any] | None:
    """Returns Accelerate's `fp8_config` of a precision; None where it has none."""
    name = _full(precision)
    if name == "fp8:tensorwise":
        return {"backend": "AO"}
    if name == "fp8:delayed":
        return {"backend": "TE", "fp8_format": "HYBRID", "amax_history_length": 1}
    return None


def _full(precision: str) -> str:
    return RECIPES[precision].name if precision in RECIPES else precision
