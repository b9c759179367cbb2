//! The costs of a problem under one pair of weights.

use rayon::prelude::*;

use crate::model::ids::{ChoiceId, CostsId, IdVec, TableId};
use crate::model::problem::{Costs, Problem, Table};
use crate::model::weights::Weights;

/// All costs of a problem, weighted into one number each.
pub struct Weighted {
    /// The weighted costs of each cost array.
    pub own: IdVec<CostsId, IdVec<ChoiceId, f64>>,
    /// The weighted cost of the best alternative of each cell, per table.
    pub tables: IdVec<TableId, Vec<f64>>,
}

impl Weighted {
    /// Weights all costs of a problem.
    pub fn new(problem: &Problem, weights: Weights) -> Self {
        let one = |costs: &Costs| -> IdVec<ChoiceId, f64> {
            let both = costs.memory.iter().zip(&costs.time);
            both.map(|(m, t)| weights.of(*m, *t)).collect()
        };
        let best = |table: &Table| -> Vec<f64> {
            let cells = 0..table.rows * table.columns;
            cells
                .map(|cell| weights.least(table, table.at(cell)))
                .collect()
        };
        let tables = problem.tables.as_slice().par_iter();
        Self {
            own: problem.costs.iter().map(one).collect(),
            tables: tables.map(best).collect::<Vec<_>>().into(),
        }
    }
}
