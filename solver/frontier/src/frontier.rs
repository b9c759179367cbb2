//! Cost frontiers and the operations on them (TensorOpt Definition 1 and Algorithm 1).
//!
//! A frontier is a staircase: tuples ascending in memory, strictly descending in time.

use crate::trace::{Arena, Trace, EMPTY};

/// A (partial) strategy: memory in bytes, time in seconds, and how it came about.
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

pub type Frontier = Vec<Tuple>;

/// The frontier of choosing nothing.
pub fn unit() -> Frontier {
    vec![Tuple {
        memory: 0.0,
        time: 0.0,
        trace: EMPTY,
    }]
}

/// Algorithm 1: the cost frontier of a set. Ties keep the earliest tuple, so it is deterministic.
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

/// How coarse a staircase may become. `EXACT` keeps every tuple.
#[derive(Debug, Clone, Copy)]
pub struct Thinning {
    /// Drop a tuple that is faster than its predecessor by less than this (seconds).
    pub time_s: f64,
    /// Drop a tuple whose successor needs at most this much more memory (bytes).
    pub memory_bytes: f64,
    /// Never more tuples than this.
    pub most: usize,
    /// Partial strategies above this memory are dropped (bytes).
    pub memory_cap: f64,
}

impl Thinning {
    pub const EXACT: Self = Self {
        time_s: 0.0,
        memory_bytes: 0.0,
        most: usize::MAX,
        memory_cap: f64::INFINITY,
    };

    /// Thin a staircase in place; its two ends stay.
    fn apply(&self, tuples: &mut Vec<Candidate>) {
        if self.memory_cap.is_finite() {
            let fitting = tuples.partition_point(|t| t.memory <= self.memory_cap);
            // The least-memory tuple stays, so that an infeasible answer still says how much is needed.
            tuples.truncate(fitting.max(1));
        }
        if tuples.len() > 2 && (self.time_s > 0.0 || self.memory_bytes > 0.0) {
            let last = tuples.len() - 1;
            let mut kept = vec![tuples[0]];
            for i in 1..last {
                let previous = kept[kept.len() - 1];
                let next = tuples[i + 1];
                let slower = previous.time - tuples[i].time < self.time_s;
                let replaceable = next.memory - tuples[i].memory < self.memory_bytes
                    && next.memory - previous.memory < self.memory_bytes;
                if !slower && !replaceable {
                    kept.push(tuples[i]);
                }
            }
            kept.push(tuples[last]);
            *tuples = kept;
        }
        if tuples.len() > self.most {
            let last = (tuples.len() - 1) as f64;
            let steps = (self.most - 1) as f64;
            *tuples = (0..self.most)
                .map(|i| tuples[(i as f64 * last / steps).round() as usize])
                .collect();
        }
    }
}

/// Reduce, thin, and record the derivations of what is left.
pub fn settle(mut candidates: Vec<Candidate>, thinning: &Thinning) -> Vec<Candidate> {
    reduce(&mut candidates);
    thinning.apply(&mut candidates);
    candidates
}

/// Record settled candidates in the arena.
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

/// Union of frontiers (Section 3.1), reduced.
pub fn union<'a>(
    parts: impl IntoIterator<Item = &'a [Tuple]>,
    thinning: &Thinning,
    arena: &mut Arena,
) -> Frontier {
    let candidates = parts
        .into_iter()
        .flatten()
        .map(|t| Candidate {
            memory: t.memory,
            time: t.time,
            left: t.trace,
            right: EMPTY,
        })
        .collect();
    record(settle(candidates, thinning), arena)
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
        let both = union([&a[..], &b[..]], &Thinning::EXACT, &mut arena);
        assert_eq!(costs(&both), [(1.0, 5.0), (2.0, 4.0), (3.0, 3.0)]);
    }

    #[test]
    fn thinning_keeps_the_ends_and_the_cap() {
        let mut arena = Arena::default();
        let steps: Vec<(f64, f64)> = (0..100).map(|i| (i as f64, 100.0 - i as f64)).collect();
        let thinning = Thinning {
            most: 5,
            ..Thinning::EXACT
        };
        let thin = union([&frontier(&steps)[..]], &thinning, &mut arena);
        assert_eq!(thin.len(), 5);
        assert_eq!(costs(&thin)[0], (0.0, 100.0));
        assert_eq!(costs(&thin)[4], (99.0, 1.0));
        let capped = Thinning {
            memory_cap: 10.0,
            ..Thinning::EXACT
        };
        let thin = union([&frontier(&steps)[..]], &capped, &mut arena);
        assert_eq!(thin.len(), 11);
    }
}
