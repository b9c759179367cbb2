//! Frontier Tracking: all strategies that no other strategy beats in both memory and time.
//!
//! The algorithm is TensorOpt's (Sections 3.1 and 3.2): `reduce`, `product` and `union` on
//! staircases (`tracking::staircase`), node, edge, branch and heuristic elimination
//! (`tracking::elimination`) and linear dynamic programming (`tracking::ldp`), combined in
//! `tracking::track`. Where exact frontiers explode, `bounds::certified` returns a frontier with a
//! proven gap. Memory is in bytes and time in seconds throughout.
//!
//! # Example
//!
//! Each of two operators is either small and slow or large and fast. Where their choices differ, a
//! tensor is moved between them, which takes a second.
//!
//! ```
//! use frontier::{solve, Method, Problem, Settings, Status, Table};
//!
//! # fn main() -> Result<(), frontier::SolveError> {
//! let mut problem = Problem::default();
//! let costs = problem.add_costs(vec![1.0, 4.0], vec![6.0, 2.0])?;
//! let first = problem.add_operator("first".into(), costs)?;
//! let second = problem.add_operator("second".into(), costs)?;
//! let moves = Table::ragged(2, 2, [1; 4].into_iter(), vec![0.0; 4], vec![0.0, 1.0, 1.0, 0.0])?;
//! let moves = problem.add_table(moves)?;
//! problem.add_edge(first, second, moves, vec![0, 1], vec![0, 1])?;
//!
//! let solution = solve(&problem, Settings::exactly(Method::Auto), None)?;
//!
//! assert_eq!(solution.status, Status::Exact);
//! let costs: Vec<(f64, f64)> = solution.points.iter().map(|p| (p.memory, p.time)).collect();
//! assert_eq!(costs, [(2.0, 12.0), (5.0, 9.0), (8.0, 4.0)]);
//! let smallest = &solution.points[0];
//! assert_eq!(smallest.choices[first], smallest.choices[second]);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! Each folder uses only those before it, and no two modules depend on each other:
//!
//! 1. `model`: problems, points, and what all searches share.
//! 2. `tracking`: frontiers of partial strategies while operators are eliminated.
//! 3. `bounds`: weighted optima over all strategies, and what they prove about a frontier.
//! 4. `solve`: the choice between these methods and brute force (`oracle`), and the status of the
//!    solution.
//!
//! `equilibrium` is the linear programme of a game between paths and strategies; it uses `model`
//! alone. [`rescheduling`], [`replay`] and [`refill`] use only `model`: the first computes costs that
//! problems are built from, the second the peak memory and the time of one strategy, the third the
//! cheapest alternatives under given choices.

#![forbid(unsafe_code)]

mod bounds;
mod equilibrium;
mod model;
mod oracle;
#[cfg(test)]
mod properties;
pub mod refill;
pub mod replay;
pub mod rescheduling;
mod solve;
mod tracking;

pub use equilibrium::{equilibrium, Equilibrium};
pub use model::error::SolveError;
pub use model::ids::{ChoiceId, CostsId, EdgeId, IdVec, OperatorId, TableId};
pub use model::point::Point;
pub use model::problem::{Problem, Table};
pub use model::watch::{Listener, Watch};
pub use solve::{least_time, solve, Least, Method, Settings, Solution, Status};

/// The methods behind [`solve`], callable on their own.
///
/// [`solve`] tracks small problems exactly, without bounds; tests and the fuzzer compute bounds for
/// small problems, too.
pub mod methods {
    pub use crate::bounds::certified::{solve as certify, Certified};
    pub use crate::tracking::gather::Limits;
    pub use crate::tracking::track::{track, Style, Tracked};
}
