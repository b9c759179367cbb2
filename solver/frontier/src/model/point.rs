//! One point of a frontier, and staircases of points.

use crate::model::ids::{ChoiceId, EdgeId, IdVec, OperatorId};
use crate::model::problem::{Edge, Problem};
use crate::model::weights::Weights;

/// A strategy with its memory in bytes and its time in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub memory: f64,
    pub time: f64,
    pub choices: IdVec<OperatorId, ChoiceId>,
    /// Per edge, the number of the alternative taken in the cell that the choices at its ends
    /// select.
    pub edge_choices: IdVec<EdgeId, u32>,
}

impl Point {
    /// Returns a full strategy with its costs, summed in the order of the problem.
    pub(crate) fn of(
        problem: &Problem,
        choices: IdVec<OperatorId, ChoiceId>,
        edge_choices: IdVec<EdgeId, u32>,
    ) -> Self {
        let (memory, time) = problem.evaluate(&choices, &edge_choices);
        Self {
            memory,
            time,
            choices,
            edge_choices,
        }
    }

    /// Returns the full strategy with these choices, taking each edge's best alternative under the
    /// weights.
    pub(crate) fn cheapest(
        problem: &Problem,
        choices: IdVec<OperatorId, ChoiceId>,
        weights: Weights,
    ) -> Self {
        let best = |edge: &Edge| {
            let table = &problem.tables[edge.table];
            problem
                .alternatives(edge, choices[edge.source], choices[edge.target])
                .map(|at| weights.of(table.memory[at], table.time[at]))
                .enumerate()
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .map_or(0, |(a, _)| a as u32)
        };
        let edge_choices = problem.edges.iter().map(best).collect();
        Self::of(problem, choices, edge_choices)
    }
}

/// Returns the points that no other point beats, ascending in memory.
pub fn staircase(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| {
        a.memory
            .total_cmp(&b.memory)
            .then(a.time.total_cmp(&b.time))
    });
    let mut best = f64::INFINITY;
    points.retain(|p| {
        let keep = p.time < best;
        best = best.min(p.time);
        keep
    });
    points
}
