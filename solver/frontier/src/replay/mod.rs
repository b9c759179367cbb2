//! Replay of one training step on one device: peak memory and overlapped time.

mod liveness;
mod longest_path;
mod program;
mod replayer;

pub use longest_path::{Between, LongestPaths, Path, Span};
pub use program::{BufferId, Parts, Program, TaskId, Use, ALWAYS, COMMUNICATION, COMPUTE};
pub use replayer::{Replayed, Replayer, Strategy, Timeline};
