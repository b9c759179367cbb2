"""OptCNN: the fastest strategy, memory left out of account (Jia et al. 2018, TensorOpt §2.2).

What is taken from the paper: every layer has a configuration of its own; a configuration cuts the
dimensions of the layer's **output** (sample, channel, height, width) in equal shares, never a
dimension that is summed over; the sum of all times is minimised exactly by node and edge
elimination and memory plays no part. Taken differently: a layer is one of our groups, axes that a
group does not use repeat its work (OptCNN leaves those devices idle, which takes as long), and
the minimum is found by our solver, which also minimises graphs that node and edge elimination
cannot reduce (BERT). A loss, whose output has no dimensions, is cut as its input is. TensorOpt
ran OptCNN on TensorOpt's own, wider space, where it is the frontier's fastest point by definition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress
from shardwise.peers.answer import Answer, proven
from shardwise.peers.evaluate import evaluate
from shardwise.peers.restrict import least_time
from shardwise.sharding.coarsen import Group

METHOD = "optcnn"
TITLE = "OptCNN"


def optcnn(problem: SearchProblem, options: Options, progress: Progress) -> Answer:
    """Returns the fastest strategy that cuts outputs only, as one point."""
    chosen, epsilon = least_time(problem, output_splits(problem), options, progress)
    return Answer(
        METHOD,
        TITLE,
        "fastest strategy that cuts output dimensions only, memory left out of account",
        (evaluate(problem, chosen),),
        epsilon=proven(epsilon),
    )


def output_splits(problem: SearchProblem) -> list[NDArray[np.bool_]]:
    """Returns per group the configurations that cut dimensions of its operator's output alone."""
    masks: list[NDArray[np.bool_]] = []
    for group, cost in zip(problem.coarsened.groups, problem.costs, strict=True):
        summed = np.isin(cost.assignment, summed_variables(group)).any(axis=1)
        masks.append(np.logical_not(summed))
    return masks


def summed_variables(group: Group) -> list[int]:
    """Returns the variables that the output of the group's heaviest operator lacks, if that is
    heavy.

    None of an operator whose output has no dimensions at all.
    """
    anchor = group.anchor
    if anchor.semantics.category != "heavy" or not any(anchor.semantics.outputs):
        return []
    return [
        anchor.variables[v]
        for v, variable in enumerate(anchor.semantics.variables)
        if variable.is_reduction
    ]
