//! Frontier Tracking: every strategy that no other beats in both memory and time.
//!
//! The algorithm is TensorOpt's (Sections 3.1 and 3.2): `reduce`, `product` and `union` on
//! staircases (`frontier`), node, edge, branch and heuristic elimination (`elimination`),
//! linear dynamic programming (`ldp`), put together in `tracking`. Where exact frontiers explode,
//! `certified` answers with a proven gap. Memory is in bytes, time in seconds throughout.

#![forbid(unsafe_code)]

pub mod brute_force;
pub mod bucket;
pub mod certificate;
pub mod certified;
pub mod dead_end;
pub mod descent;
pub mod elimination;
pub mod error;
pub mod exact;
pub mod frontier;
pub mod gather;
pub mod grid;
pub mod layout_arcs;
pub mod ldp;
pub mod liveness;
pub mod marginals;
pub mod min_plus;
pub mod problem;
pub mod program;
pub mod repeated;
pub mod replay;
pub mod reschedule;
pub mod restricted;
pub mod scalar;
pub mod schedule;
pub mod selection;
pub mod solve;
pub mod tables;
pub mod trace;
pub mod tracking;
pub mod watch;
