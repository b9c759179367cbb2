//! The tables of one minimisation: filled class by class, then traced back to a strategy.

use crate::bounds::descent::descend;
use crate::bounds::min_plus::{step_table, Laid};
use crate::bounds::weighted::Weighted;
use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, CostsId, IdVec, OperatorId};
use crate::model::point::Point;
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::tracking::schedule::{Class, ClassId, Eliminated, Schedule};

/// The contents of all classes of a schedule, in order.
pub struct Filled<'s, 'p> {
    pub schedule: &'s Schedule<'p>,
    /// The weighted costs of each cost array.
    own: &'s IdVec<CostsId, IdVec<ChoiceId, f64>>,
    pub classes: IdVec<ClassId, Vec<f64>>,
}

impl<'s, 'p> Filled<'s, 'p> {
    /// Fills the tables, class by class.
    ///
    /// # Errors
    ///
    /// Returns an error when the solve must stop.
    pub fn new(
        schedule: &'s Schedule<'p>,
        weighted: &'s Weighted,
        watch: &Watch,
    ) -> Result<Self, SolveError> {
        let Weighted { own, tables } = weighted;
        let mut filled = Self {
            schedule,
            own,
            classes: IdVec::default(),
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
                            let cells = &filled.classes[*class];
                            Laid::new(cells, &schedule.classes[*class].1, places, dims.len())
                        })
                        .collect();
                    step_table(&own, &factors, dims, watch)?
                }
            };
            filled.classes.push(cells);
        }
        Ok(filled)
    }

    /// Returns a lower bound on the cost of all strategies, and a strategy; its cost equals the
    /// bound unless operators were copied.
    ///
    /// # Errors
    ///
    /// Returns an error when the solve must stop.
    pub fn optimum(&self, weights: Weights, watch: &Watch) -> Result<(f64, Point), SolveError> {
        let schedule = self.schedule;
        let value = self.total();
        let mut choices = self.trace_back();
        if schedule.relaxed {
            let (problem, selection) = (schedule.problem, schedule.selection);
            descend(problem, selection, weights, &mut choices, watch)?;
        }
        Ok((value, Point::cheapest(schedule.problem, choices, weights)))
    }

    /// Returns the cost of the best strategy, or a lower bound on it where operators were copied.
    pub fn total(&self) -> f64 {
        let roots = self.schedule.roots();
        roots.map(|root| self.classes[root.class][0]).sum()
    }

    /// Returns the weighted costs of an eliminated operator's selected choices; a single 0 where no
    /// operator is eliminated.
    pub fn own_costs(&self, eliminated: Option<Eliminated>) -> Vec<f64> {
        let Some(Eliminated { costs, set }) = eliminated else {
            return vec![0.0];
        };
        let choices = self.schedule.selection.sets[set].iter();
        choices
            .map(|k| costs.map_or(0.0, |costs| self.own[costs][*k]))
            .collect()
    }

    /// Returns the choices of the optimum; operators eliminated last are decided first.
    fn trace_back(&self) -> IdVec<OperatorId, ChoiceId> {
        let schedule = self.schedule;
        // Positions among the selected choices.
        let mut at: IdVec<OperatorId, usize> = IdVec::filled(0, schedule.problem.operators.len());
        let mut steps = &schedule.steps[..];
        while let Some(last) = steps.last() {
            let Some(operator) = last.operator else {
                steps = &steps[..steps.len() - 1];
                continue;
            };
            // Copies of an operator follow each other; all of them count.
            let copies = steps
                .iter()
                .rev()
                .take_while(|s| s.operator == Some(operator))
                .count();
            let (earlier, of_operator) = steps.split_at(steps.len() - copies);
            steps = earlier;
            let costs = &self.own[schedule.problem.operators[operator].costs];
            let total = |position: usize, k: ChoiceId| {
                let around: f64 = of_operator
                    .iter()
                    .flat_map(|step| &step.factors)
                    .map(|f| {
                        let dims = &schedule.classes[f.class].1;
                        let cell = f.scope.iter().zip(dims).fold(0, |cell, (o, dim)| {
                            cell * dim + if *o == operator { position } else { at[*o] }
                        });
                        self.classes[f.class][cell]
                    })
                    .sum();
                costs[k] + around
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
        at.enumerate()
            .map(|(o, position)| schedule.selection.choices(o)[*position])
            .collect()
    }
}
