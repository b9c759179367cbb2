//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: choices
//! that cannot be needed go first (`dead_end`), then an operator and all tables that touch it
//! become one table over its neighbours, until none is left. Tables that are built alike
//! (repeated layers) are one class and computed once.

use std::collections::{BTreeSet, HashMap};

use crate::dead_end::{self, Kept};
use crate::error::SolveError;
use crate::min_plus::{step_table, Laid};
use crate::problem::Problem;
use crate::tracking::Point;
use crate::watch::Watch;

/// The most work (cells times choices) that one elimination may take.
const WIDEST_STEP: f64 = 5e10;
/// The most cells that one table may have, and all tables of one minimisation together.
const LARGEST_TABLE: f64 = 1e8;
const ALL_TABLES: f64 = 2.5e8;

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
    let plan = Plan::new(problem, &kept, watch)?;
    let filled = plan.fill(&own, &tables, watch)?;
    let value = plan
        .steps
        .iter()
        .filter(|s| s.result.scope.is_empty())
        .map(|s| filled[s.result.class][0])
        .sum();
    let choices = plan.trace_back(&filled, &own);
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

/// A table over some operators' kept choices, as it is built; equal classes have equal contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Class {
    /// An edge's best alternative.
    Edge {
        table: usize,
        rows: usize,
        columns: usize,
        source_set: usize,
        target_set: usize,
    },
    /// An eliminated operator, and each factor with the place of each of its axes (`None`: the
    /// eliminated operator; else an axis of the result).
    Step {
        costs: usize,
        set: usize,
        factors: Vec<(usize, Vec<Option<usize>>)>,
    },
}

/// A class used for concrete operators.
#[derive(Debug, Clone)]
struct Factor {
    class: usize,
    scope: Vec<usize>,
}

struct Step {
    operator: usize,
    factors: Vec<Factor>,
    result: Factor,
}

/// The order in which the operators of a problem are eliminated.
struct Plan<'a> {
    problem: &'a Problem,
    kept: &'a Kept,
    classes: Vec<(Class, Vec<usize>)>,
    known: HashMap<Class, usize>,
    steps: Vec<Step>,
    /// Cells of all classes together.
    cells: f64,
}

impl<'a> Plan<'a> {
    /// Find the order: always the operator whose elimination is the least work.
    ///
    /// Errs with `OverBudget` when the graph is too wide for exact elimination.
    fn new(problem: &'a Problem, kept: &'a Kept, watch: &Watch) -> Result<Self, SolveError> {
        let mut plan = Self {
            problem,
            kept,
            classes: Vec::new(),
            known: HashMap::new(),
            steps: Vec::new(),
            cells: 0.0,
        };
        let mut touching = plan.edge_factors();
        let mut work: Vec<f64> = (0..problem.operators.len())
            .map(|o| plan.work(o, &touching))
            .collect();
        // Work is positive, so that its bits are in its order.
        let mut queue: BTreeSet<(u64, usize)> = work
            .iter()
            .enumerate()
            .map(|(o, w)| (w.to_bits(), o))
            .collect();
        while let Some((_, operator)) = queue.pop_first() {
            watch.poll("bounding", 0.5)?;
            plan.check_width(operator, work[operator], &touching)?;
            let factors = std::mem::take(&mut touching[operator]);
            let result = plan.result(operator, &factors);
            for &o in &result.scope {
                touching[o].retain(|f| !f.scope.contains(&operator));
                touching[o].push(result.clone());
            }
            for &o in &result.scope {
                queue.remove(&(work[o].to_bits(), o));
                work[o] = plan.work(o, &touching);
                queue.insert((work[o].to_bits(), o));
            }
            plan.steps.push(Step {
                operator,
                factors,
                result,
            });
        }
        Ok(plan)
    }

    fn edge_factors(&mut self) -> Vec<Vec<Factor>> {
        let mut touching: Vec<Vec<Factor>> = vec![Vec::new(); self.problem.operators.len()];
        for edge in &self.problem.edges {
            let scope = vec![edge.source, edge.target];
            let class = Class::Edge {
                table: edge.table,
                rows: edge.rows,
                columns: edge.columns,
                source_set: self.kept.of[edge.source],
                target_set: self.kept.of[edge.target],
            };
            let class = self.intern(class, &scope);
            for o in [edge.source, edge.target] {
                touching[o].push(Factor {
                    class,
                    scope: scope.clone(),
                });
            }
        }
        touching
    }

    fn choices(&self, operator: usize) -> usize {
        self.kept.choices(operator).len()
    }

    /// The table that takes the place of an operator and its factors.
    fn result(&mut self, operator: usize, factors: &[Factor]) -> Factor {
        let mut scope = scope(operator, factors);
        // The widest axis last: the innermost loop runs along it.
        scope.sort_by_key(|o| (self.choices(*o), *o));
        let places = factors
            .iter()
            .map(|f| {
                let axes = f.scope.iter().map(|o| scope.iter().position(|s| s == o));
                (f.class, axes.collect())
            })
            .collect();
        let class = Class::Step {
            costs: self.problem.operators[operator].costs,
            set: self.kept.of[operator],
            factors: places,
        };
        let class = self.intern(class, &scope);
        Factor { class, scope }
    }

