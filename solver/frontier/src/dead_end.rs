//! Choices that cannot be needed under one pair of weights (dead-end elimination).
//!
//! Choice k of an operator is not needed when another choice k' is never dearer, whatever its
//! neighbours take (Goldstein 1994, Eq. 2, with "at least as good" for "better"):
//!
//!   own(k') - own(k) + sum over edges of max over u of [e(u, k') - e(u, k)] <= 0
//!
//! Re-scheduling obeys a triangle inequality, so most choices are a detour away from a better
//! one. Every step keeps some optimum: a strategy that takes k becomes no dearer with k'.

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::SolveError;
use crate::problem::Problem;
use crate::selection::{Selection, Sets};
use crate::watch::Watch;

/// Rounds over all operators; a neighbour that has lost choices makes the test sharper.
const ROUNDS: usize = 4;
/// Choices are compared with at most this many others, the most promising ones.
const WITNESSES: usize = 64;

/// An edge seen from one of its ends: everything that the test depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    table: usize,
    mine: usize,
    theirs: usize,
    is_source: bool,
    their_set: usize,
}

/// Operators with the same neighbourhood lose the same choices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Neighbourhood {
    costs: usize,
    set: usize,
    sides: Vec<Side>,
}

/// What is left of each operator's choices under weighted costs.
///
/// `own[c]` are the weighted costs of cost array c, `tables[t]` the best weighted alternative of
/// each cell of table t.
pub fn eliminate(
    problem: &Problem,
    own: &[Vec<f64>],
    tables: &[Vec<f64>],
    watch: &Watch,
) -> Result<Selection, SolveError> {
    let mut sets = Sets::default();
    let mut of: Vec<usize> = (0..problem.operators.len())
        .map(|o| sets.intern((0..problem.choices(o) as u32).collect()))
        .collect();
    for _ in 0..ROUNDS {
        watch.poll("bounding", 0.5)?;
        let around = neighbourhoods(problem, &of);
        let mut seen: HashMap<&Neighbourhood, usize> = HashMap::new();
        let mut distinct = Vec::new();
        for neighbourhood in &around {
            seen.entry(neighbourhood).or_insert_with(|| {
                distinct.push(neighbourhood);
                distinct.len() - 1
            });
        }
        let left: Vec<Vec<u32>> = distinct
            .par_iter()
            .map(|n| survivors(problem, n, &sets.sets, own, tables, watch))
            .collect::<Result<_, SolveError>>()?;
        let ids: Vec<usize> = left.into_iter().map(|set| sets.intern(set)).collect();
        let next: Vec<usize> = around.iter().map(|n| ids[seen[n]]).collect();
        if next == of {
            break;
        }
        of = next;
    }
    Ok(sets.selection(of))
}

fn neighbourhoods(problem: &Problem, of: &[usize]) -> Vec<Neighbourhood> {
    let mut around: Vec<Neighbourhood> = problem
        .operators
        .iter()
        .zip(of)
        .map(|(operator, &set)| Neighbourhood {
            costs: operator.costs,
            set,
            sides: Vec::new(),
        })
        .collect();
    for edge in &problem.edges {
        around[edge.source].sides.push(Side {
            table: edge.table,
            mine: edge.rows,
            theirs: edge.columns,
            is_source: true,
            their_set: of[edge.target],
        });
        around[edge.target].sides.push(Side {
            table: edge.table,
            mine: edge.columns,
            theirs: edge.rows,
            is_source: false,
            their_set: of[edge.source],
        });
    }
    around
}

/// One edge's weighted costs: a row per choice, a column per kind of neighbouring choice.
struct Rows {
    columns: usize,
    costs: Vec<f64>,
    /// Per row, its least and its largest cost.
    range: Vec<(f64, f64)>,
}

impl Rows {
    fn new(
        problem: &Problem,
        side: &Side,
        choices: &[u32],
        theirs: &[u32],
        tables: &[Vec<f64>],
    ) -> Self {
        let width = problem.tables[side.table].columns;
        let table = &tables[side.table];
        let their_map = &problem.maps[side.theirs];
        let mut kinds: Vec<u32> = theirs.iter().map(|u| their_map[*u as usize]).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let my_map = &problem.maps[side.mine];
        let mut costs = Vec::with_capacity(choices.len() * kinds.len());
        let mut range = Vec::with_capacity(choices.len());
        for k in choices {
            let mine = my_map[*k as usize] as usize;
            let start = costs.len();
            costs.extend(kinds.iter().map(|u| {
                let at = *u as usize;
                if side.is_source {
                    table[mine * width + at]
                } else {
                    table[at * width + mine]
                }
            }));
            range.push(
                costs[start..]
                    .iter()
                    .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), c| {
                        (low.min(*c), high.max(*c))
                    }),
            );
        }
        Self {
            columns: kinds.len(),
            costs,
            range,
        }
    }

    /// No difference of the rows is known to be smaller than this.
    fn least_detour(&self, other: usize, k: usize) -> f64 {
        let (a, b) = (self.range[other], self.range[k]);
        (a.0 - b.0).max(a.1 - b.1)
    }

    /// max over u of e(u, other) - e(u, k).
    fn detour(&self, other: usize, k: usize) -> f64 {
        let row = |i: usize| &self.costs[i * self.columns..(i + 1) * self.columns];
        let mut most = f64::NEG_INFINITY;
        for (a, b) in row(other).iter().zip(row(k)) {
            let more = a - b;
            most = if more > most { more } else { most };
        }
        most
    }
}

fn survivors(
    problem: &Problem,
    neighbourhood: &Neighbourhood,
    sets: &[Arc<Vec<u32>>],
    own: &[Vec<f64>],
    tables: &[Vec<f64>],
    watch: &Watch,
) -> Result<Vec<u32>, SolveError> {
    let choices = &sets[neighbourhood.set];
    let own: Vec<f64> = choices
        .iter()
        .map(|k| own[neighbourhood.costs][*k as usize])
        .collect();
    let sides: Vec<Rows> = neighbourhood
        .sides
        .iter()
        .map(|side| Rows::new(problem, side, choices, &sets[side.their_set], tables))
        .collect();
    // The most promising first: what a choice costs at least plus what it costs at most.
    let mut order: Vec<(f64, usize)> = (0..own.len())
        .map(|k| {
            let around: f64 = sides.iter().map(|s| s.range[k].0 + s.range[k].1).sum();
            (2.0 * own[k] + around, k)
        })
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut dead = vec![false; own.len()];
    // The least promising is tested first, so that its witnesses are still there.
    for &(_, k) in order.iter().rev() {
        watch.poll("bounding", 0.5)?;
        dead[k] = order
            .iter()
            .map(|(_, other)| *other)
            .filter(|other| *other != k && !dead[*other])
            .take(WITNESSES)
            .any(|other| is_no_dearer(&own, &sides, other, k));
    }
    let left = choices.iter().zip(&dead).filter(|(_, dead)| !**dead);
    Ok(left.map(|(k, _)| *k).collect())
}

fn is_no_dearer(own: &[f64], sides: &[Rows], other: usize, k: usize) -> bool {
    let more = own[other] - own[k];
    let mut bound = more + sides.iter().map(|s| s.least_detour(other, k)).sum::<f64>();
    // Summed apart from the bound: what is large only cancels there, and would take digits along.
    // Each negative term is a cost that every strategy with k pays, so that rounding is relative to it.
    let mut total = more;
    for side in sides {
        if bound > 0.0 {
            return false;
        }
        let detour = side.detour(other, k);
        bound += detour - side.least_detour(other, k);
        total += detour;
    }
    total <= 0.0
}
