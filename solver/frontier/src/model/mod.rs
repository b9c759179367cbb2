//! The problem, an answer, and what every search shares: ids, errors, limits.

pub mod error;
pub mod ids;
pub mod point;
pub mod problem;
pub mod selection;
pub mod watch;
pub mod weights;