    fn intern(&mut self, class: Class, scope: &[usize]) -> usize {
        if let Some(&id) = self.known.get(&class) {
            return id;
        }
        let dims: Vec<usize> = scope.iter().map(|o| self.choices(*o)).collect();
        self.cells += dims.iter().map(|d| *d as f64).product::<f64>();
        self.classes.push((class.clone(), dims));
        self.known.insert(class, self.classes.len() - 1);
        self.classes.len() - 1
    }

    fn work(&self, operator: usize, touching: &[Vec<Factor>]) -> f64 {
        let scope = scope(operator, &touching[operator]);
        let cells: f64 = scope.iter().map(|o| self.choices(*o) as f64).product();
        cells * self.choices(operator) as f64
    }

    fn check_width(
        &self,
        operator: usize,
        work: f64,
        touching: &[Vec<Factor>],
    ) -> Result<(), SolveError> {
        let cells = work / self.choices(operator) as f64;
        if work > WIDEST_STEP || cells > LARGEST_TABLE || self.cells + cells > ALL_TABLES {
            return Err(SolveError::OverBudget(format!(
                "operator {:?} is joined too widely to be eliminated exactly ({} neighbours left, a table of {cells:.1e} cells)",
                self.problem.operators[operator].name,
                scope(operator, &touching[operator]).len(),
            )));
        }
        Ok(())
    }

    /// The contents of all classes, in their order.
    fn fill(
        &self,
        own: &[Vec<f64>],
        tables: &[Vec<f64>],
        watch: &Watch,
    ) -> Result<Vec<Vec<f64>>, SolveError> {
        let mut filled: Vec<Vec<f64>> = Vec::with_capacity(self.classes.len());
        for (class, dims) in &self.classes {
            watch.poll("bounding", 0.5)?;
            let cells = match class {
                Class::Edge {
                    table,
                    rows,
                    columns,
                    source_set,
                    target_set,
                } => {
                    let width = self.problem.tables[*table].columns;
                    let at = |map: usize, set: usize| -> Vec<usize> {
                        let map = &self.problem.maps[map];
                        let set = self.kept.sets[set].iter();
                        set.map(|k| map[*k as usize] as usize).collect()
                    };
                    let columns = at(*columns, *target_set);
                    at(*rows, *source_set)
                        .into_iter()
                        .flat_map(|r| columns.iter().map(move |c| r * width + c))
                        .map(|cell| tables[*table][cell])
                        .collect()
                }
                Class::Step {
                    costs,
                    set,
                    factors,
                } => {
                    let own: Vec<f64> = self.kept.sets[*set]
                        .iter()
                        .map(|k| own[*costs][*k as usize])
                        .collect();
                    let factors: Vec<Laid> = factors
                        .iter()
                        .map(|(class, places)| {
                            let held = &filled[*class];
                            Laid::new(held, &self.classes[*class].1, places, dims.len())
                        })
                        .collect();
                    step_table(&own, &factors, dims, watch)?
                }
            };
            filled.push(cells);
        }
        Ok(filled)
    }

    /// The choices behind the optimum, last eliminated first.
    fn trace_back(&self, filled: &[Vec<f64>], own: &[Vec<f64>]) -> Vec<u32> {
        // Positions among the kept choices.
        let mut at = vec![0usize; self.problem.operators.len()];
        for step in self.steps.iter().rev() {
            let costs = &own[self.problem.operators[step.operator].costs];
            let total = |position: usize, k: u32| {
                let around: f64 = step
                    .factors
                    .iter()
                    .map(|f| {
                        let dims = &self.classes[f.class].1;
                        let cell = f.scope.iter().zip(dims).fold(0, |cell, (o, dim)| {
                            let mine = *o == step.operator;
                            cell * dim + if mine { position } else { at[*o] }
                        });
                        filled[f.class][cell]
                    })
                    .sum();
                costs[k as usize] + around
            };
            let best = self
                .kept
                .choices(step.operator)
                .iter()
                .enumerate()
                .map(|(position, k)| (position, total(position, *k)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            at[step.operator] = best.map_or(0, |(position, _)| position);
        }
        let each = at.iter().enumerate();
        each.map(|(o, position)| self.kept.choices(o)[*position])
            .collect()
    }
}

/// The other operators that factors of `operator` touch, ascending.
fn scope(operator: usize, factors: &[Factor]) -> Vec<usize> {
    let mut scope: Vec<usize> = factors
        .iter()
        .flat_map(|f| f.scope.iter().copied())
        .filter(|o| *o != operator)
        .collect();
    scope.sort_unstable();
    scope.dedup();
    scope
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
