"""Numbers in the words of tables and answers: sizes, times, counts."""

from __future__ import annotations

from collections.abc import Collection

MISSING = "-"


def gib(size_bytes: float | None) -> str:
    """Returns bytes as a number of GiB, for a column that names the unit."""
    return MISSING if size_bytes is None else f"{size_bytes / 2**30:,.2f}"


def gib_with_unit(size_bytes: float | None) -> str:
    """Returns bytes as `13.50 GiB`."""
    return MISSING if size_bytes is None else f"{gib(size_bytes)} GiB"


def seconds(value: float | None) -> str:
    """Returns seconds with four significant digits, in ms below one."""
    if value is None:
        return MISSING
    return milliseconds(value) if abs(value) < 1 else f"{value:.4g} s"


def milliseconds(value: float | None) -> str:
    """Returns seconds as ms with four significant digits."""
    return MISSING if value is None else f"{value * 1e3:.4g} ms"


def counted(count: int, noun: str) -> str:
    """Returns `1 GPU`, `2 GPUs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percentages(one: float, other: float) -> tuple[str, str]:
    """Returns two shares as percentages, with as many decimals as tell them apart, up to four."""
    for decimals in range(1, 5):
        texts = f"{one:.{decimals}%}", f"{other:.{decimals}%}"
        if texts[0] != texts[1] or one == other:
            break
    return texts


def utilisation(share: float, causal: float | None = None, name: str = "MFU") -> str:
    """Returns a share of the peak as `MFU 41.0%`; above 100 % it says how that can be.

    `causal` is the share with causal attention as it is computed, which is named where it differs:
    `MFU 59.7% (36.0% as causal attention is computed)`.

    The model's flops are those of its products as they are written; a 3×3 convolution by Winograd's
    algorithm computes 2.25 times fewer (Lavin and Gray 2016).
    """
    text = f"{name} {share:.1%}"
    if causal is not None and f"{causal:.1%}" != f"{share:.1%}":
        text += f" ({causal:.1%} as causal attention is computed)"
    return f"{text} (fast convolutions compute fewer than the model's flops)" if share > 1 else text


def verdict(fits: bool, left_out: Collection[str]) -> str:
    """Returns whether a configuration fits, and where parts are left out that it is another one."""
    words = "fits" if fits else "does not fit"
    if not left_out:
        return words
    return f"{words} as priced, which the file's own configuration {'need not' if fits else 'may'}"
