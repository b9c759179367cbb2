//! The restricted problem: only the choices that some weighted optimum uses.
//!
//! Operators of one kind (same costs, same tables around them) share one set, so that every
//! repeated layer can take any choice that one of them takes.

use std::collections::{BTreeSet, HashMap};

use crate::bounds::descent::{edges_around, local_cost};
use crate::model::error::SolveError;
use crate::model::ids::{ids, ChoiceId, Id, IdVec, OperatorId, TableId};
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::selection::{Selection, SetId, Sets};
use crate::model::watch::Watch;
use crate::model::weights::Weights;

ids! {
    /// Names a kind of operator: all operators with the same costs and the same tables around them.
    KindId(usize);
}

/// The kept choices of each kind of operator.
pub struct KeptChoices {
    kind_of: IdVec<OperatorId, KindId>,
    sets: IdVec<KindId, BTreeSet<ChoiceId>>,
}

impl KeptChoices {
    /// Starts without any kept choice.
    pub fn new(problem: &Problem) -> Self {
        let mut around: IdVec<OperatorId, Vec<(TableId, bool)>> =
            IdVec::filled(Vec::new(), problem.operators.len());
        for edge in &problem.edges {
            around[edge.source].push((edge.table, true));
            around[edge.target].push((edge.table, false));
        }
        let mut ids = HashMap::new();
        let kind_of = problem
            .operators
            .iter()
            .zip(around.iter_mut())
            .map(|(operator, tables)| {
                tables.sort_unstable();
                let next = KindId::new(ids.len());
                *ids.entry((operator.costs, tables.clone())).or_insert(next)
            })
            .collect();
        Self {
            sets: IdVec::filled(BTreeSet::new(), ids.len()),
            kind_of,
        }
    }

    /// Keeps all choices of a strategy.
    pub fn add(&mut self, point: &Point) {
        for (o, choice) in point.choices.enumerate() {
            self.sets[self.kind_of[o]].insert(*choice);
        }
    }

    /// Keeps, per kind, up to `most` choices that change a strategy's weighted cost least.
    ///
    /// The change is that of one operator alone, with its neighbours unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error when the solve must stop.
    pub fn add_near(
        &mut self,
        problem: &Problem,
        point: &Point,
        weights: Weights,
        most: usize,
        watch: &Watch,
    ) -> Result<(), SolveError> {
        let mut best: HashMap<(KindId, ChoiceId), f64> = HashMap::new();
        let around = edges_around(problem);
        for (o, edges) in around.enumerate() {
            watch.poll("restricted", 0.5)?;
            let kind = self.kind_of[o];
            let cost = |k: ChoiceId| local_cost(problem, &point.choices, o, k, edges, weights);
            let current = cost(point.choices[o]);
            for k in (0..problem.choices(o)).map(ChoiceId::new) {
                if self.sets[kind].contains(&k) {
                    continue;
                }
                let change = cost(k) - current;
                let least = best.entry((kind, k)).or_insert(f64::INFINITY);
                *least = least.min(change);
            }
        }
        let mut ranked: Vec<((KindId, ChoiceId), f64)> = best.into_iter().collect();
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let mut taken = IdVec::filled(0, self.sets.len());
        for ((kind, k), _) in ranked {
            if taken[kind] < most {
                taken[kind] += 1;
                self.sets[kind].insert(k);
            }
        }
        Ok(())
    }

    /// Returns the mean number of kept choices per operator.
    pub fn mean(&self) -> f64 {
        let kinds = self.kind_of.iter();
        let total: usize = kinds.map(|kind| self.sets[*kind].len()).sum();
        total as f64 / self.kind_of.len().max(1) as f64
    }

    /// Returns the kept choices of every operator.
    pub fn selection(&self) -> Selection {
        let mut sets = Sets::default();
        let of_kind: IdVec<KindId, SetId> = self
            .sets
            .iter()
            .map(|set| sets.intern(set.iter().copied().collect()))
            .collect();
        sets.selection(self.kind_of.iter().map(|kind| of_kind[*kind]).collect())
    }
}
