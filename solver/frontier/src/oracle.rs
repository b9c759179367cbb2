//! Enumeration of all strategies: the oracle for small problems.

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, EdgeId, Id, IdVec, OperatorId};
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::watch::Watch;

/// The largest number of strategies that is enumerated.
pub const BUDGET: f64 = 2e7;

/// Returns the frontier by enumeration.
///
/// # Errors
///
/// Returns `OverBudget` when there are more than [`BUDGET`] strategies.
pub fn enumerate(problem: &Problem, watch: &Watch) -> Result<Vec<Point>, SolveError> {
    let strategies: f64 = problem
        .operators
        .ids()
        .map(|o| problem.choices(o) as f64)
        .product();
    if strategies > BUDGET {
        return Err(SolveError::OverBudget(format!(
            "brute force enumerates at most {BUDGET:.0} strategies, got {strategies:.2e}"
        )));
    }
    let mut choices = IdVec::filled(ChoiceId::new(0), problem.operators.len());
    let mut best: Vec<Point> = Vec::new();
    let mut count = 0.0;
    loop {
        if count as u64 & 1023 == 0 {
            watch.poll("brute force", count / strategies)?;
        }
        count += 1.0;
        insert_all(problem, &choices, &mut IdVec::default(), &mut best);
        if !advance(problem, &mut choices) {
            return Ok(best);
        }
    }
}

/// Advances to the next choices in counting order; returns false after the last.
fn advance(problem: &Problem, choices: &mut IdVec<OperatorId, ChoiceId>) -> bool {
    for o in problem.operators.ids() {
        let next = choices[o].index() + 1;
        if next < problem.choices(o) {
            choices[o] = ChoiceId::new(next);
            return true;
        }
        choices[o] = ChoiceId::new(0);
    }
    false
}

/// Inserts all strategies with these choices whose first edges take the alternatives
/// `edge_choices`.
fn insert_all(
    problem: &Problem,
    choices: &IdVec<OperatorId, ChoiceId>,
    edge_choices: &mut IdVec<EdgeId, u32>,
    best: &mut Vec<Point>,
) {
    let Some(edge) = problem.edges.get(EdgeId::new(edge_choices.len())) else {
        let costs = problem.evaluate(choices, edge_choices);
        insert(best, costs, choices, edge_choices);
        return;
    };
    let (i, j) = (choices[edge.source], choices[edge.target]);
    for alternative in 0..problem.alternatives(edge, i, j).len() {
        edge_choices.push(alternative as u32);
        insert_all(problem, choices, edge_choices, best);
        edge_choices.pop();
    }
}

/// Inserts a strategy into a staircase unless a point there is at least as good.
fn insert(
    best: &mut Vec<Point>,
    (memory, time): (f64, f64),
    choices: &IdVec<OperatorId, ChoiceId>,
    edge_choices: &IdVec<EdgeId, u32>,
) {
    let at = best.partition_point(|p| p.memory < memory);
    let beaten = best[..at].last().is_some_and(|p| p.time <= time)
        || best
            .get(at)
            .is_some_and(|p| p.memory == memory && p.time <= time);
    if beaten {
        return;
    }
    let worse = best[at..].iter().take_while(|p| p.time >= time).count();
    let point = Point {
        memory,
        time,
        choices: choices.clone(),
        edge_choices: edge_choices.clone(),
    };
    best.splice(at..at + worse, [point]);
}
