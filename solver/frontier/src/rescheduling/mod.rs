//! Between the layouts of one tensor: which collectives join them, and the shortest ways.

mod layout_arcs;
mod shortest_paths;

pub use layout_arcs::{layout_changes, Change, PARTIAL, REPLICATE};
pub use shortest_paths::{shortest_paths, Arc, Paths};
