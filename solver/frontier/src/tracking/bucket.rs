//! Exact elimination of operators with any number of neighbours (bucket elimination).
//!
//! TensorOpt's node elimination (Eq. 4) turns an operator with two neighbours into a table over
//! their choices. An operator with n neighbours likewise becomes a table over n choices; only the
//! size of the table grows. It is used where none of the paper's eliminations applies, and is
//! exact.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::{IdVec, OperatorId};
use crate::tracking::elimination::Working;
use crate::tracking::gather::{product, Gather, Limits};
use crate::tracking::staircase::{record, unit, Candidate, Frontier};
use crate::tracking::trace::Arena;

/// The largest number of cells times choices of one elimination.
const WIDEST: usize = 20_000_000;

/// The number of choices of each operator.
type Dims = IdVec<OperatorId, usize>;

/// A frontier for each combination of choices of the operators in `scope` (row-major).
struct Factor {
    scope: Vec<OperatorId>,
    cells: Vec<Frontier>,
}

/// Returns the frontier of the remaining working graph, which is emptied.
///
/// # Errors
///
/// Returns `OverBudget` when an elimination is too wide, and an error when a limit is reached.
pub fn run(working: &mut Working, limits: &Limits) -> Result<Frontier, SolveError> {
    let operators = working.nodes.ids();
    let dims: Dims = operators.clone().map(|o| working.choices(o)).collect();
    let mut factors = take_factors(working);
    let mut left: Vec<OperatorId> = operators.filter(|o| dims[*o] > 0).collect();
    let mut whole = unit();
    while let Some(operator) = cheapest(&left, &factors, &dims)? {
        left.retain(|o| *o != operator);
        let (mut touching, others): (Vec<Factor>, Vec<Factor>) = factors
            .into_iter()
            .partition(|f| f.scope.contains(&operator));
        factors = others;
        // Small factors are joined first; the last one is joined in the elimination itself.
        touching.sort_by_key(|f| (f.cells.len(), f.scope.clone()));
        let last = touching.pop().unwrap_or(Factor {
            scope: Vec::new(),
            cells: vec![unit()],
        });
        let mut joint = Factor {
            scope: Vec::new(),
            cells: vec![unit()],
        };
        for factor in touching {
            joint = join(&joint, &factor, None, &dims, limits, &mut working.arena)?;
        }
        let result = join(
            &joint,
            &last,
            Some(operator),
            &dims,
            limits,
            &mut working.arena,
        )?;
        if result.scope.is_empty() {
            let alone = &result.cells[0];
            whole = product(&whole, alone, limits, &mut working.arena)?;
        } else {
            factors.push(result);
        }
    }
    Ok(whole)
}

/// Empties the working graph; returns each operator and each edge as a factor.
fn take_factors(working: &mut Working) -> Vec<Factor> {
    let operators = working.nodes.ids();
    let mut factors: Vec<Factor> = operators
        .filter_map(|o| {
            working.nodes[o].take().map(|cells| Factor {
                scope: vec![o],
                cells,
            })
        })
        .collect();
    for ((a, b), matrix) in std::mem::take(&mut working.edges) {
        factors.push(Factor {
            scope: vec![a, b],
            cells: matrix.cells,
        });
    }
    factors
}

/// Returns the operator whose elimination is the least work; `None` when none is left.
fn cheapest(
    left: &[OperatorId],
    factors: &[Factor],
    dims: &Dims,
) -> Result<Option<OperatorId>, SolveError> {
    let work = |operator: OperatorId| {
        let mut scope: Vec<OperatorId> = factors
            .iter()
            .filter(|f| f.scope.contains(&operator))
            .flat_map(|f| f.scope.iter().copied())
            .collect();
        scope.sort_unstable();
        scope.dedup();
        scope
            .iter()
            .fold(1usize, |work, o| work.saturating_mul(dims[*o]))
    };
    match left.iter().map(|o| (work(*o), *o)).min() {
        Some((work, _)) if work > WIDEST => Err(SolveError::OverBudget(format!(
            "the graph is too densely connected for exact elimination ({work:.1e} combinations at once)"
        ))),
        cheapest => Ok(cheapest.map(|(_, operator)| operator)),
    }
}

/// Returns F(a x b) over the union of their scopes; if `eliminated` is given, the union over its
/// choices.
fn join(
    a: &Factor,
    b: &Factor,
    eliminated: Option<OperatorId>,
    dims: &Dims,
    limits: &Limits,
    arena: &mut Arena,
) -> Result<Factor, SolveError> {
    let mut scope: Vec<OperatorId> = a.scope.iter().chain(&b.scope).copied().collect();
    scope.sort_unstable();
    scope.dedup();
    scope.retain(|o| Some(*o) != eliminated);
    let cells: usize = scope.iter().map(|o| dims[*o]).product();
    let choices = eliminated.map_or(1, |o| dims[o]);
    let settled: Vec<Vec<Candidate>> = (0..cells)
        .into_par_iter()
        .map(|cell| {
            let mut place = choices_at(cell, &scope, dims);
            let mut gather = Gather::new(limits);
            for k in 0..choices {
                if let Some(operator) = eliminated {
                    place.insert(operator, k);
                }
                let (x, y) = (a.at(&place, dims), b.at(&place, dims));
                gather.product(&a.cells[x], &b.cells[y])?;
            }
            gather.settle()
        })
        .collect::<Result<_, SolveError>>()?;
    let cells = settled.into_iter().map(|s| record(s, arena)).collect();
    Ok(Factor { scope, cells })
}

/// Returns the choice of each operator in `scope` at a cell.
fn choices_at(mut cell: usize, scope: &[OperatorId], dims: &Dims) -> BTreeMap<OperatorId, usize> {
    let mut place = BTreeMap::new();
    for &o in scope.iter().rev() {
        place.insert(o, cell % dims[o]);
        cell /= dims[o];
    }
    place
}

impl Factor {
    /// Returns the number of the cell at the choices `place`.
    fn at(&self, place: &BTreeMap<OperatorId, usize>, dims: &Dims) -> usize {
        self.scope.iter().fold(0, |at, o| at * dims[*o] + place[o])
    }
}
