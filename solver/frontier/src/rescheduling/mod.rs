//! Conversions between the layouts of one tensor: single collectives and the shortest paths.

mod kept;
mod layout_arcs;
mod shortest_paths;

pub use kept::{weighted_cells, Again, Kept};
pub use layout_arcs::{layout_changes, Change, PARTIAL, REPLICATE};
pub use shortest_paths::{shortest_paths, Arc, Paths};
