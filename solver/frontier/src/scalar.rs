//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: an
//! operator and all tables that touch it become one table over its neighbours. The order and
//! the shapes do not depend on the weights and are found once; tables that are built alike
//! (repeated layers) are one class and computed once per pair of weights.

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;

use crate::error::SolveError;
use crate::problem::Problem;
use crate::tracking::Point;
use crate::watch::Watch;

/// The most work (cells times choices) that one elimination may take.
const WIDEST_STEP: f64 = 2e10;
/// The most cells that one table may have.
const LARGEST_TABLE: f64 = 2e8;

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

/// A table over some operators' choices, as it is built; equal classes have equal contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Class {
    /// An edge's best alternative: table, row map, column map.
    Edge(usize, usize, usize),
    /// An eliminated operator: its costs, and each factor with the place of each of its axes
    /// (`None`: the eliminated operator; else an axis of the result).
    Step(usize, Vec<(usize, Vec<Option<usize>>)>),
}

/// A class used for concrete operators.
#[derive(Debug, Clone)]
struct Factor {
    class: usize,
    scope: Vec<usize>,
}

#[derive(Debug)]
struct Step {
    operator: usize,
    factors: Vec<Factor>,
    result: Factor,
}

/// The elimination order of a problem, ready to be run with any weights.
pub struct Scalar<'p> {
    problem: &'p Problem,
    classes: Vec<(Class, Vec<usize>)>,
    steps: Vec<Step>,
}

impl<'p> Scalar<'p> {
    /// Find the order: always the operator whose elimination is the least work.
    ///
    /// Errs with `OverBudget` when the graph is too wide for exact elimination.
    pub fn new(problem: &'p Problem, watch: &Watch) -> Result<Self, SolveError> {
        let mut scalar = Self {
            problem,
            classes: Vec::new(),
            steps: Vec::new(),
        };
        let mut known = HashMap::new();
        let mut touching: Vec<Vec<Factor>> = vec![Vec::new(); problem.operators.len()];
        for edge in &problem.edges {
            let scope = vec![edge.source, edge.target];
            let dims = scope.iter().map(|o| problem.choices(*o)).collect();
            let class = Class::Edge(edge.table, edge.rows, edge.columns);
            let class = scalar.intern(&mut known, class, dims);
            for o in [edge.source, edge.target] {
                touching[o].push(Factor {
                    class,
                    scope: scope.clone(),
                });
            }
        }
        let mut left: BTreeSet<usize> = (0..problem.operators.len()).collect();
        let mut work: Vec<f64> = (0..problem.operators.len())
            .map(|o| scalar.work(o, &touching))
            .collect();
        while let Some(&operator) = left
            .iter()
            .min_by(|a, b| work[**a].total_cmp(&work[**b]).then(a.cmp(b)))
        {
            watch.poll("ordering", 0.0)?;
            let scope = scalar.scope(operator, &touching);
            let dims: Vec<usize> = scope.iter().map(|o| problem.choices(*o)).collect();
            let cells: f64 = dims.iter().map(|d| *d as f64).product();
            if work[operator] > WIDEST_STEP || cells > LARGEST_TABLE {
                return Err(SolveError::OverBudget(format!(
                    "operator {} cannot be eliminated exactly: it has {} neighbours and a table of {cells:.2e} cells",
                    problem.operators[operator].name,
                    scope.len(),
                )));
            }
            left.remove(&operator);
            let factors = std::mem::take(&mut touching[operator]);
            let places = factors
                .iter()
                .map(|f| {
                    let axes = f.scope.iter().map(|o| scope.iter().position(|s| s == o));
                    (f.class, axes.collect())
                })
                .collect();
            let class = Class::Step(problem.operators[operator].costs, places);
            let class = scalar.intern(&mut known, class, dims);
            let result = Factor {
                class,
                scope: scope.clone(),
            };
            for &o in &scope {
                touching[o].retain(|f| !f.scope.contains(&operator));
                touching[o].push(result.clone());
            }
            for &o in &scope {
                work[o] = scalar.work(o, &touching);
            }
            scalar.steps.push(Step {
                operator,
                factors,
                result,
            });
        }
        Ok(scalar)
    }

