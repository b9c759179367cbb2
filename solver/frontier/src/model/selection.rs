//! The choices of each operator that a search considers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::ids::{ids, ChoiceId, Id, IdVec, OperatorId};
use crate::model::problem::Problem;

ids! {
    /// Names a set of choices; equal sets have equal ids.
    SetId(usize);
}

/// The considered choices of each operator, ascending.
///
/// An index into such a list is a position, not a [`ChoiceId`]: the tables of a search have one row
/// per position.
pub struct Selection {
    pub of: IdVec<OperatorId, SetId>,
    pub sets: IdVec<SetId, Arc<Vec<ChoiceId>>>,
}

impl Selection {
    /// Returns all choices of all operators.
    pub fn all(problem: &Problem) -> Self {
        let mut sets = Sets::default();
        let of = sets.all(problem);
        sets.selection(of)
    }

    /// Returns the considered choices of an operator.
    pub fn choices(&self, operator: OperatorId) -> &[ChoiceId] {
        &self.sets[self.of[operator]]
    }
}

/// Interns sets of choices.
#[derive(Default)]
pub struct Sets {
    pub sets: IdVec<SetId, Arc<Vec<ChoiceId>>>,
    ids: HashMap<Arc<Vec<ChoiceId>>, SetId>,
}

impl Sets {
    /// Returns the id of a set; equal sets share one.
    pub fn intern(&mut self, set: Vec<ChoiceId>) -> SetId {
        let set = Arc::new(set);
        if let Some(&id) = self.ids.get(&set) {
            return id;
        }
        let id = self.sets.push(Arc::clone(&set));
        self.ids.insert(set, id);
        id
    }

    /// Returns, per operator, the set of all its choices.
    pub fn all(&mut self, problem: &Problem) -> IdVec<OperatorId, SetId> {
        let operators = problem.operators.ids();
        operators
            .map(|o| self.intern((0..problem.choices(o)).map(ChoiceId::new).collect()))
            .collect()
    }

    /// Returns a selection that gives each operator one of the interned sets.
    pub fn selection(self, of: IdVec<OperatorId, SetId>) -> Selection {
        Selection {
            of,
            sets: self.sets,
        }
    }
}
