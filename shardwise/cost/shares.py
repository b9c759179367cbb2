"""The sources of a time: its measured, interpolated and modelled seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.documents.common import ComputeShares
from shardwise.hardware.sources import INTERPOLATED, MEASURED, MODELLED, SOURCES, Codes

__all__ = [
    "INTERPOLATED",
    "MEASURED",
    "MODELLED",
    "SOURCES",
    "Codes",
    "Shares",
    "by_source",
    "shares_text",
    "sum_shares",
]


@dataclass(frozen=True)
class Shares:
    """Seconds by source; adds up with `+` and `sum_shares`."""

    measured_s: float = 0.0
    interpolated_s: float = 0.0
    modelled_s: float = 0.0

    @classmethod
    def of(cls, times_s: Any, codes: Any) -> Shares:
        """Returns the shares of an array of terms; the array of their codes broadcasts with it."""
        times, sources = np.broadcast_arrays(np.asarray(times_s, dtype=np.float64), codes)
        return cls(*(float(times[sources == code].sum()) for code in range(len(SOURCES))))

    @classmethod
    def of_columns(cls, by_source_s: Any) -> Shares:
        """Returns the shares of three sums of seconds in the order of `SOURCES`."""
        return cls(*(float(value) for value in by_source_s))

    def __add__(self, other: Shares) -> Shares:
        return Shares(
            self.measured_s + other.measured_s,
            self.interpolated_s + other.interpolated_s,
            self.modelled_s + other.modelled_s,
        )

    def __mul__(self, times: float) -> Shares:
        return Shares(self.measured_s * times, self.interpolated_s * times, self.modelled_s * times)

    @property
    def total_s(self) -> float:
        """All seconds."""
        return self.measured_s + self.interpolated_s + self.modelled_s

    def document(self) -> ComputeShares | None:
        """Returns fractions that add up to 1, as documents have them; None without any time."""
        if not self.total_s > 0:
            return None
        return ComputeShares(
            measured=self.measured_s / self.total_s,
            interpolated=self.interpolated_s / self.total_s,
            modelled=self.modelled_s / self.total_s,
        )

    def text(self) -> str:
        """Returns text such as `72% measured, 20% interpolated, 8% modelled`; one word if all is of
        one source."""
        return shares_text(self.document())


def shares_text(shares: ComputeShares | None) -> str:
    """Returns the words for shares as documents have them; `no time` for None."""
    if shares is None:
        return "no time"
    present = [(name, share) for name in SOURCES if (share := getattr(shares, name)) > 0]
    if len(present) == 1:
        return present[0][0]
    return ", ".join(f"{fraction:.0%} {name}" for name, fraction in present)


def sum_shares(parts: Iterable[Shares]) -> Shares:
    """Returns the sum of shares."""
    return sum(parts, Shares())


def by_source(times_s: NDArray[np.float64], codes: Codes) -> NDArray[np.float64]:
    """Returns the seconds of terms (n, M) with codes (n, M), summed per row and source: (n, 3)."""
    return np.stack(
        [np.where(codes == code, times_s, 0.0).sum(axis=1) for code in range(len(SOURCES))], axis=1
    )