    fn intern(
        &mut self,
        known: &mut HashMap<Class, usize>,
        class: Class,
        dims: Vec<usize>,
    ) -> usize {
        if let Some(&id) = known.get(&class) {
            return id;
        }
        self.classes.push((class.clone(), dims));
        known.insert(class, self.classes.len() - 1);
        self.classes.len() - 1
    }

    fn scope(&self, operator: usize, touching: &[Vec<Factor>]) -> Vec<usize> {
        let mut scope: Vec<usize> = touching[operator]
            .iter()
            .flat_map(|f| f.scope.iter().copied())
            .filter(|o| *o != operator)
            .collect();
        scope.sort_unstable();
        scope.dedup();
        scope
    }

    fn work(&self, operator: usize, touching: &[Vec<Factor>]) -> f64 {
        self.scope(operator, touching)
            .iter()
            .map(|o| self.problem.choices(*o) as f64)
            .product::<f64>()
            * self.problem.choices(operator) as f64
    }

    /// The strategy with the least weighted cost, and that cost.
    pub fn minimise(&self, weights: Weights, watch: &Watch) -> Result<(f64, Point), SolveError> {
        let mut tables: Vec<Vec<f64>> = Vec::with_capacity(self.classes.len());
        for (class, dims) in &self.classes {
            watch.poll("bounding", 0.5)?;
            let table = match class {
                Class::Edge(table, rows, columns) => {
                    self.edge_table(*table, *rows, *columns, weights)
                }
                Class::Step(costs, factors) => self.step_table(*costs, factors, dims, &tables, weights),
            };
            tables.push(table);
        }
        let value = self
            .steps
            .iter()
            .filter(|s| s.result.scope.is_empty())
            .map(|s| tables[s.result.class][0])
            .sum();
        Ok((value, self.trace_back(&tables, weights)))
    }

    fn operator_costs(&self, costs: usize, weights: Weights) -> Vec<f64> {
        let costs = &self.problem.costs[costs];
        let each = costs.memory.iter().zip(&costs.time);
        each.map(|(m, t)| weights.of(*m, *t)).collect()
    }

    fn edge_table(&self, table: usize, rows: usize, columns: usize, weights: Weights) -> Vec<f64> {
        let table = &self.problem.tables[table];
        let best: Vec<f64> = table
            .starts
            .windows(2)
            .map(|w| {
                (w[0] as usize..w[1] as usize)
                    .map(|at| weights.of(table.memory[at], table.time[at]))
                    .fold(f64::INFINITY, f64::min)
            })
            .collect();
        let columns = &self.problem.maps[columns];
        let mut out = Vec::with_capacity(self.problem.maps[rows].len() * columns.len());
        for &row in &self.problem.maps[rows] {
            let row = &best[row as usize * table.columns..(row as usize + 1) * table.columns];
            out.extend(columns.iter().map(|c| row[*c as usize]));
        }
        out
    }

