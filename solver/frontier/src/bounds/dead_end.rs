//! Dead-end elimination: drops choices that no optimum needs under one pair of weights.
//!
//! Choice k of an operator is not needed when another choice k' never costs more, whatever its
//! neighbours take (Goldstein 1994, Eq. 2, with "at least as good" instead of "better"):
//!
//!   own(k') - own(k) + sum over edges of max over u of [e(u, k') - e(u, k)] <= 0
//!
//! Re-scheduling obeys a triangle inequality, so most choices are a detour away from a better
//! one. Every step keeps some optimum: replacing k by k' never makes a strategy more expensive.

use std::collections::HashMap;
use std::sync::Arc;

use pulp::Arch;
use rayon::prelude::*;

use crate::bounds::weighted::Weighted;
use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, CostsId, IdVec, MapId, OperatorId, TableId};
use crate::model::problem::Problem;
use crate::model::selection::{Selection, SetId, Sets};
use crate::model::watch::Watch;

/// The most rounds over all operators; the test is sharper once neighbours have lost choices.
const ROUNDS: usize = 4;
/// Each choice is compared with at most this many others, the most promising ones.
const WITNESSES: usize = 64;
/// Neighbours' choices that are compared at once.
const LANES: usize = 8;
/// Relative: by how much sums of the same terms differ at most.
const ROUNDING: f64 = 1e-12;
/// Neighbours' choices after which a comparison that has failed ends.
const STRETCH: usize = 32;

/// An edge as seen from one of its ends: everything that the test depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    table: TableId,
    mine: MapId,
    theirs: MapId,
    is_source: bool,
    their_set: SetId,
}

/// Operators with the same neighbourhood lose the same choices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Neighbourhood {
    costs: CostsId,
    set: SetId,
    sides: Vec<Side>,
}

/// Returns the choices of each operator that remain under weighted costs.
///
/// # Errors
///
/// Returns an error when the solve must stop.
pub fn eliminate(
    problem: &Problem,
    weighted: &Weighted,
    watch: &Watch,
) -> Result<Selection, SolveError> {
    let mut sets = Sets::default();
    let mut of = sets.all(problem);
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
        let left: Vec<Vec<ChoiceId>> = distinct
            .par_iter()
            .map(|n| survivors(problem, n, &sets.sets, weighted, watch))
            .collect::<Result<_, SolveError>>()?;
        let ids: Vec<SetId> = left.into_iter().map(|set| sets.intern(set)).collect();
        let next: IdVec<OperatorId, SetId> = around.iter().map(|n| ids[seen[n]]).collect();
        if next == of {
            break;
        }
        of = next;
    }
    Ok(sets.selection(of))
}

