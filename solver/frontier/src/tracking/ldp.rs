//! Linear dynamic programming along a chain of operators (TensorOpt Algorithm 3).

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::OperatorId;
use crate::tracking::elimination::Working;
use crate::tracking::gather::{Gather, Limits};
use crate::tracking::staircase::{record, union, Candidate, Frontier, Tuple};

/// Returns the cost frontier of the linear graph `chain` and removes its operators' frontiers from
/// the working graph.
///
/// CF(o_i, p) = union over k of F(e, k, p) x CF(o_{i-1}, k) x F(o_i, p).
pub fn run(
    working: &mut Working,
    chain: &[OperatorId],
    limits: &Limits,
) -> Result<Frontier, SolveError> {
    let mut cumulative = working.nodes[chain[0]].take().unwrap_or_default();
    for (step, pair) in chain.windows(2).enumerate() {
        limits.watch.poll(
            "linear dynamic programming",
            step as f64 / chain.len() as f64,
        )?;
        cumulative = advance(working, &cumulative, pair[0], pair[1], limits)?;
    }
    let parts = cumulative.iter().map(|f| &f[..]);
    Ok(union(parts, &mut working.arena))
}

/// Takes one step from `previous` to `next`, in parallel over its choices (lines 5 to 7 of
/// Algorithm 3).
fn advance(
    working: &mut Working,
    cumulative: &[Frontier],
    previous: OperatorId,
    next: OperatorId,
    limits: &Limits,
) -> Result<Vec<Frontier>, SolveError> {
    let own = working.nodes[next].take().unwrap_or_default();
    let forward = previous < next;
    let matrix = &working.edges[&(previous.min(next), previous.max(next))];
    let cell = |k: usize, p: usize| {
        &matrix.cells[if forward {
            k * matrix.columns + p
        } else {
            p * matrix.columns + k
        }]
    };
    // First CF x F(e), reduced; then x F(o_i), which is usually a single tuple.
    let arrived: Vec<Vec<Candidate>> = (0..own.len())
        .into_par_iter()
        .map(|p| {
            let mut gather = Gather::new(limits);
            for (k, so_far) in cumulative.iter().enumerate() {
                gather.product(so_far, cell(k, p))?;
            }
            gather.settle()
        })
        .collect::<Result<_, SolveError>>()?;
    let arrived: Vec<Vec<Tuple>> = arrived
        .into_iter()
        .map(|candidates| record(candidates, &mut working.arena))
        .collect();
    let settled: Vec<Vec<Candidate>> = own
        .par_iter()
        .zip(&arrived)
        .map(|(own, so_far)| {
            let mut gather = Gather::new(limits);
            gather.product(so_far, own)?;
            gather.settle()
        })
        .collect::<Result<_, SolveError>>()?;
    Ok(settled
        .into_iter()
        .map(|candidates| record(candidates, &mut working.arena))
        .collect())
}
