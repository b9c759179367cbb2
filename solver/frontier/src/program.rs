//! A step program: what one device does in one training step, for every strategy at once.
//!
//! Tasks run on one of two streams; each comes after all tasks that it depends on, so the order of
//! their numbers is an order in which they can be issued. Buffers are allocated when a task starts
//! and freed when the last of their uses has ended. Which uses count depends on the strategy: each
//! may name a flag. A strategy gives the durations, the sizes and the flags; the structure is one.

use crate::error::SolveError;

/// Computes, in program order.
pub const COMPUTE: u8 = 0;
/// Moves data beside the computing, the most urgent ready task first.
pub const COMMUNICATION: u8 = 1;
/// In a use: it counts under every strategy.
pub const ALWAYS: i32 = -1;

/// Lists of numbers, one per key, in one vector.
#[derive(Debug, Clone, Default)]
pub struct Lists<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Lists<T> {
    /// The lists of `count` keys from (key, item) pairs, each list in the order of the pairs.
    pub fn group(count: usize, pairs: impl Iterator<Item = (usize, T)> + Clone) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for (key, _) in pairs.clone() {
            starts[key + 1] += 1;
        }
        for key in 0..count {
            starts[key + 1] += starts[key];
        }
        let mut next = starts.clone();
        let mut items: Vec<Option<T>> = vec![None; starts[count] as usize];
        for (key, item) in pairs {
            items[next[key] as usize] = Some(item);
            next[key] += 1;
        }
        let items = items.into_iter().flatten().collect();
        Self { starts, items }
    }

    pub fn of(&self, key: usize) -> &[T] {
        &self.items[self.starts[key] as usize..self.starts[key + 1] as usize]
    }
}

/// A buffer is held until `task` has ended, where `flag` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub buffer: u32,
    pub task: u32,
    pub flag: i32,
}

/// The parts of a program as they are given.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// Per task [`COMPUTE`] or [`COMMUNICATION`].
    pub streams: Vec<u8>,
    /// (before, after): the second task starts when the first has ended.
    pub dependencies: Vec<(u32, u32)>,
    /// Per buffer the task that allocates it; -1: it is there before the first.
    pub makers: Vec<i32>,
    /// Per buffer: it is never freed.
    pub lasting: Vec<bool>,
    pub uses: Vec<Use>,
    /// How many flags a strategy gives.
    pub given_flags: usize,
    /// Further flags, set where two earlier ones are.
    pub both: Vec<(u32, u32)>,
    /// Tasks of which replays tell when they ended.
    pub marks: Vec<u32>,
}

/// A checked program.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) streams: Vec<u8>,
    pub(crate) compute: Vec<u32>,
    pub(crate) before: Vec<u32>,
    pub(crate) after: Lists<u32>,
    pub(crate) makes: Lists<u32>,
    pub(crate) makers: Vec<i32>,
    pub(crate) lasting: Vec<bool>,
    pub(crate) uses: Lists<(u32, i32)>,
    pub(crate) given_flags: usize,
    pub(crate) both: Vec<(u32, u32)>,
    pub(crate) marks: Lists<u32>,
    pub(crate) mark_count: usize,
}

impl Program {
    /// Refuses numbers out of range and a task that depends on a later one.
    pub fn new(parts: Parts) -> Result<Self, SolveError> {
        check(&parts)?;
        let tasks = parts.streams.len();
        let compute = (0..tasks as u32)
            .filter(|&t| parts.streams[t as usize] == COMPUTE)
            .collect();
        let mut before = vec![0_u32; tasks];
        for &(_, after) in &parts.dependencies {
            before[after as usize] += 1;
        }
        let after = Lists::group(
            tasks,
            parts.dependencies.iter().map(|&(b, a)| (b as usize, a)),
        );
        let made = parts.makers.iter().enumerate().filter(|(_, &m)| m >= 0);
        let makes = Lists::group(tasks, made.map(|(b, &m)| (m as usize, b as u32)));
        let uses = Lists::group(
            tasks,
            parts
                .uses
                .iter()
                .map(|u| (u.task as usize, (u.buffer, u.flag))),
        );
        Ok(Self {
            streams: parts.streams,
            compute,
            before,
            after,
            makes,
            makers: parts.makers,
            lasting: parts.lasting,
            uses,
            given_flags: parts.given_flags,
            both: parts.both,
            mark_count: parts.marks.len(),
            marks: Lists::group(
                tasks,
                parts
                    .marks
                    .iter()
                    .enumerate()
                    .map(|(m, &task)| (task as usize, m as u32)),
            ),
        })
    }

    pub fn tasks(&self) -> usize {
        self.streams.len()
    }

    pub fn buffers(&self) -> usize {
        self.makers.len()
    }

    /// How many flags a strategy gives.
    pub fn flags(&self) -> usize {
        self.given_flags
    }
}

fn check(parts: &Parts) -> Result<(), SolveError> {
    let (tasks, buffers) = (parts.streams.len(), parts.makers.len());
    let invalid = |text: String| Err(SolveError::Invalid(text));
    if let Some(other) = parts.streams.iter().find(|s| **s > COMMUNICATION) {
        return invalid(format!("stream {other} is neither 0 nor 1"));
    }
    for &(before, after) in &parts.dependencies {
        if before >= after || after as usize >= tasks {
            return invalid(format!("task {after} cannot come after task {before}"));
        }
    }
    if parts.lasting.len() != buffers {
        return invalid("makers and lasting need one length".into());
    }
    if let Some(maker) = parts.makers.iter().find(|m| **m >= tasks as i32) {
        return invalid(format!("no task {maker} to make a buffer"));
    }
    for (position, &(a, b)) in parts.both.iter().enumerate() {
        if a.max(b) as usize >= parts.given_flags + position {
            return invalid(format!("flag {} is not known yet", a.max(b)));
        }
    }
    if let Some(mark) = parts.marks.iter().find(|m| **m as usize >= tasks) {
        return invalid(format!("no task {mark} to mark"));
    }
    let flags = (parts.given_flags + parts.both.len()) as i32;
    for item in &parts.uses {
        if item.buffer as usize >= buffers || item.task as usize >= tasks {
            return invalid(format!("no buffer {} or task {}", item.buffer, item.task));
        }
        if item.flag < ALWAYS || item.flag >= flags {
            return invalid(format!("no flag {}", item.flag));
        }
        if i64::from(parts.makers[item.buffer as usize]) > i64::from(item.task) {
            return invalid(format!("buffer {} is used before made", item.buffer));
        }
    }
    Ok(())
}
