//! Unions of products of staircases, coarsened while they are computed.
//!
//! The box between the smallest (least memory) and the fastest sum is cut into slots of memory and
//! slots of time. A slot of memory keeps its fastest sum, a slot of time its smallest: every
//! dropped sum is within a slot's width, in memory or in time, of a kept one. Only the kept sums
//! are sorted, so that a sum costs a few operations.

use crate::tracking::staircase::{reduce, Candidate, Tuple};

/// Two staircases whose sums, plus a choice's own (memory, time), join the union.
pub struct Pair<'a> {
    pub own: (f64, f64),
    pub a: &'a [Tuple],
    pub b: &'a [Tuple],
}

/// How fine a result is.
#[derive(Debug, Clone, Copy)]
pub struct Resolution {
    /// The most slots of each kind.
    pub slots: usize,
    /// No slot is narrower than this (bytes, seconds).
    pub memory_bytes: f64,
    pub time_s: f64,
    /// Sums above this memory are dropped, except the smallest (bytes).
    pub memory_cap: f64,
}

/// The corner sums of a union: the smallest (least memory) and the fastest.
#[derive(Clone, Copy)]
struct Corners {
    smallest: (f64, f64),
    fastest: (f64, f64),
}

/// Equal slots of one cost, from the least to the most.
struct Slots {
    from: f64,
    per_width: f64,
    last: usize,
}

impl Slots {
    fn new(from: f64, to: f64, narrowest: f64, most: usize) -> Self {
        let width = ((to - from) / most as f64).max(narrowest);
        let per_width = if width > 0.0 { 1.0 / width } else { 0.0 };
        Self {
            from,
            per_width,
            last: ((to - from) * per_width) as usize,
        }
    }

    /// Returns the slot of a value.
    fn at(&self, value: f64) -> usize {
        // Values are at least `from`; a difference that rounding makes negative becomes 0.
        (((value - self.from) * self.per_width) as usize).min(self.last)
    }
}

/// Returns the union of all pairs' products at a resolution: ascending in memory, descending in
/// time.
///
/// The smallest and the fastest sum are exact.
pub fn union_of_products(pairs: &[Pair], resolution: &Resolution) -> Vec<Candidate> {
    let Some(corners) = corners(pairs, resolution.memory_cap) else {
        return Vec::new();
    };
    let (least_memory, most_time) = corners.smallest;
    let (most_memory, least_time) = corners.fastest;
    let memory = Slots::new(
        least_memory,
        most_memory,
        resolution.memory_bytes,
        resolution.slots,
    );
    let time = Slots::new(least_time, most_time, resolution.time_s, resolution.slots);
    let empty = Candidate {
        memory: f64::INFINITY,
        time: f64::INFINITY,
        left: 0,
        right: 0,
    };
    let mut by_memory = vec![empty; memory.last + 1];
    let mut by_time = vec![empty; time.last + 1];
    for pair in pairs {
        // Rows run along the longer side.
        let swap = pair.a.len() > pair.b.len();
        let (short, long) = if swap {
            (pair.b, pair.a)
        } else {
            (pair.a, pair.b)
        };
        for x in short {
            let (base_memory, base_time) = (pair.own.0 + x.memory, pair.own.1 + x.time);
            // Sums slower than the smallest, or larger than the fastest, are beaten by it.
            let from = long.partition_point(|y| base_time + y.time > most_time);
            for y in &long[from..] {
                let sum_memory = base_memory + y.memory;
                if sum_memory > most_memory {
                    break;
                }
                let sum_time = base_time + y.time;
                let (left, right) = if swap {
                    (y.trace, x.trace)
                } else {
                    (x.trace, y.trace)
                };
                let sum = Candidate {
                    memory: sum_memory,
                    time: sum_time,
                    left,
                    right,
                };
                let slot = &mut by_memory[memory.at(sum_memory)];
                if sum_time < slot.time || (sum_time == slot.time && sum_memory < slot.memory) {
                    *slot = sum;
                }
                let slot = &mut by_time[time.at(sum_time)];
                if sum_memory < slot.memory || (sum_memory == slot.memory && sum_time < slot.time) {
                    *slot = sum;
                }
            }
        }
    }
    by_memory.append(&mut by_time);
    by_memory.retain(|c| c.time.is_finite());
    reduce(&mut by_memory);
    by_memory
}

/// Returns the corner sums of all pairs; `None` where every pair has an empty side.
fn corners(pairs: &[Pair], memory_cap: f64) -> Option<Corners> {
    let mut corners: Option<Corners> = None;
    for pair in pairs {
        let (Some(a), Some(b)) = (pair.a.first(), pair.b.first()) else {
            continue;
        };
        let smallest = (
            pair.own.0 + a.memory + b.memory,
            pair.own.1 + a.time + b.time,
        );
        let Some(fastest) = fastest(pair, memory_cap) else {
            continue;
        };
        let best = corners.get_or_insert(Corners { smallest, fastest });
        if smallest < best.smallest {
            best.smallest = smallest;
        }
        if (fastest.1, fastest.0) < (best.fastest.1, best.fastest.0) {
            best.fastest = fastest;
        }
    }
    // The smallest sum stays even above the cap, to tell how much memory is needed.
    corners.map(|mut c| {
        if c.fastest.0 > memory_cap {
            c.fastest = c.smallest;
        }
        c
    })
}

