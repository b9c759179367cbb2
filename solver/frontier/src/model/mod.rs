//! Problems, points, and what all searches share: ids, errors, limits.

pub mod error;
pub mod ids;
pub mod point;
pub mod problem;
pub mod selection;
pub mod watch;
pub mod weights;
