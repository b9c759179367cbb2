//! Every strategy, one by one: the oracle for small problems.

use crate::error::SolveError;
use crate::problem::Problem;
use crate::tracking::Point;
use crate::watch::Watch;

/// The most strategies that are enumerated.
pub const BUDGET: f64 = 2e7;

/// The frontier by enumeration; `OverBudget` when there are more than [`BUDGET`] strategies.
pub fn enumerate(problem: &Problem, watch: &Watch) -> Result<Vec<Point>, SolveError> {
    let strategies: f64 = (0..problem.operators.len())
        .map(|o| problem.choices(o) as f64)
        .product();
    if strategies > BUDGET {
        return Err(SolveError::OverBudget(format!(
            "{strategies:.2e} strategies, brute force stops at {BUDGET:.0}"
        )));
    }
    let mut choices = vec![0u32; problem.operators.len()];
    let mut best: Vec<Point> = Vec::new();
    let mut seen = 0.0;
    loop {
        if seen as u64 & 1023 == 0 {
            watch.poll("brute force", seen / strategies)?;
        }
        seen += 1.0;
        alternatives(problem, &choices, 0, &mut Vec::new(), &mut best);
        if !advance(problem, &mut choices) {
            return Ok(best);
        }
    }
}

/// The next strategy in counting order; false after the last.
fn advance(problem: &Problem, choices: &mut [u32]) -> bool {
    for (o, choice) in choices.iter_mut().enumerate() {
        *choice += 1;
        if (*choice as usize) < problem.choices(o) {
            return true;
        }
        *choice = 0;
    }
    false
}

fn alternatives(
    problem: &Problem,
    choices: &[u32],
    e: usize,
    picked: &mut Vec<u32>,
    best: &mut Vec<Point>,
) {
    let Some(edge) = problem.edges.get(e) else {
        let (memory, time) = problem.evaluate(choices, picked);
        keep(best, memory, time, choices, picked);
        return;
    };
    let (i, j) = (choices[edge.source] as usize, choices[edge.target] as usize);
    for alternative in 0..problem.alternatives(edge, i, j).len() {
        picked.push(alternative as u32);
        alternatives(problem, choices, e + 1, picked, best);
        picked.pop();
    }
}

/// Insert into a staircase unless something there is as good.
fn keep(best: &mut Vec<Point>, memory: f64, time: f64, choices: &[u32], picked: &[u32]) {
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
        choices: choices.to_vec(),
        edge_choices: picked.to_vec(),
    };
    best.splice(at..at + worse, [point]);
}
