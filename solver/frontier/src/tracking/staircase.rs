//! Cost frontiers and the operations on them (TensorOpt Definition 1 and Algorithm 1).
//!
//! A frontier is a staircase: its tuples ascend in memory and strictly descend in time.

use std::ops::Range;

use crate::model::problem::Table;
use crate::tracking::trace::{Arena, Trace, EMPTY};

/// A (partial) strategy: memory in bytes, time in seconds, and its derivation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuple {
    pub memory: f64,
    pub time: f64,
    pub trace: Trace,
}

/// A sum of two tuples whose derivation is not recorded yet.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub memory: f64,
    pub time: f64,
    pub left: Trace,
    pub right: Trace,
}

/// A staircase of tuples: ascending in memory, strictly descending in time.
pub type Frontier = Vec<Tuple>;

/// Returns the frontier of the empty strategy.
pub fn unit() -> Frontier {
    vec![Tuple {
        memory: 0.0,
        time: 0.0,
        trace: EMPTY,
    }]
}

/// Reduces a set to its cost frontier (Algorithm 1).
///
/// Of equal tuples the earliest is kept, so that the result is deterministic.
pub fn reduce(tuples: &mut Vec<Candidate>) {
    tuples.sort_by(|a, b| {
        a.memory
            .total_cmp(&b.memory)
            .then(a.time.total_cmp(&b.time))
    });
    let mut best = f64::INFINITY;
    tuples.retain(|tuple| {
        let keep = tuple.time < best;
        if keep {
            best = tuple.time;
        }
        keep
    });
}

/// Returns the alternatives of a cell, reduced; `left` is the number of the alternative.
pub fn alternatives(table: &Table, cell: Range<usize>) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = cell
        .enumerate()
        .map(|(alternative, i)| Candidate {
            memory: table.memory[i],
            time: table.time[i],
            left: alternative as u32,
            right: EMPTY,
        })
        .collect();
    reduce(&mut candidates);
    candidates
}

/// Records reduced candidates in the arena.
pub fn record(candidates: Vec<Candidate>, arena: &mut Arena) -> Frontier {
    candidates
        .into_iter()
        .map(|c| Tuple {
            memory: c.memory,
            time: c.time,
            trace: arena.join(c.left, c.right),
        })
        .collect()
}

/// Returns the union of frontiers (Section 3.1), reduced.
pub fn union<'a>(parts: impl IntoIterator<Item = &'a [Tuple]>, arena: &mut Arena) -> Frontier {
    let mut candidates: Vec<Candidate> = parts
        .into_iter()
        .flatten()
        .map(|t| Candidate {
            memory: t.memory,
            time: t.time,
            left: t.trace,
            right: EMPTY,
        })
        .collect();
    reduce(&mut candidates);
    record(candidates, arena)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontier(costs: &[(f64, f64)]) -> Frontier {
        costs
            .iter()
            .map(|&(memory, time)| Tuple {
                memory,
                time,
                trace: EMPTY,
            })
            .collect()
    }

    fn costs(frontier: &[Tuple]) -> Vec<(f64, f64)> {
        frontier.iter().map(|t| (t.memory, t.time)).collect()
    }

    #[test]
    fn union_drops_what_is_beaten() {
        let mut arena = Arena::default();
        let a = frontier(&[(1.0, 5.0), (3.0, 3.0)]);
        let b = frontier(&[(1.0, 6.0), (2.0, 4.0), (3.0, 3.0), (4.0, 3.0)]);
        let both = union([&a[..], &b[..]], &mut arena);
        assert_eq!(costs(&both), [(1.0, 5.0), (2.0, 4.0), (3.0, 3.0)]);
    }
}
