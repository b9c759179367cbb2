//! Products of frontiers (TensorOpt Section 3.1) and their unions, within the limits of a search.

use crate::model::error::SolveError;
use crate::model::watch::Watch;
use crate::tracking::staircase::{record, reduce, Candidate, Frontier, Tuple};
use crate::tracking::trace::Arena;

const BYTES_PER_TUPLE: usize = 48;
/// The most tuples that are stored at once.
const MOST_TUPLES: f64 = 5e7;
/// Pending sums are merged into the front when there are this many and at least as many as in the
/// front.
const BUFFER: usize = 1 << 11;

/// The limits of one tracking.
pub struct Limits<'a> {
    /// The most tuples that the tracking may consider.
    pub candidates: u64,
    pub watch: &'a Watch<'a>,
}

impl Limits<'_> {
    /// Counts tuples that are about to be considered.
    ///
    /// # Errors
    ///
    /// Returns an error when there are too many, and when the solve must stop.
    pub fn spend(&self, candidates: usize) -> Result<(), SolveError> {
        self.watch.count(candidates);
        if self.watch.candidates() > self.candidates {
            return Err(SolveError::OverBudget(format!(
                "more than {} candidate strategies",
                self.candidates
            )));
        }
        self.watch.poll("tracking", 0.5)
    }

    /// Counts tuples that are stored.
    ///
    /// # Errors
    ///
    /// Returns an error when they would exceed the memory limit.
    pub fn keep(&self, tuples: usize) -> Result<(), SolveError> {
        let most = self.watch.room(MOST_TUPLES, BYTES_PER_TUPLE);
        if self.watch.keep(tuples) as f64 > most {
            return Err(SolveError::OverBudget(format!(
                "more than {most:.0} partial strategies to store"
            )));
        }
        Ok(())
    }
}

/// The union of many products, reduced as it grows.
///
/// Most sums are beaten by a tuple of the front, and are dropped before they are sorted.
pub struct Gather<'a> {
    limits: &'a Limits<'a>,
    /// The staircase of all sums except the pending ones.
    front: Vec<Candidate>,
    pending: Vec<Candidate>,
}

