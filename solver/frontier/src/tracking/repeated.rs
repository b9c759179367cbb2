//! Frontier Tracking along a [`Schedule`]: repeated parts are tracked once.
//!
//! A cell of a factor contains the staircase of the eliminated operators behind it (TensorOpt Eq.
//! 4, for any number of neighbours). Tuples refer to their summands by position, not by operator,
//! so that equal factors share them; unrolling walks the schedule's concrete steps.

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, Id, IdVec};
use crate::model::point::{staircase, Point};
use crate::model::problem::{Edge, Problem};
use crate::model::selection::Selection;
use crate::tracking::gather::{Gather, Limits};
use crate::tracking::grid::{union_of_products, Pair, Resolution};
use crate::tracking::schedule::{
    Class, ClassId, EdgeClass, Eliminated, Factor, Origin, Places, Schedule, Width,
};
use crate::tracking::staircase::{alternatives, Candidate, Tuple};
use crate::tracking::strides::{unravel, Strides};

const WIDTH: Width = Width {
    step_work: 2e7,
    table_cells: 2e6,
    all_cells: 2e7,
    pairs: true,
    relax: false,
};

/// Whether staircases keep every tuple, or only those that a resolution distinguishes.
#[derive(Debug, Clone, Copy)]
pub enum Fineness {
    Exact,
    Coarse(Resolution),
}

/// Returns the frontier of a problem's selected choices; every point is a full strategy.
///
/// # Errors
///
/// Returns `OverBudget` when elimination is too wide, and an error when a limit is reached.
pub fn track(
    problem: &Problem,
    selection: &Selection,
    fineness: Fineness,
    limits: &Limits,
) -> Result<Vec<Point>, SolveError> {
    limits.watch.forget();
    let schedule = Schedule::new(problem, selection, WIDTH, limits.watch)?;
    let mut stairs = StairsByClass::default();
    for (done, (class, dims)) in schedule.classes.iter().enumerate() {
        let share = done as f64 / schedule.classes.len() as f64;
        limits.watch.poll("tracking", share)?;
        stairs.push(match class {
            Class::Edge(class) => edge(&schedule, class),
            Class::Step {
                eliminated,
                factors,
            } => step(
                &schedule,
                &stairs,
                *eliminated,
                factors,
                dims,
                fineness,
                limits,
            )?,
        });
    }
    let whole = match schedule.steps.last() {
        Some(root) => stairs[root.result.class].tuples.len(),
        None => 1,
    };
    let points = (0..whole)
        .into_par_iter()
        .map(|tuple| {
            limits
                .watch
                .poll("unrolling", tuple as f64 / whole as f64)?;
            Ok(unroll(&schedule, &stairs, tuple as u32))
        })
        .collect::<Result<_, SolveError>>()?;
    Ok(staircase(points))
}

/// Estimates from the edges alone whether a problem can be tracked exactly with this many
/// candidates.
pub fn looks_quick(problem: &Problem, candidates: u64) -> bool {
    let pairs = |e: &Edge| problem.choices(e.source) * problem.choices(e.target);
    problem.edges.iter().map(pairs).sum::<usize>() as u64 <= candidates / 8
}

/// The staircases of the classes tracked so far.
type StairsByClass = IdVec<ClassId, Stairs>;

/// The staircases of all cells of a class; a tuple's `trace` is its own position.
struct Stairs {
    starts: Vec<u32>,
    tuples: Vec<Tuple>,
    /// The summands of each tuple: positions in the step's factors, or an edge's alternative.
    origins: Vec<(u32, u32)>,
}

impl Stairs {
    fn new(cells: Vec<Vec<Candidate>>) -> Self {
        let total = cells.iter().map(Vec::len).sum();
        let starts = cells.iter().scan(0, |end, cell| {
            *end += cell.len() as u32;
            Some(*end)
        });
        let mut stairs = Self {
            starts: std::iter::once(0).chain(starts).collect(),
            tuples: Vec::with_capacity(total),
            origins: Vec::with_capacity(total),
        };
        for candidate in cells.into_iter().flatten() {
            stairs.tuples.push(Tuple {
                memory: candidate.memory,
                time: candidate.time,
                trace: stairs.tuples.len() as u32,
            });
            stairs.origins.push((candidate.left, candidate.right));
        }
        stairs
    }

    fn cell(&self, cell: usize) -> &[Tuple] {
        &self.tuples[self.starts[cell] as usize..self.starts[cell + 1] as usize]
    }

    /// Returns the cell that a tuple belongs to.
    fn cell_of(&self, tuple: u32) -> usize {
        self.starts.partition_point(|start| *start <= tuple) - 1
    }
}