/// Returns the fastest sum of a pair within the cap; its smallest sum where none is within it.
fn fastest(pair: &Pair, memory_cap: f64) -> Option<(f64, f64)> {
    let sum = |x: &Tuple, y: &Tuple| {
        (
            pair.own.0 + x.memory + y.memory,
            pair.own.1 + x.time + y.time,
        )
    };
    let both = sum(pair.a.last()?, pair.b.last()?);
    if both.0 <= memory_cap {
        return Some(both);
    }
    let mut best = sum(pair.a.first()?, pair.b.first()?);
    for x in pair.a {
        let fitting = pair.b.partition_point(|y| sum(x, y).0 <= memory_cap);
        if let Some(y) = fitting.checked_sub(1).map(|at| &pair.b[at]) {
            let candidate = sum(x, y);
            if (candidate.1, candidate.0) < (best.1, best.0) {
                best = candidate;
            }
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stairs(length: usize, seed: u64) -> Vec<Tuple> {
        let mut state = seed;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            1.0 + ((state >> 33) % 1000) as f64
        };
        let mut memory: Vec<f64> = (0..length).map(|_| random()).collect();
        let mut time: Vec<f64> = (0..length).map(|_| random()).collect();
        memory.sort_by(f64::total_cmp);
        time.sort_by(|a, b| b.total_cmp(a));
        memory
            .into_iter()
            .zip(time)
            .enumerate()
            .map(|(i, (memory, time))| Tuple {
                memory,
                time,
                trace: i as u32,
            })
            .collect()
    }

    fn all_sums(pairs: &[Pair]) -> Vec<Candidate> {
        let mut all = Vec::new();
        for pair in pairs {
            for x in pair.a {
                for y in pair.b {
                    all.push(Candidate {
                        memory: pair.own.0 + x.memory + y.memory,
                        time: pair.own.1 + x.time + y.time,
                        left: x.trace,
                        right: y.trace,
                    });
                }
            }
        }
        all
    }

    #[test]
    fn everything_is_within_a_slot_of_something_kept() {
        let (a, b, c) = (stairs(70, 1), stairs(150, 2), stairs(20, 3));
        let pairs = [
            Pair {
                own: (5.0, 3.0),
                a: &a,
                b: &b,
            },
            Pair {
                own: (1.0, 90.0),
                a: &b,
                b: &c,
            },
            Pair {
                own: (0.0, 0.0),
                a: &c,
                b: &a,
            },
        ];
        let all = all_sums(&pairs);
        for slots in [1, 7, 64, 4096] {
            let resolution = Resolution {
                slots,
                memory_bytes: 0.0,
                time_s: 0.0,
                memory_cap: f64::INFINITY,
            };
            let kept = union_of_products(&pairs, &resolution);
            let (first, last) = (kept[0], kept[kept.len() - 1]);
            let width = (last.memory - first.memory) / slots as f64 + 1e-9;
            for sum in &all {
                assert!(
                    kept.iter()
                        .any(|k| k.memory <= sum.memory + width && k.time <= sum.time),
                    "{sum:?} is not covered by {slots} slots"
                );
            }
            let least = all.iter().map(|s| s.memory).fold(f64::INFINITY, f64::min);
            let quickest = all.iter().map(|s| s.time).fold(f64::INFINITY, f64::min);
            assert_eq!((first.memory, last.time), (least, quickest));
        }
    }

    #[test]
    fn above_the_cap_only_the_smallest_stays() {
        let a = stairs(50, 4);
        let pairs = [Pair {
            own: (0.0, 0.0),
            a: &a,
            b: &a,
        }];
        let with_cap = |memory_cap| {
            let resolution = Resolution {
                slots: 64,
                memory_bytes: 0.0,
                time_s: 0.0,
                memory_cap,
            };
            union_of_products(&pairs, &resolution)
        };
        let free = with_cap(f64::INFINITY);
        let cap = free[free.len() / 2].memory;
        let capped = with_cap(cap);
        assert!(capped.iter().all(|c| c.memory <= cap) && capped.len() > 1);
        let quickest = all_sums(&pairs)
            .iter()
            .filter(|s| s.memory <= cap)
            .map(|s| s.time)
            .fold(f64::INFINITY, f64::min);
        assert_eq!(capped[capped.len() - 1].time, quickest);
        assert_eq!(with_cap(0.5).len(), 1);
    }
}
