//! The equilibrium of a game between paths and strategies: a small dense linear programme.
//!
//! ```text
//! max v   with   v <= sum_j times[s, j] y_j + sum_r over[s, r] mu_r   for every strategy s,
//! y >= 0, sum_j y_j = 1, 0 <= mu_r <= max_price
//! ```
//!
//! Interior points (Clarabel) give the mixes of both sides at once: the duals of the first rows are
//! the mix of strategies.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettingsBuilder, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, ZeroConeT,
};

use crate::model::error::SolveError;

/// A value, and what attains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Equilibrium {
    pub value: f64,
    /// The share of each path; they add up to 1.
    pub paths: Vec<f64>,
    /// The price of exceeding each limit by one.
    pub prices: Vec<f64>,
    /// The share of each strategy; they add up to 1.
    pub strategies: Vec<f64>,
}

/// Returns the equilibrium of `times` (rows: strategies, columns: paths) and `over` (rows:
/// strategies, columns: limits), where no price is above `max_price`.
///
/// # Errors
///
/// Rejects lists of unequal lengths, and numbers for which no equilibrium is reached.
pub fn equilibrium(
    times: &[Vec<f64>],
    over: &[Vec<f64>],
    max_price: f64,
) -> Result<Equilibrium, SolveError> {
    let strategies = times.len();
    let paths = times.first().map_or(0, Vec::len);
    let limits = over.first().map_or(0, Vec::len);
    let even = times.iter().all(|row| row.len() == paths)
        && over.len() == strategies
        && over.iter().all(|row| row.len() == limits);
    if paths == 0 || !even {
        return Err(SolveError::Invalid(
            "a game needs a path, and as many times and excesses for every strategy".into(),
        ));
    }
    let columns = 1 + paths + limits;
    let rows = 1 + strategies + paths + 2 * limits;
    let mut matrix = Triplets::default();
    for path in 0..paths {
        matrix.push(0, 1 + path, 1.0);
    }
    for (s, (row, excess)) in times.iter().zip(over).enumerate() {
        matrix.push(1 + s, 0, 1.0);
        for (path, time) in row.iter().enumerate() {
            matrix.push(1 + s, 1 + path, -time);
        }
        for (limit, bytes) in excess.iter().enumerate() {
            matrix.push(1 + s, 1 + paths + limit, -bytes);
        }
    }
    for variable in 0..paths + limits {
        matrix.push(1 + strategies + variable, 1 + variable, -1.0);
    }
    for limit in 0..limits {
        matrix.push(
            1 + strategies + paths + limits + limit,
            1 + paths + limit,
            1.0,
        );
    }
    let mut bounds = vec![0.0; rows];
    bounds[0] = 1.0;
    bounds[1 + strategies + paths + limits..].fill(max_price);
    let mut goal = vec![0.0; columns];
    goal[0] = -1.0;
    let settings = DefaultSettingsBuilder::default()
        .verbose(false)
        .max_iter(200)
        .build()
        .map_err(|error| SolveError::Invalid(error.to_string()))?;
    let mut solver = DefaultSolver::new(
        &CscMatrix::zeros((columns, columns)),
        &goal,
        &matrix.compressed(rows, columns),
        &bounds,
        &[ZeroConeT(1), NonnegativeConeT(rows - 1)],
        settings,
    )
    .map_err(|error| SolveError::Invalid(error.to_string()))?;
    solver.solve();
    let solution = &solver.solution;
    if !matches!(
        solution.status,
        SolverStatus::Solved | SolverStatus::AlmostSolved
    ) {
        return Err(SolveError::Invalid(format!(
            "no equilibrium was reached: {}",
            solution.status
        )));
    }
    Ok(Equilibrium {
        value: solution.x[0],
        paths: mix(&solution.x[1..=paths]),
        prices: solution.x[1 + paths..].iter().map(|p| p.max(0.0)).collect(),
        strategies: mix(&solution.z[1..=strategies]),
    })
}

/// Returns shares that add up to 1, those that are next to nothing left out.
fn mix(weights: &[f64]) -> Vec<f64> {
    const NOTHING: f64 = 1e-7;
    let kept = |w: &f64| if *w > NOTHING { *w } else { 0.0 };
    let total: f64 = weights.iter().map(kept).sum();
    weights.iter().map(|w| kept(w) / total).collect()
}

/// The entries of a sparse matrix, in any order.
#[derive(Default)]
struct Triplets {
    rows: Vec<usize>,
    columns: Vec<usize>,
    values: Vec<f64>,
}

impl Triplets {
    fn push(&mut self, row: usize, column: usize, value: f64) {
        if value != 0.0 {
            self.rows.push(row);
            self.columns.push(column);
            self.values.push(value);
        }
    }

    fn compressed(self, rows: usize, columns: usize) -> CscMatrix<f64> {
        CscMatrix::new_from_triplets(rows, columns, self.rows, self.columns, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mix_where_neither_alone_is_best() {
        // Each strategy is slow on the path of the same number.
        let times = [vec![3.0, 1.0], vec![1.0, 2.0]];
        let reached = equilibrium(&times, &[vec![], vec![]], 1.0).unwrap();
        assert!((reached.value - 5.0 / 3.0).abs() < 1e-6);
        assert!((reached.paths[0] - 1.0 / 3.0).abs() < 1e-5);
        assert!((reached.strategies[0] - 1.0 / 3.0).abs() < 1e-5);
    }

    #[test]
    fn memory_has_a_price_where_it_binds() {
        // The fast strategy exceeds the limit by 1, the slow one is 1 below it.
        let reached =
            equilibrium(&[vec![1.0], vec![3.0]], &[vec![1.0], vec![-1.0]], 100.0).unwrap();
        assert!((reached.value - 2.0).abs() < 1e-6);
        assert!((reached.prices[0] - 1.0).abs() < 1e-5);
    }

    #[test]
    fn a_game_without_paths_is_rejected() {
        assert!(equilibrium(&[], &[], 1.0).is_err());
        assert!(equilibrium(&[vec![1.0]], &[], 1.0).is_err());
    }
}
