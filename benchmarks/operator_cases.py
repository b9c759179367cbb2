"""Steps of real models on this CPU against what operator tables measured here predict."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import torch
from tracked_step import prepare

from harness.answers import plan
from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.graph import Graph
from shardwise.hardware import Hardware, hardware_document, hardware_from_document
from shardwise.measure.operators import Effort, Measured, add_operators
from shardwise.measure.operators.clock import cache_bytes, timing
from shardwise.measure.operators.profile import working_set_bytes

STEPS = 25


@dataclass(frozen=True)
class Case:
    """One model, trained with Adam on one device of one thread."""

    name: str
    source: str
    batch: int
    seq: int | None = None


@dataclass(frozen=True)
class Compared:
    """Seconds of a step: real ones with their spread, predicted with and without tables."""

    case: Case
    measured_s: float
    spread: float
    predicted_s: float
    roofline_s: float
    shares: dict[str, float]
    calls: int
    measuring_s: float
    notes: list[str]

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


CASES = (
    Case("MLP 4x512", "zoo:mlp:layers=4,inputs=512,hidden=512", 128),
    Case("MLP 6x1024", "zoo:mlp:layers=6,inputs=1024,hidden=1024", 256),
    Case("GPT-2 tiny", "hf:GPT2Config:n_layer=2,n_embd=128,n_head=4,vocab_size=2048", 4, 64),
    Case("GPT-2 small", "hf:GPT2Config:n_layer=4,n_embd=384,n_head=6,vocab_size=8192", 4, 128),
    Case(
        "BERT tiny",
        "hf:BertConfig:num_hidden_layers=2,hidden_size=256,num_attention_heads=4,"
        "intermediate_size=1024,vocab_size=4096",
        4,
        128,
    ),
    Case("VGG16 64 px", "zoo:vgg16:image=64,classes=10", 4),
)


def host_profile() -> Hardware:
    """This machine as one device of one thread: a product, a copy, a small addition."""
    side, size = 1024, 2**26
    a, b = torch.rand(side, side), torch.rand(side, side)
    source, target = torch.zeros(size // 4), torch.zeros(size // 4)
    tiny = torch.zeros(1)
    product = _fastest(lambda: torch.mm(a, b))
    copy = _fastest(lambda: target.copy_(source))
    latency = _fastest(lambda: tiny.add_(1.0))
    level = {"name": "here", "size": 1, "bandwidth_bytes_per_s": 1e9, "latency_s": 1e-5}
    return hardware_from_document(
        {
            "schema": "shardwise.hardware/1",
            "name": "this-host",
            "provenance": "a product, a copy and an addition measured on this machine",
            "devices": [
                {
                    "kind": "CPU, 1 thread",
                    "count": 1,
                    "memory_bytes": 8e9,
                    "peak_flops_per_s": {"float32": 2 * side**3 / product},
                    "memory_bandwidth_bytes_per_s": 2 * size / copy,
                    "compute_efficiency": 1.0,
                    "memory_efficiency": 1.0,
                    "kernel_latency_s": latency,
                }
            ],
            "levels": [{**level, "efficiency": 1.0}] * 2,
        }
    )


def _fastest(call: Any) -> float:
    times = []
    for _ in range(20):
        began = process_time()
        call()
        times.append(process_time() - began)
    return float(np.median(times))


def compare(case: Case, host: Hardware, time_limit_s: float) -> Compared:
    """Measure the model's operators, predict its step, run it."""
    graph = capture(case.source, batch=case.batch, seq=case.seq, dtype="float32")
    options = Options(overlap=False, zero=(0,))
    flushed = working_set_bytes(graph) > cache_bytes(torch, torch.device("cpu"))
    effort = Effort(time_limit_s=time_limit_s, threads=1, flushed=flushed, own_time=True)
    document, measured = _add(host, graph, options, effort)
    predicted = plan(graph, hardware_from_document(document), 1, options=options)["predicted"]
    roofline = plan(graph, host, 1, options=options)["predicted"]
    prepared = prepare(case.source, batch=case.batch, seq=case.seq)
    prepared.step()
    times = []
    for _ in range(STEPS):
        began = process_time()
        prepared.step()
        times.append(process_time() - began)
    real = timing(times)
    return Compared(
        case,
        real.time_s,
        real.spread,
        predicted["time_s"],
        roofline["time_s"],
        predicted["compute_shares"],
        sum(len(table.times_s) for table in measured.tables),
        measured.seconds,
        measured.notes(),
    )


def _add(
    host: Hardware, graph: Graph, options: Options, effort: Effort
) -> tuple[dict[str, Any], Measured]:
    return add_operators(hardware_document(host), graph, 1, options=options, effort=effort)
