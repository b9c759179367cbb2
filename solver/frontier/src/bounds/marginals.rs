//! The least cost of any strategy with each choice, from the tables of a minimisation, outside in.

use std::sync::Arc;

use crate::bounds::min_plus::{step_table, Laid};
use crate::bounds::tables::Filled;
use crate::bounds::weighted::Weighted;
use crate::model::error::SolveError;
use crate::model::ids::{IdVec, OperatorId};
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::tracking::schedule::{Class, ClassId, Places, Schedule};
use crate::tracking::strides::Strides;

/// Per operator, one number for each of its selected choices, by position; equal lists are shared.
pub type Marginals = IdVec<OperatorId, Arc<Vec<f64>>>;

/// Returns, for every selected choice of every operator, a lower bound on the cost of any strategy
/// with it.
///
/// The bound is the cost of the best such strategy, or of the best one with that choice in any
/// equivalent place.
///
/// # Errors
///
/// Returns an error when the solve must stop.
pub fn marginals(
    schedule: &Schedule,
    weights: Weights,
    watch: &Watch,
) -> Result<Marginals, SolveError> {
    let weighted = Weighted::new(schedule.problem, weights);
    let filled = Filled::new(schedule, &weighted, watch)?;
    of_operators(&filled, watch)
}

/// Returns the [`marginals`] of filled tables; if an operator has several copies, their largest
/// bounds.
///
/// # Errors
///
/// Returns an error when the solve must stop.
pub fn of_operators(filled: &Filled, watch: &Watch) -> Result<Marginals, SolveError> {
    let by_class = outside_in(filled, watch)?;
    let operators = filled.schedule.problem.operators.len();
    let mut by_operator = Marginals::filled(Arc::default(), operators);
    for step in &filled.schedule.steps {
        let Some(operator) = step.operator else {
            continue;
        };
        let bounds = &by_class[step.result.class];
        if by_operator[operator].is_empty() {
            by_operator[operator] = Arc::clone(bounds);
        } else {
            let both = by_operator[operator].iter().zip(bounds.iter());
            by_operator[operator] = Arc::new(both.map(|(a, b)| a.max(*b)).collect());
        }
    }
    Ok(by_operator)
}

/// Returns, per class that eliminates an operator, the least cost of a strategy with each choice.
///
/// `outside` of a cell is the least cost of everything that the cell does not contain, over all
/// places where its class is used; it is computed from the last class to the first.
fn outside_in(filled: &Filled, watch: &Watch) -> Result<IdVec<ClassId, Arc<Vec<f64>>>, SolveError> {
    let schedule = filled.schedule;
    let mut outside: IdVec<ClassId, Vec<f64>> = filled
        .classes
        .iter()
        .map(|cells| vec![f64::INFINITY; cells.len()])
        .collect();
    let total = filled.total();
    for root in schedule.roots() {
        outside[root.class][0] = total - filled.classes[root.class][0];
    }
    let mut by_class = IdVec::filled(Arc::default(), filled.classes.len());
    for (at, (class, dims)) in schedule.classes.enumerate().rev() {
        let Class::Step {
            eliminated,
            factors,
        } = class
        else {
            continue;
        };
        let own = filled.own_costs(*eliminated);
        let step = Inward {
            filled,
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
            for (cell, (rest, inside)) in rest.iter().zip(&filled.classes[*class]).enumerate() {
                let k = cell / view.along.max(1) % own.len();
                best[k] = best[k].min(rest + inside);
            }
        }
        for ((class, _), rest) in factors.iter().zip(inward) {
            for (least, rest) in outside[*class].iter_mut().zip(rest) {
                *least = if rest < *least { rest } else { *least };
            }
        }
        by_class[at] = Arc::new(best);
    }
    Ok(by_class)
}

/// A step as seen from its result: the costs outside of the result and those inside.
struct Inward<'a> {
    filled: &'a Filled<'a, 'a>,
    own: &'a [f64],
    dims: &'a [usize],
    factors: &'a [(ClassId, Places)],
    outside: &'a [f64],
}

impl Inward<'_> {
    /// Returns the least cost of everything but factor `f`, for each of its cells.
    fn outside_of(&self, f: usize, watch: &Watch) -> Result<Vec<f64>, SolveError> {
        let places = &self.factors[f].1;
        let mut missing = (0..self.dims.len()).filter(|axis| !places.contains(&Some(*axis)));
        match (missing.next(), missing.next()) {
            (Some(axis), None) => self.without_axis(f, axis, watch),
            _ => self.by_enumeration(f, watch),
        }
    }

    /// Returns the extents of factor `f`.
    fn dims_of(&self, f: usize) -> &[usize] {
        &self.filled.schedule.classes[self.factors[f].0].1
    }

    /// Returns [`Inward::outside_of`] where the result has one axis more than `f`, which is
    /// minimised out like an operator.
    fn without_axis(
        &self,
        f: usize,
        missing: usize,
        watch: &Watch,
    ) -> Result<Vec<f64>, SolveError> {
        let (dims, places) = (self.dims_of(f), &self.factors[f].1);
        let axis_in_f = |place: &Option<usize>| places.iter().position(|p| p == place);
        let of_result: Places = (0..self.dims.len())
            .map(|axis| axis_in_f(&Some(axis)))
            .collect();
        let mut laid = vec![Laid::new(self.outside, self.dims, &of_result, dims.len())];
        let mut later = Vec::new();
        for (other, (class, of_other)) in self.factors.iter().enumerate() {
            if other == f {
                continue;
            }
            let moved: Places = of_other.iter().map(axis_in_f).collect();
            if of_other.contains(&Some(missing)) {
                let cells = &self.filled.classes[*class];
                laid.push(Laid::new(cells, self.dims_of(other), &moved, dims.len()));
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

    /// Returns [`Inward::outside_of`] cell by cell.
    fn by_enumeration(&self, f: usize, watch: &Watch) -> Result<Vec<f64>, SolveError> {
        let views: Vec<Strides> = (0..self.factors.len())
            .map(|f| Strides::new(self.dims_of(f), &self.factors[f].1, self.dims.len()))
            .collect();
        let mut best = vec![f64::INFINITY; self.filled.classes[self.factors[f].0].len()];
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
                let least = &mut best[starts[f] + k * views[f].along];
                *least = least.min(rest);
            }
            advance(&mut place, self.dims);
        }
        Ok(best)
    }
}

/// Advances to the next cell in row-major order.
fn advance(place: &mut [usize], dims: &[usize]) {
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at += 1;
        if *at < *dim {
            return;
        }
        *at = 0;
    }
}
