"""TensorOpt Fig. 7: what moves the Transformer's frontier."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from paper import draw
from paper.models import SOURCES
from paper.result import Claim, Result, Table
from paper.setting import GIB, cluster, compute_s, frontier, network, pcie
from shardwise.search.search import Search
from shardwise.search.turning_point import turning_point

HIDDEN = (1920, 2688, 3840, 5376)
FACTORS = {"no RDMA (half)": 0.5, "RDMA": 1.0, "4 × RDMA": 4.0}


def _sized(hidden: int) -> Search:
    name = "transformer" if hidden == 3840 else f"transformer-{hidden}"
    SOURCES.setdefault(name, (f"zoo:transformer:hidden={hidden}", {"batch": 256, "seq": 64}))
    return frontier(name)


def knee(search: Search) -> tuple[float, float]:
    """GiB and seconds at the turning point."""
    at = turning_point(search.memory_bytes, search.time_s)
    assert at is not None
    return float(search.memory_bytes[at]) / GIB, float(search.time_s[at])


def slower(one: Search, other: Search) -> tuple[float, float]:
    """Least and greatest quotient of the times of two frontiers at the same memory."""
    low = max(one.memory_bytes[0], other.memory_bytes[0])
    high = max(one.memory_bytes[-1], other.memory_bytes[-1])
    at = np.linspace(low, high, 200)
    quotient = _time_at(one, at) / _time_at(other, at)
    return float(quotient.min()), float(quotient.max())


def _time_at(search: Search, memory: np.ndarray) -> np.ndarray:
    return search.time_s[np.searchsorted(search.memory_bytes, memory, side="right") - 1]


def make() -> Result:
    result = Result("fig7", "TensorOpt Fig. 7: hidden size, network and NVLink (Transformer)")
    sizes = {f"hidden {h}": _sized(h) for h in HIDDEN}
    networks = {
        name: frontier("transformer", 16, network(factor) if factor != 1 else cluster())
        for name, factor in FACTORS.items()
    }
    links = {
        "NVLink": frontier("transformer", 8, cluster()),
        "PCIe": frontier("transformer", 8, pcie()),
    }
    groups = {"(a) 16 GPUs": sizes, "(b) 16 GPUs": networks, "(c) 8 GPUs": links}
    result.pictures.append(draw.save("fig7", 3, lambda axes: _draw(axes, groups)))
    rows = [
        _row(title[:3], name, search)
        for title, group in groups.items()
        for name, search in group.items()
    ]
    headers = (
        "",
        "",
        "least GiB",
        "turning point, GiB",
        "s",
        "shortest, s",
        "computation, s",
        "certified",
    )
    result.tables.append(Table(headers, rows))
    result.claims = [*_of_sizes(sizes), *_of_networks(networks), _of_links(links)]
    result.data = {
        name: {
            "memory_bytes": f.memory_bytes.tolist(),
            "time_s": f.time_s.tolist(),
            "knee": knee(f),
        }
        for group in groups.values()
        for name, f in group.items()
    }
    return result


def _row(title: str, name: str, search: Search) -> tuple[str, ...]:
    figures = search.memory_bytes[0] / GIB, *knee(search), search.time_s[-1], compute_s(search)[-1]
    certified = f"{float(search.solution.epsilon):.1%}"
    return (title, name, *(f"{value:.2f}" for value in figures), certified)


def _of_sizes(sizes: dict[str, Search]) -> list[Claim]:
    knees = [knee(search)[0] for search in sizes.values()]
    return [
        Claim(
            "(a) the turning point has more memory for larger models",
            all(a < b for a, b in pairwise(knees)),
            ", ".join(f"{name}: {k:.2f} GiB" for name, k in zip(sizes, knees, strict=True)),
        )
    ]


def _of_networks(networks: dict[str, Search]) -> list[Claim]:
    slow, base, fast = networks.values()
    knees = {name: knee(search) for name, search in networks.items()}
    memories = [m for m, _ in knees.values()]
    half = knees["4 × RDMA"][1] / knees["no RDMA (half)"][1]
    quotients = slower(slow, base), slower(base, fast)
    return [
        Claim(
            "(b) a faster network is faster at any memory",
            all(low > 0.99 for low, _ in quotients),
            "; ".join(f"{low:.2f} to {high:.2f} times" for low, high in quotients),
        ),
        Claim(
            "(b) the memory at the turning point is almost the same",
            max(memories) / min(memories) < 1.1,
            ", ".join(f"{name}: {m:.2f} GiB" for name, (m, _) in knees.items()),
        ),
        Claim(
            "(b) 4 × RDMA takes half the time of no RDMA at the turning point",
            0.4 < half < 0.6,
            f"{half:.2f}",
        ),
    ]


def _of_links(links: dict[str, Search]) -> Claim:
    low, high = slower(links["PCIe"], links["NVLink"])
    return Claim(
        "(c) NVLink is much faster than PCIe at the same memory",
        low > 1.1,
        f"PCIe takes {low:.2f} to {high:.2f} times as long",
    )


def _draw(axes: Any, groups: dict[str, dict[str, Search]]) -> None:
    for panel, (title, group) in zip(axes, groups.items(), strict=True):
        for name, search in group.items():
            (line,) = panel.plot(search.memory_bytes / GIB, search.time_s, label=name)
            panel.plot(*knee(search), "*", ms=11, color=line.get_color())
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("memory per GPU, GiB")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("iteration, s")
