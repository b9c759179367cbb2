//! From a certified frontier to the exact one.
//!
//! A strategy that no known point equals or beats lies strictly inside a notch of the known
//! staircase: left of a point and below its predecessor. A choice is fixed out when, for every
//! notch, some weighted minimum over all strategies with that choice is at least the weighted cost
//! of the notch's corner (reduced-cost fixing). The rest is small and tracked exactly.

use rayon::prelude::*;

use crate::bounds::certificate::{corner_gap, Line, MARGIN};
use crate::bounds::marginals::{marginals, Marginals};
use crate::bounds::scalar;
use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, IdVec, OperatorId};
use crate::model::point::{staircase, Point};
use crate::model::problem::Problem;
use crate::model::selection::{Selection, Sets};
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::tracking::gather::Limits;
use crate::tracking::repeated::{self, Fineness};
use crate::tracking::schedule::Schedule;

/// About the most corners that are distinguished.
const MOST_CORNERS: usize = 128;
/// The most weights that are used for fixing.
const MOST_WEIGHTS: usize = 24;

/// Returns the frontier to within `epsilon` (0: exactly), given points near it and supporting
/// lines.
///
/// A strategy that no point covers within 1+e lies in a notch whose corner is shrunk by 1+e;
/// notches where the lines exclude such strategies are not searched.
///
/// # Errors
///
/// Returns an error when a limit is reached.
pub fn finish(
    problem: &Problem,
    points: &[Point],
    lines: &[Line],
    epsilon: f64,
    candidates: u64,
    watch: &Watch,
) -> Result<Vec<Point>, SolveError> {
    let selection = survivors(problem, points, lines, epsilon, watch)?;
    let limits = Limits {
        candidates: watch.candidates().saturating_add(candidates),
        watch,
    };
    let mut all = points.to_vec();
    if let Some(selection) = selection {
        all.extend(repeated::track(
            problem,
            &selection,
            Fineness::Exact,
            &limits,
        )?);
    }
    Ok(staircase(all))
}

/// Returns the choices that some strategy inside a notch may use; `None` when there is no such
/// strategy.
fn survivors(
    problem: &Problem,
    points: &[Point],
    lines: &[Line],
    epsilon: f64,
    watch: &Watch,
) -> Result<Option<Selection>, SolveError> {
    let everything = Selection::all(problem);
    let schedule = Schedule::new(problem, &everything, scalar::WIDTH, watch)?;
    // With an epsilon, few corners remain. Without one, neighbouring notches are merged.
    let most = if epsilon > 0.0 {
        usize::MAX
    } else {
        MOST_CORNERS
    };
    let corners: Vec<(f64, f64)> = corners(points, most)
        .into_iter()
        .filter(|(memory, time)| corner_gap(lines, *memory, *time) > epsilon)
        .map(|(memory, time)| (memory / (1.0 + epsilon), time / (1.0 + epsilon)))
        .collect();
    if corners.is_empty() {
        return Ok(None);
    }
    // Per operator and choice, the notches that it may still lie in.
    let mut open: IdVec<OperatorId, IdVec<ChoiceId, Vec<u32>>> = problem
        .operators
        .ids()
        .map(|o| IdVec::filled((0..corners.len() as u32).collect(), problem.choices(o)))
        .collect();
    let all: Vec<Weights> = spread(lines);
    let bounds: Vec<Marginals> = all
        .par_iter()
        .map(|weights| marginals(&schedule, *weights, watch))
        .collect::<Result<_, SolveError>>()?;
    for (weights, bounds) in all.iter().zip(&bounds) {
        let both = open.as_mut_slice().par_iter_mut().zip(bounds.as_slice());
        both.for_each(|(open, bounds)| {
            for (open, bound) in open.iter_mut().zip(bounds.iter()) {
                let least = bound * (1.0 - MARGIN);
                open.retain(|&c| {
                    let (memory, time) = corners[c as usize];
                    least < weights.of_corner(memory, time)
                });
            }
        });
    }
    let mut sets = Sets::default();
    let mut of = IdVec::default();
    for open in &open {
        let left: Vec<ChoiceId> = open.ids().filter(|k| !open[*k].is_empty()).collect();
        if left.is_empty() {
            return Ok(None);
        }
        of.push(sets.intern(left));
    }
    Ok(Some(sets.selection(of)))
}

/// Returns about `most` corners of the notches; infinite where there is no neighbour.
///
/// If there are more notches, neighbouring ones share one corner: whatever lies in one of them also
/// lies left of and below that corner.
fn corners(points: &[Point], most: usize) -> Vec<(f64, f64)> {
    let notches_per_corner = points.len() / most + 1;
    (0..=points.len())
        .step_by(notches_per_corner)
        .map(|first| {
            let last = first + notches_per_corner - 1;
            let time = first
                .checked_sub(1)
                .map_or(f64::INFINITY, |i| points[i].time);
            let memory = points.get(last).map_or(f64::INFINITY, |p| p.memory);
            (memory, time)
        })
        .collect()
}

/// Returns weights spread evenly over the slopes of the lines, including both ends.
fn spread(lines: &[Line]) -> Vec<Weights> {
    let mut all: Vec<Weights> = lines.iter().map(|l| l.weights).collect();
    all.sort_by(|a, b| (a.memory * b.time).total_cmp(&(b.memory * a.time)));
    all.dedup();
    if all.len() <= MOST_WEIGHTS {
        return all;
    }
    let step = (all.len() - 1) as f64 / (MOST_WEIGHTS - 1) as f64;
    (0..MOST_WEIGHTS)
        .map(|i| all[(i as f64 * step).round() as usize])
        .collect()
}
