//! The tables of one minimisation: filled class by class, and read for the strategy behind them.

use rayon::prelude::*;

use crate::descent::descend;
use crate::error::SolveError;
use crate::min_plus::{step_table, Laid};
use crate::problem::{Costs, Problem, Table};
use crate::scalar::{point, Weights};
use crate::schedule::{Class, Eliminated, Schedule};
use crate::tracking::Point;
use crate::watch::Watch;

/// All costs of a problem as one number each.
pub struct Weighted {
    /// Per cost array.
    pub own: Vec<Vec<f64>>,
    /// Per table, the best alternative of each cell.
    pub tables: Vec<Vec<f64>>,
}

impl Weighted {
    pub fn new(problem: &Problem, weights: Weights) -> Self {
        let one = |costs: &Costs| -> Vec<f64> {
            let both = costs.memory.iter().zip(&costs.time);
            both.map(|(m, t)| weights.of(*m, *t)).collect()
        };
        let best = |table: &Table| -> Vec<f64> {
            let cells = 0..table.rows * table.columns;
            cells
                .map(|cell| weights.least(table, table.at(cell)))
                .collect()
        };
        Self {
            own: problem.costs.iter().map(one).collect(),
            tables: problem.tables.par_iter().map(best).collect(),
        }
    }
}

/// The contents of all classes of a schedule, in their order.
pub struct Filled<'s, 'p> {
    pub schedule: &'s Schedule<'p>,
    /// The weighted costs of each cost array.
    own: &'s [Vec<f64>],
    pub classes: Vec<Vec<f64>>,
}

impl<'s, 'p> Filled<'s, 'p> {
    pub fn new(
        schedule: &'s Schedule<'p>,
        weighted: &'s Weighted,
        watch: &Watch,
    ) -> Result<Self, SolveError> {
        let Weighted { own, tables } = weighted;
        let mut filled = Self {
            schedule,
            own,
            classes: Vec::with_capacity(schedule.classes.len()),
        };
        for (class, dims) in &schedule.classes {
            watch.poll("bounding", 0.5)?;
            let cells = match class {
                Class::Edge(edge) => {
                    let table = &tables[edge.table];
                    let cells = schedule.edge_cells(edge);
                    cells.into_iter().map(|cell| table[cell]).collect()
                }
                Class::Step {
                    eliminated,
                    factors,
                } => {
                    let own = filled.own_costs(*eliminated);
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

    /// A bound on all strategies and a strategy; they meet unless operators were copied.
    pub fn optimum(&self, weights: Weights, watch: &Watch) -> Result<(f64, Point), SolveError> {
        let schedule = self.schedule;
        let value = self.total();
        let mut choices = self.trace_back();
        if schedule.relaxed {
            let (problem, selection) = (schedule.problem, schedule.selection);
            descend(problem, selection, weights, &mut choices, watch)?;
        }
        Ok((value, point(schedule.problem, choices, weights)))
    }

    /// The cost of the best strategy, or of less where operators were copied.
    pub fn total(&self) -> f64 {
        let roots = self.schedule.roots();
        roots.map(|root| self.classes[root.class][0]).sum()
    }

    /// The weighted costs of an eliminated operator's selected choices; one 0 where none is.
    pub fn own_costs(&self, eliminated: Option<Eliminated>) -> Vec<f64> {
        let Some(Eliminated { costs, set }) = eliminated else {
            return vec![0.0];
        };
        let choices = self.schedule.selection.sets[set].iter();
        choices
            .map(|k| costs.map_or(0.0, |costs| self.own[costs][*k as usize]))
            .collect()
    }

    /// The choices behind the optimum, last eliminated first.
    fn trace_back(&self) -> Vec<u32> {
        let schedule = self.schedule;
        // Positions among the selected choices.
        let mut at = vec![0usize; schedule.problem.operators.len()];
        let mut steps = &schedule.steps[..];
        while let Some(last) = steps.last() {
            let Some(operator) = last.operator else {
                steps = &steps[..steps.len() - 1];
                continue;
            };
            // Copies of an operator stand side by side; all of them are asked.
            let copies = steps
                .iter()
                .rev()
                .take_while(|s| s.operator == Some(operator))
                .count();
            let (before, mine) = steps.split_at(steps.len() - copies);
            steps = before;
            let costs = &self.own[schedule.problem.operators[operator].costs];
            let total = |position: usize, k: u32| {
                let around: f64 = mine
                    .iter()
                    .flat_map(|step| &step.factors)
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
