//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: first,
//! choices that no optimum needs are dropped (`dead_end`), then operators are eliminated in the
//! order of a `schedule`.

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

/// How much work a minimisation may do at each stage.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The most work that is done at once; larger minimisations start from copies of the widest
    /// operators.
    pub cheap: f64,
    /// A strategy this close to its bound (relative) is accepted as the optimum.
    pub close: f64,
    /// How wide an elimination may be while bounds are computed.
    pub narrow: Width,
}

/// The effort of every search.
pub const EFFORT: Effort = Effort {
    cheap: 3e8,
    close: 2e-4,
    narrow: Width {
        step_work: 5e7,
        table_cells: 2e6,
        ..WIDTH
    },
};
/// How wide an elimination may be while the optimum is computed.
pub const WIDTH: Width = Width {
    step_work: 5e10,
    table_cells: 1e8,
    all_cells: 2.5e8,
    pairs: false,
    relax: true,
};

/// Returns the least weighted cost and a strategy that attains it.
///
/// Where the graph is too wide for that, returns a lower bound on all costs and a good strategy.
///
/// # Errors
///
/// Returns an error when the solve must stop.
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
    // Expensive: first bound the cost with copies of the widest operators, and drop the choices
    // that the bounds exclude.
    let narrow = Schedule::new(problem, &kept, effort.narrow, watch)?;
    let filled = Filled::new(&narrow, &weighted, watch)?;
    let (bound, descended) = filled.optimum(weights, watch)?;
    let cost = weights.of(descended.memory, descended.time);
    if cost <= bound * (1.0 + effort.close) {
        return Ok((bound, descended));
    }
    let remaining = within(&marginals::of_operators(&filled, watch)?, &kept, cost);
    drop(filled);
    let schedule = Schedule::new(problem, &remaining, WIDTH, watch)?;
    let filled = Filled::new(&schedule, &weighted, watch)?;
    let (value, point) = filled.optimum(weights, watch)?;
    let best = if weights.of(point.memory, point.time) <= cost {
        point
    } else {
        descended
    };
    Ok((value.max(bound), best))
}

/// Returns the choices that a strategy of at most `cost` may take.
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
