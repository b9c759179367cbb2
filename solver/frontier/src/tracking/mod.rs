//! Frontier Tracking: staircases of partial strategies while operators are eliminated.
//!
//! [`track`] is the paper's Algorithm 2, operator by operator; [`repeated`] follows a [`schedule`]
//! in which equal layers form one class, which is tracked once.

pub mod bucket;
pub mod elimination;
pub mod gather;
pub mod grid;
pub mod ldp;
pub mod repeated;
pub mod schedule;
pub mod staircase;
pub mod strides;
pub mod trace;
pub mod track;