/// Returns the neighbourhood of every operator when the remaining choices are `of`.
fn neighbourhoods(
    problem: &Problem,
    of: &IdVec<OperatorId, SetId>,
) -> IdVec<OperatorId, Neighbourhood> {
    let mut around: IdVec<OperatorId, Neighbourhood> = problem
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

/// One edge's weighted costs: a row per choice, a column per distinct row or column of the table
/// that the neighbour's choices map to.
struct Rows {
    columns: usize,
    costs: Vec<f64>,
    /// The least and the largest cost of each row.
    range: Vec<(f64, f64)>,
}

impl Rows {
    /// Reads the rows of an edge from the table, as the end `side` sees them.
    fn new(
        problem: &Problem,
        side: &Side,
        choices: &[ChoiceId],
        theirs: &[ChoiceId],
        weighted: &Weighted,
    ) -> Self {
        let width = problem.tables[side.table].columns;
        let table = &weighted.tables[side.table];
        let their_map = &problem.maps[side.theirs];
        let mut kinds: Vec<u32> = theirs.iter().map(|u| their_map[*u]).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let my_map = &problem.maps[side.mine];
        let mut costs = Vec::with_capacity(choices.len() * kinds.len());
        let mut range = Vec::with_capacity(choices.len());
        for k in choices {
            let mine = my_map[*k] as usize;
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

    /// Returns a cheap lower bound on [`Rows::detour`].
    #[inline(always)]
    fn least_detour(&self, other: usize, k: usize) -> f64 {
        let (a, b) = (self.range[other], self.range[k]);
        (a.0 - b.0).max(a.1 - b.1)
    }

    /// Returns max over u of e(u, other) - e(u, k), or an even lesser number above `most`.
    #[inline(always)]
    fn detour(&self, other: usize, k: usize, most: f64) -> f64 {
        let row = |i: usize| &self.costs[i * self.columns..(i + 1) * self.columns];
        let greater = |a: f64, b: f64| if a > b { a } else { b };
        let mut worst = f64::NEG_INFINITY;
        for (a, b) in row(other).chunks(STRETCH).zip(row(k).chunks(STRETCH)) {
            // Several maxima side by side, which a vector holds.
            let mut lanes = [worst; LANES];
            let (others, ours) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
            let rest = others.remainder().iter().zip(ours.remainder());
            for (lane, (a, b)) in rest.enumerate() {
                lanes[lane] = greater(a - b, worst);
            }
            for (a, b) in others.zip(ours) {
                for lane in 0..LANES {
                    lanes[lane] = greater(a[lane] - b[lane], lanes[lane]);
                }
            }
            worst = lanes.into_iter().fold(worst, greater);
            if worst > most {
                break;
            }
        }
        worst
    }
}

/// Returns the choices that no other choice replaces at no extra cost.
fn survivors(
    problem: &Problem,
    neighbourhood: &Neighbourhood,
    sets: &IdVec<SetId, Arc<Vec<ChoiceId>>>,
    weighted: &Weighted,
    watch: &Watch,
) -> Result<Vec<ChoiceId>, SolveError> {
    let choices = &sets[neighbourhood.set];
    let own: Vec<f64> = choices
        .iter()
        .map(|k| weighted.own[neighbourhood.costs][*k])
        .collect();
    let sides: Vec<Rows> = neighbourhood
        .sides
        .iter()
        .map(|side| Rows::new(problem, side, choices, &sets[side.their_set], weighted))
        .collect();
    // The most promising first, by the sum of the least and the largest cost of each choice.
    let mut order: Vec<(f64, usize)> = (0..own.len())
        .map(|k| {
            let around: f64 = sides.iter().map(|s| s.range[k].0 + s.range[k].1).sum();
            (2.0 * own[k] + around, k)
        })
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut dead = vec![false; own.len()];
    let arch = Arch::new();
    // The least promising is tested first, so that its witnesses are still there.
    for &(_, k) in order.iter().rev() {
        watch.poll("bounding", 0.5)?;
        dead[k] = arch.dispatch(|| {
            order
                .iter()
                .map(|(_, other)| *other)
                .filter(|other| *other != k && !dead[*other])
                .take(WITNESSES)
                .any(|other| costs_no_more(&own, &sides, other, k))
        });
    }
    let left = choices.iter().zip(&dead).filter(|(_, dead)| !**dead);
    Ok(left.map(|(k, _)| *k).collect())
}

/// Returns whether choice `other` costs no more than choice `k`, whatever the neighbours take.
#[inline(always)]
fn costs_no_more(own: &[f64], sides: &[Rows], other: usize, k: usize) -> bool {
    let more = own[other] - own[k];
    let mut bound = more + sides.iter().map(|s| s.least_detour(other, k)).sum::<f64>();
    // Summed separately from the bound, where large terms cancel and would cost digits. Each
    // negative term is a cost that every strategy with k pays, so rounding is relative to it.
    let mut total = more;
    let slack = (own[other] + own[k]) * ROUNDING;
    for side in sides {
        if bound > 0.0 {
            return false;
        }
        let least = side.least_detour(other, k);
        let most = least - bound + slack;
        let detour = side.detour(other, k, most);
        if detour > most {
            return false;
        }
        bound += detour - least;
        total += detour;
    }
    total <= 0.0
}
