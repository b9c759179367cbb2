"""A published run with a pipeline on the cost model: its own stages, schedule and parallelism.

Stages have equal layers, but for the first and the last where the source says so, one on a device
or several interleaved, all with the run's strategy on the devices of one of them: pinned there as a
run without a pipeline is (predict.py). The pipeline is outermost, as Megatron-LM numbers its ranks:
a stage has neighbouring devices. Those of a tensor-parallel group send a part each of what they all
have, as Megatron-LM and DeepSpeed do, of which all sources with pipelines are made. Each stage is
replayed, with the wait for its host, and the schedule simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as with_fields

from shardwise.cost.options import quiet
from shardwise.errors import BadInput
from shardwise.hardware import Hardware
from shardwise.peers.evaluate import Point
from shardwise.peers.pipelines import piped_point
from shardwise.replay.owner_costs import host_costs
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.uniform import UniformModel

from .predict import candidates, run_hardware, run_mesh, run_options
from .run import Run


@dataclass(frozen=True)
class PipelinePrediction:
    """A run with a pipeline as the cost model has it; `point` has the sums of its busiest rank.

    `device_s` is the step if no stage waited for its host, `host_s` what the host of the rank with
    the most work takes to launch it.
    """

    run: Run
    hardware: Hardware
    pipeline: Pipeline
    point: Point
    device_s: float
    host_s: float

    @property
    def time_s(self) -> float:
        """The time of the step, with the waits for hosts."""
        return self.pipeline.step_s

    @property
    def peak_bytes(self) -> float:
        """The largest peak of any device."""
        return float(self.pipeline.rank_peak_bytes.max())


def predict_pipeline(
    run: Run,
    staged: StagedSubject,
    change: Callable[[Hardware], Hardware] = lambda profile: profile,
) -> PipelinePrediction:
    """The run's iteration time and memory on its profile, which `change` may alter.

    `staged` is the run's model on its batch. Raises `BadInput` naming the run where the model
    cannot be parallelised as it says.
    """
    hardware = change(run_hardware(run))
    of_stage = with_fields(run, gpus=run.gpus // run.pipeline_parallel)
    mesh = run_mesh(of_stage, hardware)
    options = replace(run_options(of_stage, mesh), framework=run.framework, overlap=True)
    graph = staged.subject.graph
    model = UniformModel(graph, hardware, run.gpus, staged, scattered=True, ends=run.ends)
    try:
        stages = model.costed(
            run.pipeline_parallel, run.micro_batches, options, quiet, run.virtual_stages, mesh
        )
        count = run.pipeline_parallel * run.virtual_stages
        pipeline = min(
            (
                stages.pipeline(run.schedule, *choices)
                for choices in candidates(run, stages.search.problem, options, count)
            ),
            key=lambda one: one.rank,
        )
    except ValueError as error:
        problem_text = getattr(error, "problem", str(error))
        raise BadInput(problem_text, field=f"run {run.name}", expected="another model") from None
    return PipelinePrediction(
        run, hardware, pipeline, piped_point(pipeline), _device_s(pipeline), _host_s(pipeline)
    )


def _device_s(pipeline: Pipeline) -> float:
    """Returns the step if hosts took no time."""
    replayer = copy(pipeline.search.own_replayer)
    replayer.host = None
    own = StageReplayer(replayer, pipeline.units.of_group)
    placed = [pipeline.placement.stages_of(rank) for rank in range(pipeline.ranks)]
    replayed = own.replay(pipeline.choices, pipeline.edge_choices, pipeline.bounds, placed)
    return replace(pipeline, replayed=replayed).step_s


def _host_s(pipeline: Pipeline) -> float:
    """Returns the seconds in which the host of the rank with the most work launches it."""
    problem = pipeline.search.problem
    costs = host_costs(problem)
    if costs is None:
        return 0.0
    each = costs.each(problem, pipeline.choices[None], pipeline.edge_choices[None])[:, 0]
    units = np.array(pipeline.units.of_group)
    units = np.concatenate([units, units[[edge.target for edge in problem.edges]]])
    stages = np.searchsorted(np.array(pipeline.bounds), units, side="right") - 1
    of_ranks = np.bincount(pipeline.rank_of[stages], each, pipeline.ranks)
    return costs.constant + float(of_ranks.max())
