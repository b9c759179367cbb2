//! Improves a strategy under one pair of weights, one operator at a time.

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, EdgeId, IdVec, OperatorId};
use crate::model::problem::Problem;
use crate::model::selection::Selection;
use crate::model::watch::Watch;
use crate::model::weights::Weights;

/// The most rounds of [`descend`].
const ROUNDS: usize = 8;

/// Gives every operator its best choice for the current choices of its neighbours, while that
/// helps.
///
/// # Errors
///
/// Returns an error when the solve must stop.
pub fn descend(
    problem: &Problem,
    kept: &Selection,
    weights: Weights,
    choices: &mut IdVec<OperatorId, ChoiceId>,
    watch: &Watch,
) -> Result<(), SolveError> {
    let around = edges_around(problem);
    for _ in 0..ROUNDS {
        let mut changed = false;
        for (operator, edges) in around.enumerate() {
            watch.poll("bounding", 0.5)?;
            let cost = |k: ChoiceId| local_cost(problem, choices, operator, k, edges, weights);
            let now = (cost(choices[operator]), choices[operator]);
            let best =
                kept.choices(operator)
                    .iter()
                    .map(|k| (cost(*k), *k))
                    .fold(
                        now,
                        |best, other| if other.0 < best.0 { other } else { best },
                    );
            changed |= best.1 != choices[operator];
            choices[operator] = best.1;
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

/// Returns the edges at each operator.
pub fn edges_around(problem: &Problem) -> IdVec<OperatorId, Vec<EdgeId>> {
    let mut around = IdVec::filled(Vec::new(), problem.operators.len());
    for (e, edge) in problem.edges.enumerate() {
        around[edge.source].push(e);
        around[edge.target].push(e);
    }
    around
}

/// Returns the weighted cost of an operator's choice and of its edges, given the choices of the
/// other operators.
pub fn local_cost(
    problem: &Problem,
    choices: &IdVec<OperatorId, ChoiceId>,
    operator: OperatorId,
    choice: ChoiceId,
    edges: &[EdgeId],
    weights: Weights,
) -> f64 {
    let costs = problem.costs_of(operator);
    let mut total = weights.of(costs.memory[choice], costs.time[choice]);
    for &e in edges {
        let edge = &problem.edges[e];
        let at = |o| if o == operator { choice } else { choices[o] };
        let table = &problem.tables[edge.table];
        let cell = problem.alternatives(edge, at(edge.source), at(edge.target));
        total += weights.least(table, cell);
    }
    total
}
