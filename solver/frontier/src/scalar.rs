//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: choices
//! that cannot be needed go first (`dead_end`), then operators in the order of a `schedule`.

use std::ops::Range;
use std::sync::Arc;

use crate::certificate::MARGIN;
use crate::dead_end;
use crate::error::SolveError;
use crate::problem::{Problem, Table};
use crate::schedule::{Schedule, Width};
use crate::selection::{Selection, Sets};
use crate::tables::{Filled, Weighted};
use crate::tracking::Point;
use crate::watch::Watch;

/// How a minimisation goes about its work.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// So much work is done at once; more starts with copies of the widest operators.
    pub cheap: f64,
    /// A strategy this close to its bound (relative) is taken for the optimum.
    pub close: f64,
    /// How wide an elimination may be while bounds are sought.
    pub narrow: Width,
}

pub const EFFORT: Effort = Effort {
    cheap: 3e8,
    close: 2e-4,
    narrow: Width {
        step_work: 5e7,
        table_cells: 2e6,
        ..WIDTH
    },
};
pub const WIDTH: Width = Width {
    step_work: 5e10,
    table_cells: 1e8,
    all_cells: 2.5e8,
    pairs: false,
    relax: true,
};

/// cost = `memory` * bytes + `time` * seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub memory: f64,
    pub time: f64,
}

impl Weights {
    pub fn of(&self, memory: f64, time: f64) -> f64 {
        self.memory * memory + self.time * time
    }

    /// The least cost among a table's alternatives.
    pub fn least(&self, table: &Table, alternatives: Range<usize>) -> f64 {
        alternatives
            .map(|at| self.of(table.memory[at], table.time[at]))
            .fold(f64::INFINITY, f64::min)
    }

    /// The cost of a corner with infinite ends; an infinite cost that has no weight is none.
    pub fn of_corner(&self, memory: f64, time: f64) -> f64 {
        let part = |weight: f64, cost: f64| if weight > 0.0 { weight * cost } else { 0.0 };
        part(self.memory, memory) + part(self.time, time)
    }
}

/// The strategy with the least weighted cost, and that cost.
///
/// Where the graph is too wide for that, a good strategy and a lower bound of all costs.
pub fn minimise(
    problem: &Problem,
    weights: Weights,
    effort: Effort,
    watch: &Watch,
) -> Result<(f64, Point), SolveError> {
    let weighted = Weighted::new(problem, weights);
    let kept = dead_end::eliminate(problem, &weighted.own, &weighted.tables, watch)?;
    let schedule = Schedule::new(problem, &kept, WIDTH, watch)?;
    if schedule.total_work() <= effort.cheap {
        let filled = Filled::new(&schedule, &weighted, watch)?;
        return filled.optimum(weights, watch);
    }
    // Dear: first what copies of the widest operators cost, and what that leaves in question.
    let narrow = Schedule::new(problem, &kept, effort.narrow, watch)?;
    let filled = Filled::new(&narrow, &weighted, watch)?;
    let (bound, near) = filled.optimum(weights, watch)?;
    let cost = weights.of(near.memory, near.time);
    if cost <= bound * (1.0 + effort.close) {
        return Ok((bound, near));
    }
    let left = within(&filled.of_operators(watch)?, &kept, cost);
    drop(filled);
    let schedule = Schedule::new(problem, &left, WIDTH, watch)?;
    let filled = Filled::new(&schedule, &weighted, watch)?;
    let (value, point) = filled.optimum(weights, watch)?;
    let best = if weights.of(point.memory, point.time) <= cost {
        point
    } else {
        near
    };
    Ok((value.max(bound), best))
}

/// The choices with which a strategy may cost no more than `cost`.
fn within(bounds: &[Arc<Vec<f64>>], kept: &Selection, cost: f64) -> Selection {
    let mut sets = Sets::default();
    let of = bounds
        .iter()
        .enumerate()
        .map(|(operator, bounds)| {
            let each = kept.choices(operator).iter().zip(bounds.iter());
            let left = each.filter(|(_, bound)| **bound * (1.0 - MARGIN) <= cost);
            sets.intern(left.map(|(k, _)| *k).collect())
        })
        .collect();
    sets.selection(of)
}

/// The full strategy of some choices, each edge with its best alternative under the weights.
pub fn point(problem: &Problem, choices: Vec<u32>, weights: Weights) -> Point {
    let edge_choices: Vec<u32> = problem
        .edges
        .iter()
        .map(|edge| {
            let table = &problem.tables[edge.table];
            problem
                .alternatives(
                    edge,
                    choices[edge.source] as usize,
                    choices[edge.target] as usize,
                )
                .map(|at| weights.of(table.memory[at], table.time[at]))
                .enumerate()
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .map_or(0, |(a, _)| a as u32)
        })
        .collect();
    Point::of(problem, choices, edge_choices)
}
