//! Replay of one training step: peak memory and overlapped time.

mod batch;
mod buffers;
mod cells;
mod chains;
mod columns;
mod conditions;
mod lists;
mod liveness;
mod longest_path;
mod outcome;
mod program;
mod ready;
mod replayer;
mod resources;
mod restricted;
mod strategy;
mod urgency;

pub use batch::{replay_all, Batch, Settings};
pub use cells::{Cells, Chosen, Picks, Sheet};
pub use liveness::Peak;
pub use longest_path::{Between, LongestPaths, Path, Span};
pub use outcome::{Replayed, Timeline};
pub use program::{BufferId, DeviceClassId, Keep, Parts, Program, TaskId, Use, ALWAYS};
pub use replayer::Replayer;
pub use resources::{Order, ResourceId};
pub use strategy::Strategy;
pub use urgency::Urgency;
