//! Replay of one training step: peak memory and overlapped time.

mod lists;
mod liveness;
mod outcome;
mod program;
mod ready;
mod replayer;
mod resources;

pub use liveness::Peak;
pub use outcome::{Replayed, Timeline};
pub use program::{BufferId, DeviceClassId, Parts, Program, TaskId, Use, ALWAYS};
pub use replayer::{Replayer, Strategy};
pub use resources::{Order, ResourceId};
