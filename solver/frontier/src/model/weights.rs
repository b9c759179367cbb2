//! One weighted sum of memory and time.

use std::ops::Range;

use crate::model::problem::Table;

/// Makes one cost of two: `memory` * bytes + `time` * seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub memory: f64,
    pub time: f64,
}

impl Weights {
    /// Returns the weighted cost of some memory and time.
    pub fn of(&self, memory: f64, time: f64) -> f64 {
        self.memory * memory + self.time * time
    }

    /// Returns the least cost among a table's alternatives.
    pub fn least(&self, table: &Table, alternatives: Range<usize>) -> f64 {
        alternatives
            .map(|at| self.of(table.memory[at], table.time[at]))
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the cost of a corner with infinite ends; an infinite cost without a weight is none.
    pub fn of_corner(&self, memory: f64, time: f64) -> f64 {
        let part = |weight: f64, cost: f64| if weight > 0.0 { weight * cost } else { 0.0 };
        part(self.memory, memory) + part(self.time, time)
    }
}
