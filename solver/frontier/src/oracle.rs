//! Every strategy, one by one: the oracle for small problems.

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, EdgeId, Id, IdVec, OperatorId};
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::watch::Watch;

/// The most strategies that are enumerated.
pub const BUDGET: f64 = 2e7;

/// Returns the frontier by enumeration.
///
/// # Errors
///
/// Errs with `OverBudget` when there are more than [`BUDGET`] strategies.
pub fn enumerate(problem: &Problem, watch: &Watch) -> Result<Vec<Point>, SolveError> {
    let strategies: f64 = problem
        .operators
        .ids()
        .map(|o| problem.choices(o) as f64)
        .product();
    if strategies > BUDGET {
        return Err(SolveError::OverBudget(format!(
            "{strategies:.2e} strategies, brute force stops at {BUDGET:.0}"
        )));
    }
    let mut choices = IdVec::filled(ChoiceId::new(0), problem.operators.len());
    let mut best: Vec<Point> = Vec::new();
    let mut seen = 0.0;
    loop {
        if seen as u64 & 1023 == 0 {
            watch.poll("brute force", seen / strategies)?;
        }
        seen += 1.0;
        alternatives(problem, &choices, &mut IdVec::default(), &mut best);
        if !advance(problem, &mut choices) {
            return Ok(best);
        }
    }
}

/// Goes to the next choices in counting order; returns false after the last.
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

/// Keeps what is best of the strategies with these choices, `picked` being the alternatives of the
/// first edges.
fn alternatives(
    problem: &Problem,
    choices: &IdVec<OperatorId, ChoiceId>,
    picked: &mut IdVec<EdgeId, u32>,
    best: &mut Vec<Point>,
) {
    let Some(edge) = problem.edges.get(EdgeId::new(picked.len())) else {
        keep(best, problem.evaluate(choices, picked), choices, picked);
        return;
    };
    let (i, j) = (choices[edge.source], choices[edge.target]);
    for alternative in 0..problem.alternatives(edge, i, j).len() {
        picked.push(alternative as u32);
        alternatives(problem, choices, picked, best);
        picked.pop();
    }
}

/// Inserts a strategy into a staircase unless something there is as good.
fn keep(
    best: &mut Vec<Point>,
    (memory, time): (f64, f64),
    choices: &IdVec<OperatorId, ChoiceId>,
    picked: &IdVec<EdgeId, u32>,
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
        edge_choices: picked.clone(),
    };
    best.splice(at..at + worse, [point]);
}
