//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: choices
//! that cannot be needed go first (`dead_end`), then operators in the order of a `schedule`.

use crate::bounds::certificate::MARGIN;
use crate::bounds::dead_end;
use crate::bounds::marginals::{self, Marginals};
use crate::bounds::tables::Filled;
use crate::bounds::weighted::Weighted;
use crate::model::error::SolveError;
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::selection::{Selection, Sets};
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::tracking::schedule::{Schedule, Width};

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

/// What every search uses.
pub const EFFORT: Effort = Effort {
    cheap: 3e8,
    close: 2e-4,
    narrow: Width {
        step_work: 5e7,
        table_cells: 2e6,
        ..WIDTH
    },
};
/// How wide an elimination may be where the optimum is sought.
pub const WIDTH: Width = Width {
    step_work: 5e10,
    table_cells: 1e8,
    all_cells: 2.5e8,
    pairs: false,
    relax: true,
};

/// Returns the least weighted cost and the strategy that has it.
///
/// Where the graph is too wide for that, it is a lower bound of all costs and a good strategy.
///
/// # Errors
///
/// Errs when the solve is to stop.
pub fn minimise(
    problem: &Problem,
    weights: Weights,
    effort: Effort,
    watch: &Watch,
) -> Result<(f64, Point), SolveError> {
    let weighted = Weighted::new(problem, weights);
    let kept = dead_end::eliminate(problem, &weighted, watch)?;
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
    let left = within(&marginals::of_operators(&filled, watch)?, &kept, cost);
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

/// Returns the choices with which a strategy may cost no more than `cost`.
fn within(bounds: &Marginals, kept: &Selection, cost: f64) -> Selection {
    let mut sets = Sets::default();
    let of = bounds
        .enumerate()
        .map(|(operator, bounds)| {
            let each = kept.choices(operator).iter().zip(bounds.iter());
            let left = each.filter(|(_, bound)| **bound * (1.0 - MARGIN) <= cost);
            sets.intern(left.map(|(k, _)| *k).collect())
        })
        .collect();
    sets.selection(of)
}
