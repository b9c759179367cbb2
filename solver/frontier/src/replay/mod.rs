//! Replay of one training step on one device: peak memory and overlapped time.

mod liveness;
mod program;
mod replayer;

pub use program::{BufferId, Parts, Program, TaskId, Use, ALWAYS, COMMUNICATION, COMPUTE};
pub use replayer::{Replayed, Replayer, Strategy, Timeline};
