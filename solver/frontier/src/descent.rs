//! Improving a strategy under one pair of weights, one operator at a time.

use crate::error::SolveError;
use crate::problem::Problem;
use crate::scalar::Weights;
use crate::selection::Selection;
use crate::watch::Watch;

/// Rounds of [`descend`] at most.
const DESCENTS: usize = 8;

/// Let every operator take its best choice, its neighbours as they are, while that helps.
pub fn descend(
    problem: &Problem,
    kept: &Selection,
    weights: Weights,
    choices: &mut [u32],
    watch: &Watch,
) -> Result<(), SolveError> {
    let around = edges_around(problem);
    for _ in 0..DESCENTS {
        let mut changed = false;
        for (operator, edges) in around.iter().enumerate() {
            watch.poll("bounding", 0.5)?;
            let cost = |k: u32| local_cost(problem, choices, operator, k, edges, weights);
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

/// The edges at each operator.
pub fn edges_around(problem: &Problem) -> Vec<Vec<usize>> {
    let mut around: Vec<Vec<usize>> = vec![Vec::new(); problem.operators.len()];
    for (e, edge) in problem.edges.iter().enumerate() {
        around[edge.source].push(e);
        around[edge.target].push(e);
    }
    around
}

/// The weighted cost of an operator's choice and its edges, the other operators as they are.
pub fn local_cost(
    problem: &Problem,
    choices: &[u32],
    operator: usize,
    choice: u32,
    edges: &[usize],
    weights: Weights,
) -> f64 {
    let costs = &problem.costs[problem.operators[operator].costs];
    let mut total = weights.of(costs.memory[choice as usize], costs.time[choice as usize]);
    for &e in edges {
        let edge = &problem.edges[e];
        let at = |o: usize| if o == operator { choice } else { choices[o] } as usize;
        let table = &problem.tables[edge.table];
        let cell = problem.alternatives(edge, at(edge.source), at(edge.target));
        total += weights.least(table, cell);
    }
    total
}
