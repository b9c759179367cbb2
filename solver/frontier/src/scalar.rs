//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: choices
//! that cannot be needed go first (`dead_end`), then operators in the order of a `schedule`.

use crate::dead_end;
use crate::error::SolveError;
use crate::min_plus::{step_table, Laid};
use crate::problem::Problem;
use crate::schedule::{Class, Schedule, Width};
use crate::tracking::Point;
use crate::watch::Watch;

const WIDTH: Width = Width {
    step_work: 5e10,
    table_cells: 1e8,
    all_cells: 2.5e8,
    pairs: false,
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
}

/// The strategy with the least weighted cost, and that cost.
pub fn minimise(
    problem: &Problem,
    weights: Weights,
    watch: &Watch,
) -> Result<(f64, Point), SolveError> {
    let own: Vec<Vec<f64>> = problem
        .costs
        .iter()
        .map(|c| {
            c.memory
                .iter()
                .zip(&c.time)
                .map(|(m, t)| weights.of(*m, *t))
                .collect()
        })
        .collect();
    let tables: Vec<Vec<f64>> = (0..problem.tables.len())
        .map(|t| best_alternatives(problem, t, weights))
        .collect();
    let kept = dead_end::eliminate(problem, &own, &tables, watch)?;
    let schedule = Schedule::new(problem, &kept, WIDTH, watch)?;
    let filled = Filled::new(&schedule, &own, &tables, watch)?;
    let value = schedule
        .roots()
        .map(|(_, root)| filled.classes[root.result.class][0])
        .sum();
    let choices = filled.trace_back(&own);
    Ok((value, point(problem, choices, weights)))
}

/// Per cell of a table, the cost of its best alternative.
fn best_alternatives(problem: &Problem, table: usize, weights: Weights) -> Vec<f64> {
    let table = &problem.tables[table];
    table
        .starts
        .windows(2)
        .map(|w| {
            (w[0] as usize..w[1] as usize)
                .map(|at| weights.of(table.memory[at], table.time[at]))
                .fold(f64::INFINITY, f64::min)
        })
        .collect()
}

/// The contents of all classes of a schedule, in their order.
struct Filled<'s, 'p> {
    schedule: &'s Schedule<'p>,
    classes: Vec<Vec<f64>>,
}

impl<'s, 'p> Filled<'s, 'p> {
    fn new(
        schedule: &'s Schedule<'p>,
        own: &[Vec<f64>],
        tables: &[Vec<f64>],
        watch: &Watch,
    ) -> Result<Self, SolveError> {
        let mut filled = Self {
            schedule,
            classes: Vec::with_capacity(schedule.classes.len()),
        };
        for (class, dims) in &schedule.classes {
            watch.poll("bounding", 0.5)?;
            let cells = match class {
                Class::Edge { .. } => filled.edge(class, tables),
                Class::Step {
                    eliminated,
                    factors,
                } => {
                    let own: Vec<f64> = match eliminated {
                        Some((costs, set)) => {
                            let choices = schedule.selection.sets[*set].iter();
                            choices.map(|k| own[*costs][*k as usize]).collect()
                        }
                        None => vec![0.0],
                    };
                    let factors: Vec<Laid> = factors
                        .iter()
                        .map(|(class, places)| {
                            let held = &filled.classes[*class];
                            Laid::new(held, &schedule.classes[*class].1, places, dims.len())
                        })
                        .collect();
                    step_table(&own, &factors, dims, watch)?
                }
            };
            filled.classes.push(cells);
        }
        Ok(filled)
    }

    /// The best alternative of every pair of selected choices.
    fn edge(&self, class: &Class, tables: &[Vec<f64>]) -> Vec<f64> {
        let Class::Edge {
            table,
            rows,
            columns,
            source_set,
            target_set,
        } = class
        else {
            return Vec::new();
        };
        let schedule = self.schedule;
        let width = schedule.problem.tables[*table].columns;
        let at = |map: usize, set: usize| -> Vec<usize> {
            let map = &schedule.problem.maps[map];
            let set = schedule.selection.sets[set].iter();
            set.map(|k| map[*k as usize] as usize).collect()
        };
        let columns = at(*columns, *target_set);
        at(*rows, *source_set)
            .into_iter()
            .flat_map(|r| columns.iter().map(move |c| r * width + c))
            .map(|cell| tables[*table][cell])
            .collect()
    }

    /// The choices behind the optimum, last eliminated first.
    fn trace_back(&self, own: &[Vec<f64>]) -> Vec<u32> {
        let schedule = self.schedule;
        // Positions among the selected choices.
        let mut at = vec![0usize; schedule.problem.operators.len()];
        for step in schedule.steps.iter().rev() {
            let Some(operator) = step.operator else {
                continue;
            };
            let costs = &own[schedule.problem.operators[operator].costs];
            let total = |position: usize, k: u32| {
                let around: f64 = step
                    .factors
                    .iter()
                    .map(|f| {
                        let dims = &schedule.classes[f.class].1;
                        let cell = f.scope.iter().zip(dims).fold(0, |cell, (o, dim)| {
                            let mine = *o == operator;
                            cell * dim + if mine { position } else { at[*o] }
                        });
                        self.classes[f.class][cell]
                    })
                    .sum();
                costs[k as usize] + around
            };
            let best = schedule
                .selection
                .choices(operator)
                .iter()
                .enumerate()
                .map(|(position, k)| (position, total(position, *k)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            at[operator] = best.map_or(0, |(position, _)| position);
        }
        let each = at.iter().enumerate();
        each.map(|(o, position)| schedule.selection.choices(o)[*position])
            .collect()
    }
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
    let (memory, time) = problem.evaluate(&choices, &edge_choices);
    Point {
        memory,
        time,
        choices,
        edge_choices,
    }
}
