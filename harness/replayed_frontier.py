"""A frontier and a curve of replayed steps whose sums are in another order."""

from __future__ import annotations

from shardwise.documents import Curve, CurvePoint, Frontier, FrontierPoint
from shardwise.documents.common import (
    Certificate,
    ComputeShares,
    MeshDescription,
    Provenance,
    SearchReport,
)
from shardwise.documents.frontier import PointMemory, PointTime, Split

GIB = 2**30
PEAKS_GIB, STEPS_S = (2, 3, 5), (1.0, 0.75, 0.5)
SUMS_GIB, TIMES_S = (9, 8, 7), (1.25, 1.5, 1.75)
COMPUTE_S, GAPS = 0.25, (0.25, 0.03, None)
MODELLED = ComputeShares(measured=0.0, interpolated=0.0, modelled=1.0)


def replayed_frontier() -> Frontier:
    """Returns three points in the order of the replayed step; the last exceeds the limit."""
    points = [
        FrontierPoint(
            memory_bytes=SUMS_GIB[i] * GIB,
            time_s=TIMES_S[i],
            plan_id=f"sha256:{i}",
            micro_batches=1,
            compute_s=COMPUTE_S,
            compute_shares=MODELLED,
            communication_s=TIMES_S[i] - COMPUTE_S,
            replayed_time_s=STEPS_S[i],
            replayed_peak_bytes=PEAKS_GIB[i] * GIB,
            feasible=PEAKS_GIB[i] <= 4,
            memory=PointMemory(GIB, (SUMS_GIB[i] - 1) * GIB, 0, 0),
            time=PointTime(COMPUTE_S, TIMES_S[i] - COMPUTE_S, 0.0),
            splits=[Split("batch over all", 3)],
            other_splits=0,
            label=f"strategy {i}",
            gap=GAPS[i],
        )
        for i in range(3)
    ]
    return Frontier(
        graph="sha256:g",
        graph_name="a model",
        batch_size=64,
        hardware="some GPUs",
        hardware_id="sha256:h",
        gpus=4,
        nodes=1,
        mesh=MeshDescription([]),
        optimizer="adam",
        precision="captured",
        overlap=True,
        device_memory_bytes=5 * GIB,
        memory_limit_bytes=4 * GIB,
        provenance=Provenance("by hand", "modelled", "modelled", "modelled"),
        undescribed_operators=[],
        replicated_operators=[],
        warnings=[],
        points=points,
        turning_point=1,
        certificate=Certificate(exact=False, epsilon=0.25, status="heuristic"),
        search=SearchReport(0.1, GIB, "auto", 3, 3, 2, 4, 2.0),
    )


def replayed_curve() -> Curve:
    """Returns the curve of one to three GPUs, in which the sums ascend."""
    points = [
        CurvePoint(
            gpus=i + 1,
            nodes=1,
            feasible=True,
            time_s=TIMES_S[i],
            replayed_time_s=STEPS_S[i],
            samples_per_s=64 / STEPS_S[i],
            peak_bytes=PEAKS_GIB[i] * GIB,
            memory_bytes=SUMS_GIB[i] * GIB,
            plan_id=f"sha256:{i}",
            compute_shares=MODELLED,
            confidence="modelled",
            micro_batches=1,
            gap=GAPS[i],
            best_gpus=i + 1,
            best_time_s=STEPS_S[i],
        )
        for i in range(3)
    ]
    return Curve(
        graph_name="a model", hardware="some GPUs", overlap=True, max_gpus=3, points=points
    )
