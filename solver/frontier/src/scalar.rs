//! Exact minimisation of one weighted sum of memory and time over all strategies.
//!
//! cost = w_memory * memory + w_time * time is minimised by min-plus variable elimination: choices
//! that cannot be needed go first (`dead_end`), then operators in the order of a `schedule`.

use std::sync::Arc;

use rayon::prelude::*;

use crate::dead_end;
use crate::error::SolveError;
use crate::min_plus::{step_table, Laid};
use crate::problem::{Costs, Problem};
use crate::schedule::{Class, Eliminated, Schedule, Strides, Width};
use crate::selection::Selection;
use crate::tracking::Point;
use crate::watch::Watch;

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
    watch: &Watch,
) -> Result<(f64, Point), SolveError> {
    let Weighted { own, tables } = Weighted::new(problem, weights);
    let kept = dead_end::eliminate(problem, &own, &tables, watch)?;
    let schedule = Schedule::new(problem, &kept, WIDTH, watch)?;
    let filled = Filled::new(&schedule, &own, &tables, watch)?;
    let value = schedule
        .roots()
        .map(|(_, root)| filled.classes[root.result.class][0])
        .sum();
    let mut choices = filled.trace_back(&own);
    if schedule.relaxed {
        descend(problem, &kept, weights, &mut choices, watch)?;
    }
    Ok((value, point(problem, choices, weights)))
}

/// Rounds of [`descend`] at most.
const DESCENTS: usize = 8;

