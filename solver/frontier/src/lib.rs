//! Frontier Tracking: every strategy that no other beats in both memory and time.
//!
//! The algorithm is TensorOpt's (Sections 3.1 and 3.2): `reduce`, `product` and `union` on
//! staircases (`tracking::staircase`), node, edge, branch and heuristic elimination
//! (`tracking::elimination`), linear dynamic programming (`tracking::ldp`), put together in
//! `tracking::track`. Where exact frontiers explode, `bounds::certified` answers with a proven gap.
//! Memory is in bytes, time in seconds throughout.
//!
//! # Example
//!
//! Two operators, each either lean and slow or large and fast. Where their choices differ, a tensor
//! is moved between them, which takes a second.
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
//! let leanest = &solution.points[0];
//! assert_eq!(leanest.choices[first], leanest.choices[second]);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! Each folder uses only those before it, and no two modules use each other:
//!
//! 1. `model`: the problem, an answer, and what every search shares.
//! 2. `tracking`: frontiers of partial strategies while operators are eliminated.
//! 3. `bounds`: weighted optima over all strategies, and what they prove about a frontier.
//! 4. `solve`: the choice between these methods and brute force (`oracle`), and what an answer is
//!    worth.
//!
//! [`rescheduling`] and [`replay`] use `model` alone: they make the costs that a problem is built
//! from, and say what one strategy comes to.

#![forbid(unsafe_code)]

mod bounds;
mod model;
mod oracle;
#[cfg(test)]
mod properties;
pub mod replay;
pub mod rescheduling;
mod solve;
mod tracking;

pub use model::error::SolveError;
pub use model::ids::{ChoiceId, CostsId, EdgeId, IdVec, OperatorId, TableId};
pub use model::point::Point;
pub use model::problem::{Problem, Table};
pub use model::watch::{Listener, Watch};
pub use solve::{solve, Method, Settings, Solution, Status};

/// The methods behind [`solve`], each to be asked by itself.
///
/// [`solve`] answers small problems exactly before any bound is needed; tests and the fuzzer ask
/// for the bounds of small problems, too.
pub mod methods {
    pub use crate::bounds::certified::{solve as certify, Certified};
    pub use crate::tracking::gather::Limits;
    pub use crate::tracking::track::{track, Style, Tracked};
}