impl<'a> Gather<'a> {
    /// Starts with an empty union.
    pub fn new(limits: &'a Limits<'a>) -> Self {
        Self {
            limits,
            front: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Adds the product of two staircases.
    pub fn product(&mut self, a: &[Tuple], b: &[Tuple]) -> Result<(), SolveError> {
        self.moved_product((0.0, 0.0), a, b)
    }

    /// Adds the product of two staircases, each sum with `own` (memory, time) on top.
    pub fn moved_product(
        &mut self,
        own: (f64, f64),
        a: &[Tuple],
        b: &[Tuple],
    ) -> Result<(), SolveError> {
        self.limits.spend(a.len() * b.len())?;
        // Rows run along the longer side, because the front is walked once per row.
        let swap = a.len() > b.len();
        let (short, long) = if swap { (b, a) } else { (a, b) };
        for x in short {
            let x = Tuple {
                memory: own.0 + x.memory,
                time: own.1 + x.time,
                trace: x.trace,
            };
            self.row(&x, long, swap);
            if self.pending.len() >= BUFFER.max(self.front.len()) {
                self.limits.spend(0)?;
                self.merge();
            }
        }
        Ok(())
    }

    /// Adds all sums of x and a tuple of b that the front does not beat. Front and b ascend in
    /// memory.
    fn row(&mut self, x: &Tuple, b: &[Tuple], swap: bool) {
        let mut passed = 0;
        for y in b {
            let (memory, time) = (x.memory + y.memory, x.time + y.time);
            passed += count_within(&self.front[passed..], memory);
            let beaten = passed > 0 && self.front[passed - 1].time <= time;
            if !beaten {
                let (left, right) = if swap {
                    (y.trace, x.trace)
                } else {
                    (x.trace, y.trace)
                };
                self.pending.push(Candidate {
                    memory,
                    time,
                    left,
                    right,
                });
            }
        }
    }

    fn merge(&mut self) {
        self.front.append(&mut self.pending);
        reduce(&mut self.front);
    }

    /// Returns the union.
    ///
    /// # Errors
    ///
    /// Returns an error when it would exceed the memory limit.
    pub fn settle(mut self) -> Result<Vec<Candidate>, SolveError> {
        self.merge();
        self.limits.keep(self.front.len())?;
        Ok(self.front)
    }
}

/// Returns the product of two frontiers: the costs of taking both.
pub fn product(
    a: &[Tuple],
    b: &[Tuple],
    limits: &Limits,
    arena: &mut Arena,
) -> Result<Frontier, SolveError> {
    let mut gather = Gather::new(limits);
    gather.product(a, b)?;
    Ok(record(gather.settle()?, arena))
}

/// Returns how many tuples of a staircase need at most this memory, in time logarithmic in the
/// result.
fn count_within(front: &[Candidate], memory: f64) -> usize {
    let mut reach = 1;
    while reach <= front.len() && front[reach - 1].memory <= memory {
        reach *= 2;
    }
    let (from, to) = (reach / 2, front.len().min(reach));
    from + front[from..to].partition_point(|f| f.memory <= memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracking::trace::EMPTY;

    /// Returns staircases of many lengths, some of them longer than the buffer.
    fn staircases() -> Vec<Vec<Tuple>> {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % 1000) as f64
        };
        let lengths = [1usize, 2, 7, 40, 300, 3000];
        lengths
            .iter()
            .map(|&length| {
                let mut memory: Vec<f64> = (0..length).map(|_| random()).collect();
                let mut time: Vec<f64> = (0..length).map(|_| random()).collect();
                memory.sort_by(f64::total_cmp);
                time.sort_by(|a, b| b.total_cmp(a));
                let mut tuples: Vec<Candidate> = memory
                    .into_iter()
                    .zip(time)
                    .map(|(memory, time)| Candidate {
                        memory,
                        time,
                        left: EMPTY,
                        right: EMPTY,
                    })
                    .collect();
                reduce(&mut tuples);
                let tuple = |c: &Candidate| Tuple {
                    memory: c.memory,
                    time: c.time,
                    trace: EMPTY,
                };
                tuples.iter().map(tuple).collect()
            })
            .collect()
    }

    #[test]
    fn gathering_equals_reducing_all_sums_at_once() {
        let watch = Watch::new(None, None);
        let limits = Limits {
            candidates: u64::MAX,
            watch: &watch,
        };
        let stairs = staircases();
        let mut gather = Gather::new(&limits);
        let mut all = Vec::new();
        for a in &stairs {
            for b in &stairs {
                gather.product(a, b).unwrap();
                let sums = a.iter().flat_map(|x| b.iter().map(move |y| (x, y)));
                all.extend(sums.map(|(x, y)| Candidate {
                    memory: x.memory + y.memory,
                    time: x.time + y.time,
                    left: EMPTY,
                    right: EMPTY,
                }));
            }
        }
        reduce(&mut all);
        let costs = |c: &[Candidate]| c.iter().map(|c| (c.memory, c.time)).collect::<Vec<_>>();
        assert_eq!(costs(&gather.settle().unwrap()), costs(&all));
        assert!(watch.candidates() > 500_000);
    }

    #[test]
    fn product_adds_costs() {
        let watch = Watch::new(None, None);
        let limits = Limits {
            candidates: u64::MAX,
            watch: &watch,
        };
        let tuple = |(memory, time)| Tuple {
            memory,
            time,
            trace: EMPTY,
        };
        let a = [(1.0, 5.0), (2.0, 1.0)].map(tuple);
        let both = product(&a, &a, &limits, &mut Arena::default()).unwrap();
        let costs: Vec<(f64, f64)> = both.iter().map(|t| (t.memory, t.time)).collect();
        assert_eq!(costs, [(2.0, 10.0), (3.0, 6.0), (4.0, 2.0)]);
    }

    #[test]
    fn too_many_candidates_are_an_error() {
        let watch = Watch::new(None, None);
        let limits = Limits {
            candidates: 10_000,
            watch: &watch,
        };
        let stairs = staircases();
        let mut gather = Gather::new(&limits);
        let result = gather.product(&stairs[4], &stairs[4]);
        assert!(matches!(result, Err(SolveError::OverBudget(_))));
    }
}
