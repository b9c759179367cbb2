//! The restricted problem: only the choices that some weighted optimum uses.
//!
//! Operators alike (same costs, same tables around) share one set, so that every repeated layer
//! can take what any of them takes.

use std::collections::{BTreeSet, HashMap};

use crate::descent::{edges_around, local_cost};
use crate::error::SolveError;
use crate::problem::Problem;
use crate::scalar::Weights;
use crate::selection::{Selection, Sets};
use crate::tracking::Point;
use crate::watch::Watch;

/// The kept choices per class of operators.
pub struct Kept {
    class_of: Vec<usize>,
    sets: Vec<BTreeSet<u32>>,
}

impl Kept {
    pub fn new(problem: &Problem) -> Self {
        let mut around: Vec<Vec<(usize, bool)>> = vec![Vec::new(); problem.operators.len()];
        for edge in &problem.edges {
            around[edge.source].push((edge.table, true));
            around[edge.target].push((edge.table, false));
        }
        let mut ids = HashMap::new();
        let class_of: Vec<usize> = problem
            .operators
            .iter()
            .zip(&mut around)
            .map(|(operator, tables)| {
                tables.sort_unstable();
                let next = ids.len();
                *ids.entry((operator.costs, tables.clone())).or_insert(next)
            })
            .collect();
        Self {
            sets: vec![BTreeSet::new(); ids.len()],
            class_of,
        }
    }

    /// Keep all choices of a strategy; true if one is new.
    pub fn add(&mut self, point: &Point) -> bool {
        let mut new = false;
        for (o, choice) in point.choices.iter().enumerate() {
            new |= self.sets[self.class_of[o]].insert(*choice);
        }
        new
    }

    /// Keep, per class, up to `most` choices that change a strategy's weighted cost least.
    ///
    /// The change is that of one operator alone, its neighbours as they are. True if one is new.
    pub fn add_near(
        &mut self,
        problem: &Problem,
        point: &Point,
        weights: Weights,
        most: usize,
        watch: &Watch,
    ) -> Result<bool, SolveError> {
        let mut best: HashMap<(usize, u32), f64> = HashMap::new();
        let around = edges_around(problem);
        for (o, edges) in around.iter().enumerate() {
            watch.poll("restricted", 0.5)?;
            let class = self.class_of[o];
            let cost = |k: u32| local_cost(problem, &point.choices, o, k, edges, weights);
            let now = cost(point.choices[o]);
            for k in 0..problem.choices(o) as u32 {
                if self.sets[class].contains(&k) {
                    continue;
                }
                let change = cost(k) - now;
                let least = best.entry((class, k)).or_insert(f64::INFINITY);
                *least = least.min(change);
            }
        }
        let mut ranked: Vec<((usize, u32), f64)> = best.into_iter().collect();
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let mut taken = vec![0; self.sets.len()];
        let mut new = false;
        for ((class, k), _) in ranked {
            if taken[class] < most {
                taken[class] += 1;
                new |= self.sets[class].insert(k);
            }
        }
        Ok(new)
    }

    fn choices(&self, operator: usize) -> &BTreeSet<u32> {
        &self.sets[self.class_of[operator]]
    }

    /// The mean number of kept choices per operator.
    pub fn mean(&self) -> f64 {
        let total: usize = (0..self.class_of.len())
            .map(|o| self.choices(o).len())
            .sum();
        total as f64 / self.class_of.len().max(1) as f64
    }

    /// The kept choices of every operator.
    pub fn selection(&self) -> Selection {
        let mut sets = Sets::default();
        let of_class: Vec<usize> = self
            .sets
            .iter()
            .map(|set| sets.intern(set.iter().copied().collect()))
            .collect();
        sets.selection(self.class_of.iter().map(|class| of_class[*class]).collect())
    }
}
