//! A step program: what one device does in one training step, for every strategy at once.
//!
//! Each task runs on one of two streams and comes after all tasks that it depends on, so tasks can
//! be issued in the order of their numbers. Buffers are allocated when a task starts and freed when
//! the last of their uses has ended. A use may name a flag, so that it counts only under some
//! strategies. A strategy gives the durations, the sizes and the flags; all strategies share the
//! structure.

use std::marker::PhantomData;

use crate::model::error::SolveError;
use crate::model::ids::{ids, Id, IdVec};

ids! {
    /// Names a task of a program; a task comes after all tasks that it depends on.
    TaskId(u32);
    /// Names a buffer of a program.
    BufferId(u32);
}

/// The stream of tasks that compute, in program order.
pub const COMPUTE: u8 = 0;
/// The stream of tasks that move data during computation, the most urgent ready task first.
pub const COMMUNICATION: u8 = 1;
/// The flag of a use that counts under every strategy.
pub const ALWAYS: i32 = -1;

/// One list of items per key, all in one vector.
#[derive(Debug, Clone)]
pub struct Lists<K, T> {
    starts: Vec<u32>,
    items: Vec<T>,
    keys: PhantomData<fn(K)>,
}

impl<K: Id, T: Copy> Lists<K, T> {
    /// Groups (key, item) pairs into the lists of `count` keys, each in the order of the pairs.
    pub fn group(count: usize, pairs: impl Iterator<Item = (K, T)> + Clone) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for (key, _) in pairs.clone() {
            starts[key.index() + 1] += 1;
        }
        for key in 0..count {
            starts[key + 1] += starts[key];
        }
        let mut next = starts.clone();
        let mut items: Vec<Option<T>> = vec![None; starts[count] as usize];
        for (key, item) in pairs {
            let next = &mut next[key.index()];
            items[*next as usize] = Some(item);
            *next += 1;
        }
        let items = items.into_iter().flatten().collect();
        Self {
            starts,
            items,
            keys: PhantomData,
        }
    }

    /// Returns the list of a key.
    pub fn of(&self, key: K) -> &[T] {
        let at = key.index();
        &self.items[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// Keeps a buffer until `task` has ended, if `flag` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub buffer: u32,
    pub task: u32,
    pub flag: i32,
}

/// The unchecked parts of a program.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// The stream of each task: [`COMPUTE`] or [`COMMUNICATION`].
    pub streams: Vec<u8>,
    /// (before, after): the second task starts when the first has ended.
    pub dependencies: Vec<(u32, u32)>,
    /// The task that allocates each buffer; -1 if it exists before the first task.
    pub makers: Vec<i32>,
    /// Whether each buffer is never freed.
    pub lasting: Vec<bool>,
    pub uses: Vec<Use>,
    /// The number of flags that a strategy gives.
    pub given_flags: usize,
    /// Further flags, each set where two earlier ones are.
    pub both: Vec<(u32, u32)>,
    /// The tasks whose end times replays return.
    pub marks: Vec<u32>,
}

/// A checked program.
#[derive(Debug, Clone)]
pub struct Program {
    pub(super) streams: IdVec<TaskId, u8>,
    /// The tasks that compute, in program order.
    pub(super) compute: Vec<TaskId>,
    /// Per task, how many tasks it depends on.
    pub(super) before: IdVec<TaskId, u32>,
    /// Per task, the tasks that depend on it.
    pub(super) after: Lists<TaskId, TaskId>,
    /// Per task, the buffers that it allocates.
    pub(super) makes: Lists<TaskId, BufferId>,
    pub(super) makers: IdVec<BufferId, i32>,
    pub(super) lasting: IdVec<BufferId, bool>,
    /// Per task, the buffers that it uses, each with its flag.
    pub(super) uses: Lists<TaskId, (BufferId, i32)>,
    pub(super) given_flags: usize,
    pub(super) both: Vec<(u32, u32)>,
    /// Per task, the positions of its marks.
    pub(super) marks: Lists<TaskId, u32>,
    pub(super) mark_count: usize,
}

impl Program {
    /// Checks the parts of a program and indexes them.
    ///
    /// # Errors
    ///
    /// Rejects numbers out of range and a task that depends on a later one.
    pub fn new(parts: Parts) -> Result<Self, SolveError> {
        check(&parts)?;
        let tasks = parts.streams.len();
        let streams: IdVec<TaskId, u8> = parts.streams.into();
        let compute = streams.ids().filter(|t| streams[*t] == COMPUTE).collect();
        let mut before = IdVec::filled(0_u32, tasks);
        for &(_, after) in &parts.dependencies {
            before[TaskId::from(after)] += 1;
        }
        let after = Lists::group(
            tasks,
            parts
                .dependencies
                .iter()
                .map(|&(b, a)| (b.into(), a.into())),
        );
        let makers: IdVec<BufferId, i32> = parts.makers.into();
        let allocated = makers.ids().filter(|b| makers[*b] >= 0);
        let by_maker = allocated.map(|b| (TaskId::new(makers[b] as usize), b));
        let makes = Lists::group(tasks, by_maker);
        let uses = Lists::group(
            tasks,
            parts
                .uses
                .iter()
                .map(|u| (u.task.into(), (u.buffer.into(), u.flag))),
        );
        Ok(Self {
            streams,
            compute,
            before,
            after,
            makes,
            makers,
            lasting: parts.lasting.into(),
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
                    .map(|(m, &task)| (task.into(), m as u32)),
            ),
        })
    }

    /// Returns the number of tasks.
    pub fn tasks(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of buffers.
    pub fn buffers(&self) -> usize {
        self.makers.len()
    }

    /// Returns the number of flags that a strategy gives.
    pub fn flags(&self) -> usize {
        self.given_flags
    }
}

fn check(parts: &Parts) -> Result<(), SolveError> {
    let (tasks, buffers) = (parts.streams.len(), parts.makers.len());
    let invalid = |text: String| Err(SolveError::Invalid(text));
    if let Some(other) = parts.streams.iter().find(|s| **s > COMMUNICATION) {
        return invalid(format!("streams must be 0 or 1, got {other}"));
    }
    for &(before, after) in &parts.dependencies {
        if before >= after || after as usize >= tasks {
            return invalid(format!("task {after} cannot come after task {before}"));
        }
    }
    if parts.lasting.len() != buffers {
        return invalid("makers and lasting must have the same length".into());
    }
    if let Some(maker) = parts.makers.iter().find(|m| **m >= tasks as i32) {
        return invalid(format!("unknown task {maker} in makers"));
    }
    for (position, &(a, b)) in parts.both.iter().enumerate() {
        if a.max(b) as usize >= parts.given_flags + position {
            return invalid(format!(
                "flag {} must be defined before it is used",
                a.max(b)
            ));
        }
    }
    if let Some(mark) = parts.marks.iter().find(|m| **m as usize >= tasks) {
        return invalid(format!("unknown task {mark} in marks"));
    }
    let flags = (parts.given_flags + parts.both.len()) as i32;
    for item in &parts.uses {
        if item.buffer as usize >= buffers || item.task as usize >= tasks {
            return invalid(format!(
                "unknown buffer {} or task {} in uses",
                item.buffer, item.task
            ));
        }
        if item.flag < ALWAYS || item.flag >= flags {
            return invalid(format!("unknown flag {} in uses", item.flag));
        }
        if i64::from(parts.makers[item.buffer as usize]) > i64::from(item.task) {
            return invalid(format!(
                "buffer {} is used before it is allocated",
                item.buffer
            ));
        }
    }
    Ok(())
}