/// Let every operator take its best choice, its neighbours as they are, while that helps.
fn descend(
    problem: &Problem,
    kept: &Selection,
    weights: Weights,
    choices: &mut [u32],
    watch: &Watch,
) -> Result<(), SolveError> {
    let around = edges_around(problem);
    for _ in 0..DESCENTS {
        let mut changed = false;
        for (operator, edges) in around.iter().enumerate() {
            watch.poll("bounding", 0.5)?;
            let cost = |k: u32| local_cost(problem, choices, operator, k, edges, weights);
            let now = (cost(choices[operator]), choices[operator]);
            let best =
                kept.choices(operator)
                    .iter()
                    .map(|k| (cost(*k), *k))
                    .fold(
                        now,
                        |best, other| if other.0 < best.0 { other } else { best },
                    );
            changed |= best.1 != choices[operator];
            choices[operator] = best.1;
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

/// The edges at each operator.
pub fn edges_around(problem: &Problem) -> Vec<Vec<usize>> {
    let mut around: Vec<Vec<usize>> = vec![Vec::new(); problem.operators.len()];
    for (e, edge) in problem.edges.iter().enumerate() {
        around[edge.source].push(e);
        around[edge.target].push(e);
    }
    around
}

/// The weighted cost of an operator's choice and its edges, the other operators as they are.
pub fn local_cost(
    problem: &Problem,
    choices: &[u32],
    operator: usize,
    choice: u32,
    edges: &[usize],
    weights: Weights,
) -> f64 {
    let costs = &problem.costs[problem.operators[operator].costs];
    let mut total = weights.of(costs.memory[choice as usize], costs.time[choice as usize]);
    for &e in edges {
        let edge = &problem.edges[e];
        let at = |o: usize| if o == operator { choice } else { choices[o] } as usize;
        let table = &problem.tables[edge.table];
        total += problem
            .alternatives(edge, at(edge.source), at(edge.target))
            .map(|i| weights.of(table.memory[i], table.time[i]))
            .fold(f64::INFINITY, f64::min);
    }
    total
}

/// All costs of a problem as one number each.
struct Weighted {
    /// Per cost array.
    own: Vec<Vec<f64>>,
    /// Per table, the best alternative of each cell.
    tables: Vec<Vec<f64>>,
}

impl Weighted {
    fn new(problem: &Problem, weights: Weights) -> Self {
        let one = |costs: &Costs| -> Vec<f64> {
            let both = costs.memory.iter().zip(&costs.time);
            both.map(|(m, t)| weights.of(*m, *t)).collect()
        };
        Self {
            own: problem.costs.iter().map(one).collect(),
            tables: (0..problem.tables.len())
                .into_par_iter()
                .map(|t| best_alternatives(problem, t, weights))
                .collect(),
        }
    }
}

/// For every selected choice of every operator, a bound on the cost of any strategy with it.
///
/// The bound is the cost of the best such strategy, or of the best one with that choice in any
/// place that is alike. Indexed by operator, then by position in its selected choices.
pub fn marginals(
    schedule: &Schedule,
    weights: Weights,
    watch: &Watch,
) -> Result<Vec<Arc<Vec<f64>>>, SolveError> {
    let Weighted { own, tables } = Weighted::new(schedule.problem, weights);
    let filled = Filled::new(schedule, &own, &tables, watch)?;
    let by_class = filled.outside_in(&own, watch)?;
    let mut of_operator = vec![Arc::default(); schedule.problem.operators.len()];
    for step in &schedule.steps {
        if let Some(operator) = step.operator {
            of_operator[operator] = Arc::clone(&by_class[step.result.class]);
        }
    }
    Ok(of_operator)
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
                    let own = own_costs(schedule, *eliminated, own);
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

    /// Per class that eliminates an operator, the least cost of a strategy with each choice.
    ///
    /// `outside` of a cell is the least cost of everything that the cell does not hold, over all
    /// places where its class is used; it is found from the last class to the first.
    fn outside_in(
        &self,
        own: &[Vec<f64>],
        watch: &Watch,
    ) -> Result<Vec<Arc<Vec<f64>>>, SolveError> {
        let schedule = self.schedule;
        let mut outside: Vec<Vec<f64>> = self
            .classes
            .iter()
            .map(|cells| vec![f64::INFINITY; cells.len()])
            .collect();
        let total: f64 = schedule
            .roots()
            .map(|(_, root)| self.classes[root.result.class][0])
            .sum();
        for (_, root) in schedule.roots() {
            let class = root.result.class;
            outside[class][0] = total - self.classes[class][0];
        }
        let mut found: Vec<Arc<Vec<f64>>> = vec![Arc::default(); self.classes.len()];
        for (at, (class, dims)) in schedule.classes.iter().enumerate().rev() {
            let Class::Step {
                eliminated,
                factors,
            } = class
            else {
                continue;
            };
            let own = own_costs(schedule, *eliminated, own);
            let step = Inward {
                filled: self,
                own: &own,
                dims,
                factors,
                outside: &outside[at],
            };
            let mut best = match factors.first() {
                None => own.iter().map(|own| own + outside[at][0]).collect(),
                Some(_) => vec![f64::INFINITY; own.len()],
            };
            let inward: Vec<Vec<f64>> = (0..factors.len())
                .map(|f| step.outside_of(f, watch))
                .collect::<Result<_, SolveError>>()?;
            if let (Some((class, places)), Some(rest)) = (factors.first(), inward.first()) {
                let view = Strides::new(&schedule.classes[*class].1, places, dims.len());
                for (cell, (rest, inside)) in rest.iter().zip(&self.classes[*class]).enumerate() {
                    let k = cell / view.along.max(1) % own.len();
                    best[k] = best[k].min(rest + inside);
                }
            }
            for ((class, _), rest) in factors.iter().zip(inward) {
                for (least, rest) in outside[*class].iter_mut().zip(rest) {
                    *least = if rest < *least { rest } else { *least };
                }
            }
            found[at] = Arc::new(best);
        }
        Ok(found)
    }

    /// The choices behind the optimum, last eliminated first.
    fn trace_back(&self, own: &[Vec<f64>]) -> Vec<u32> {
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
            let costs = &own[schedule.problem.operators[operator].costs];
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

/// The weighted costs of an eliminated operator's selected choices; one 0 where none is.
fn own_costs(schedule: &Schedule, eliminated: Option<Eliminated>, own: &[Vec<f64>]) -> Vec<f64> {
    let Some(Eliminated { costs, set }) = eliminated else {
        return vec![0.0];
    };
    let choices = schedule.selection.sets[set].iter();
    choices
        .map(|k| costs.map_or(0.0, |costs| own[costs][*k as usize]))
        .collect()
}

/// A step seen from its result: what is outside of the result, and what is in it.
struct Inward<'a> {
    filled: &'a Filled<'a, 'a>,
    own: &'a [f64],
    dims: &'a [usize],
    factors: &'a [(usize, Vec<Option<usize>>)],
    outside: &'a [f64],
}

impl Inward<'_> {
    /// The least cost of everything but factor `f`, for each of its cells.
    fn outside_of(&self, f: usize, watch: &Watch) -> Result<Vec<f64>, SolveError> {
        let places = &self.factors[f].1;
        let mut missing = (0..self.dims.len()).filter(|axis| !places.contains(&Some(*axis)));
        match (missing.next(), missing.next()) {
            (Some(axis), None) => self.without_axis(f, axis, watch),
            _ => self.by_enumeration(f, watch),
        }
    }

    fn dims_of(&self, f: usize) -> &[usize] {
        &self.filled.schedule.classes[self.factors[f].0].1
    }

    /// A result axis that `f` does not have is minimised away like an operator.
    fn without_axis(
        &self,
        f: usize,
        missing: usize,
        watch: &Watch,
    ) -> Result<Vec<f64>, SolveError> {
        let (dims, places) = (self.dims_of(f), &self.factors[f].1);
        let axis_in_f = |place: &Option<usize>| places.iter().position(|p| p == place);
        let of_result: Vec<Option<usize>> = (0..self.dims.len())
            .map(|axis| axis_in_f(&Some(axis)))
            .collect();
        let mut laid = vec![Laid::new(self.outside, self.dims, &of_result, dims.len())];
        let mut later = Vec::new();
        for (other, (class, of_other)) in self.factors.iter().enumerate() {
            if other == f {
                continue;
            }
            let moved: Vec<Option<usize>> = of_other.iter().map(axis_in_f).collect();
            if of_other.contains(&Some(missing)) {
                let held = &self.filled.classes[*class];
                laid.push(Laid::new(held, self.dims_of(other), &moved, dims.len()));
            } else {
                later.push((
                    *class,
                    Strides::new(self.dims_of(other), &moved, dims.len()),
                ));
            }
        }
        let mut rest = step_table(&vec![0.0; self.dims[missing]], &laid, dims, watch)?;
        let operator = places.iter().position(Option::is_none);
        let mut place = vec![0; dims.len()];
        for rest in &mut rest {
            *rest += operator.map_or(0.0, |axis| self.own[place[axis]]);
            for (class, view) in &later {
                *rest += self.filled.classes[*class][view.start(&place)];
            }
            advance(&mut place, dims);
        }
        Ok(rest)
    }

    fn by_enumeration(&self, f: usize, watch: &Watch) -> Result<Vec<f64>, SolveError> {
        let views: Vec<Strides> = (0..self.factors.len())
            .map(|f| Strides::new(self.dims_of(f), &self.factors[f].1, self.dims.len()))
            .collect();
        let mut found = vec![f64::INFINITY; self.filled.classes[self.factors[f].0].len()];
        let mut place = vec![0; self.dims.len()];
        for (cell, outside) in self.outside.iter().enumerate() {
            if cell % 256 == 0 {
                watch.poll("bounding", 0.5)?;
            }
            let starts: Vec<usize> = views.iter().map(|v| v.start(&place)).collect();
            for (k, own) in self.own.iter().enumerate() {
                let mut rest = outside + own;
                for (other, view) in views.iter().enumerate().filter(|(other, _)| *other != f) {
                    let cells = &self.filled.classes[self.factors[other].0];
                    rest += cells[starts[other] + k * view.along];
                }
                let least = &mut found[starts[f] + k * views[f].along];
                *least = least.min(rest);
            }
            advance(&mut place, self.dims);
        }
        Ok(found)
    }
}

/// The next cell in row-major order.
fn advance(place: &mut [usize], dims: &[usize]) {
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at += 1;
        if *at < *dim {
            return;
        }
        *at = 0;
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
