//! Which choices of each operator a search considers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::problem::Problem;

/// The considered choices of each operator, ascending; equal sets have equal ids.
pub struct Selection {
    /// Per operator, its set.
    pub of: Vec<usize>,
    pub sets: Vec<Arc<Vec<u32>>>,
}

impl Selection {
    /// All choices of all operators.
    pub fn all(problem: &Problem) -> Self {
        let mut sets = Sets::default();
        let of = (0..problem.operators.len())
            .map(|o| sets.intern((0..problem.choices(o) as u32).collect()))
            .collect();
        sets.selection(of)
    }

    pub fn choices(&self, operator: usize) -> &[u32] {
        &self.sets[self.of[operator]]
    }
}

/// Interns sets of choices.
#[derive(Default)]
pub struct Sets {
    pub sets: Vec<Arc<Vec<u32>>>,
    ids: HashMap<Arc<Vec<u32>>, usize>,
}

impl Sets {
    pub fn intern(&mut self, set: Vec<u32>) -> usize {
        let set = Arc::new(set);
        if let Some(&id) = self.ids.get(&set) {
            return id;
        }
        self.sets.push(Arc::clone(&set));
        self.ids.insert(set, self.sets.len() - 1);
        self.sets.len() - 1
    }

    /// Each operator with one of the interned sets.
    pub fn selection(self, of: Vec<usize>) -> Selection {
        Selection {
            of,
            sets: self.sets,
        }
    }
}