/// Returns the staircases of an edge: the alternatives of each cell, reduced.
fn edge(schedule: &Schedule, edge: &EdgeClass) -> Stairs {
    let table = &schedule.problem.tables[edge.table];
    let cells = schedule.edge_cells(edge).into_iter();
    Stairs::new(cells.map(|c| alternatives(table, table.at(c))).collect())
}

/// Returns the staircases of a step's result.
fn step(
    schedule: &Schedule,
    stairs: &StairsByClass,
    eliminated: Option<Eliminated>,
    factors: &[(ClassId, Places)],
    dims: &[usize],
    fineness: Fineness,
    limits: &Limits,
) -> Result<Stairs, SolveError> {
    let own: Vec<(f64, f64)> = match eliminated {
        Some(Eliminated {
            costs: Some(costs),
            set,
        }) => {
            let costs = &schedule.problem.costs[costs];
            let set = schedule.selection.sets[set].iter();
            set.map(|k| (costs.memory[*k], costs.time[*k])).collect()
        }
        Some(Eliminated { costs: None, set }) => {
            vec![(0.0, 0.0); schedule.selection.sets[set].len()]
        }
        None => vec![(0.0, 0.0)],
    };
    let views: Vec<Strides> = factors
        .iter()
        .map(|(class, places)| Strides::new(&schedule.classes[*class].1, places, dims.len()))
        .collect();
    // Replaces a missing factor; without any factor, the trace is the position of the choice.
    let units: Vec<Tuple> = (0..own.len())
        .map(|k| Tuple {
            memory: 0.0,
            time: 0.0,
            trace: k as u32,
        })
        .collect();
    let cells: Vec<Vec<Candidate>> = (0..dims.iter().product::<usize>())
        .into_par_iter()
        .map(|cell| {
            let place = unravel(cell, dims);
            let starts: Vec<usize> = views.iter().map(|v| v.start(&place)).collect();
            let side = |factor: usize, k: usize| match views.get(factor) {
                Some(view) => stairs[factors[factor].0].cell(starts[factor] + k * view.along),
                None => &units[k..=k],
            };
            let pairs: Vec<Pair> = (own.iter().enumerate())
                .map(|(k, own)| Pair {
                    own: *own,
                    a: side(0, k),
                    b: side(1, k),
                })
                .collect();
            union(&pairs, fineness, limits)
        })
        .collect::<Result<_, SolveError>>()?;
    Ok(Stairs::new(cells))
}

/// Returns the union of the pairs' products with the given fineness.
fn union(
    pairs: &[Pair],
    fineness: Fineness,
    limits: &Limits,
) -> Result<Vec<Candidate>, SolveError> {
    match fineness {
        Fineness::Exact => {
            let mut gather = Gather::new(limits);
            for pair in pairs {
                gather.moved_product(pair.own, pair.a, pair.b)?;
            }
            gather.settle()
        }
        Fineness::Coarse(resolution) => {
            limits.spend(pairs.iter().map(|p| p.a.len() * p.b.len()).sum())?;
            let union = union_of_products(pairs, &resolution);
            limits.keep(union.len())?;
            Ok(union)
        }
    }
}

/// Returns the strategy behind a tuple of the last step.
fn unroll(schedule: &Schedule, stairs: &StairsByClass, tuple: u32) -> Point {
    let problem = schedule.problem;
    let mut choices = IdVec::filled(ChoiceId::new(0), problem.operators.len());
    let mut edge_choices = IdVec::filled(0, problem.edges.len());
    let mut stack: Vec<(&Factor, u32)> = Vec::new();
    if let Some(root) = schedule.steps.last() {
        stack.push((&root.result, tuple));
    }
    while let Some((factor, tuple)) = stack.pop() {
        let (left, right) = stairs[factor.class].origins[tuple as usize];
        let step = match factor.origin {
            Origin::Edge(e) => {
                edge_choices[e] = left;
                continue;
            }
            Origin::Step(s) => &schedule.steps[s],
        };
        if let Some(operator) = step.operator {
            let position = match step.factors.first() {
                Some(first) => {
                    let cell = stairs[first.class].cell_of(left);
                    let place = unravel(cell, &schedule.classes[first.class].1);
                    let axis = first.scope.iter().position(|o| *o == operator);
                    axis.map_or(0, |axis| place[axis])
                }
                None => left as usize,
            };
            choices[operator] = schedule.selection.choices(operator)[position];
        }
        stack.extend(step.factors.iter().zip([left, right]));
    }
    Point::of(problem, choices, edge_choices)
}