    /// min over k of own(k) + the factors, for every cell of the neighbours' choices.
    fn step_table(
        &self,
        costs: usize,
        factors: &[(usize, Vec<Option<usize>>)],
        dims: &[usize],
        tables: &[Vec<f64>],
        weights: Weights,
    ) -> Vec<f64> {
        let own = self.operator_costs(costs, weights);
        let views: Vec<View> = factors
            .iter()
            .map(|(class, axes)| View::new(&tables[*class], &self.classes[*class].1, axes, dims))
            .collect();
        let Some((&inner, outer)) = dims.split_last() else {
            let best = (0..own.len())
                .map(|k| own[k] + views.iter().map(|v| v.data[k * v.eliminated]).sum::<f64>())
                .fold(f64::INFINITY, f64::min);
            return vec![best];
        };
        let last = dims.len() - 1;
        let (with_inner, without): (Vec<&View>, Vec<&View>) =
            views.iter().partition(|v| v.axes[last] > 0);
        let (fixed, varying): (Vec<&View>, Vec<&View>) = with_inner
            .into_iter()
            .partition(|v| v.axes[..last].iter().all(|s| *s == 0));
        // Factors of the eliminated operator and the innermost neighbour alone: summed once.
        let mut shared = vec![0.0; own.len() * inner];
        for view in fixed {
            for (k, row) in shared.chunks_mut(inner).enumerate() {
                for (j, cell) in row.iter_mut().enumerate() {
                    *cell += view.data[k * view.eliminated + j * view.axes[last]];
                }
            }
        }
        let mut out = vec![f64::INFINITY; outer.iter().product::<usize>() * inner];
        out.par_chunks_mut(inner).enumerate().for_each(|(row, best)| {
            let place = unravel(row, outer);
            for (k, mine) in own.iter().enumerate() {
                let base = mine
                    + without
                        .iter()
                        .map(|v| v.data[v.offset(&place) + k * v.eliminated])
                        .sum::<f64>();
                let cells = &shared[k * inner..(k + 1) * inner];
                if varying.is_empty() {
                    for (best, cell) in best.iter_mut().zip(cells) {
                        *best = best.min(base + cell);
                    }
                } else {
                    let starts: Vec<usize> = varying
                        .iter()
                        .map(|v| v.offset(&place) + k * v.eliminated)
                        .collect();
                    for (j, (best, cell)) in best.iter_mut().zip(cells).enumerate() {
                        let more: f64 = varying
                            .iter()
                            .zip(&starts)
                            .map(|(v, start)| v.data[start + j * v.axes[last]])
                            .sum();
                        *best = best.min(base + cell + more);
                    }
                }
            }
        });
        out
    }

    /// The choices behind the optimum, last eliminated first.
    fn trace_back(&self, tables: &[Vec<f64>], weights: Weights) -> Point {
        let mut choices = vec![0u32; self.problem.operators.len()];
        for step in self.steps.iter().rev() {
            let own = self.operator_costs(self.problem.operators[step.operator].costs, weights);
            let best = (0..own.len())
                .map(|k| {
                    let around: f64 = step
                        .factors
                        .iter()
                        .map(|f| {
                            let dims = &self.classes[f.class].1;
                            let at = f.scope.iter().zip(dims).fold(0, |at, (o, dim)| {
                                let choice = if *o == step.operator {
                                    k
                                } else {
                                    choices[*o] as usize
                                };
                                at * dim + choice
                            });
                            tables[f.class][at]
                        })
                        .sum();
                    own[k] + around
                })
                .enumerate()
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .map_or(0, |(k, _)| k);
            choices[step.operator] = best as u32;
        }
        point(self.problem, choices, weights)
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

/// A factor's table with its strides: of the eliminated operator and of each axis of the result.
struct View<'a> {
    data: &'a [f64],
    eliminated: usize,
    axes: Vec<usize>,
}

impl<'a> View<'a> {
    fn new(data: &'a [f64], dims: &[usize], places: &[Option<usize>], result: &[usize]) -> Self {
        let mut view = Self {
            data,
            eliminated: 0,
            axes: vec![0; result.len()],
        };
        let mut stride = 1;
        for (dim, place) in dims.iter().zip(places).rev() {
            match place {
                None => view.eliminated = stride,
                // An axis of one choice moves nowhere; any stride but 0 marks it as present.
                Some(axis) => view.axes[*axis] = stride,
            }
            stride *= dim;
        }
        view
    }

    fn offset(&self, place: &[usize]) -> usize {
        place.iter().zip(&self.axes).map(|(p, s)| p * s).sum()
    }
}

fn unravel(mut row: usize, dims: &[usize]) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at = row % dim;
        row /= dim;
    }
    place
}
