//! One weighted sum of memory and time.

use std::ops::Range;

use crate::model::problem::Table;

/// Weights that combine both costs into one: `memory` * bytes + `time` * seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub memory: f64,
    pub time: f64,
}

impl Weights {
    /// Returns the weighted cost of a memory and a time.
    pub fn of(&self, memory: f64, time: f64) -> f64 {
        self.memory * memory + self.time * time
    }

    /// Returns the least weighted cost among a table's alternatives.
    pub fn least(&self, table: &Table, alternatives: Range<usize>) -> f64 {
        alternatives
            .map(|at| self.of(table.memory[at], table.time[at]))
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the weighted cost of a corner that may be infinite; an infinite cost of weight 0
    /// counts as 0.
    pub fn of_corner(&self, memory: f64, time: f64) -> f64 {
        let part = |weight: f64, cost: f64| if weight > 0.0 { weight * cost } else { 0.0 };
        part(self.memory, memory) + part(self.time, time)
    }
}
