//! Replay of one strategy: peak memory and overlapped time of a [`Program`] (docs/costs.md).
//!
//! List scheduling after HeteroG, Section 4.2, on a compute and a communication stream:
//!
//! ```text
//! rank(i) = duration(i) + max over successors j of rank(j)
//! ```
//!
//! Whenever the communication stream is idle, it takes the ready task with the highest rank. The
//! compute stream keeps the program's order instead, as a framework issues operators: the order of
//! the backward pass decides which buffers are alive when, so peak and time describe the same
//! execution. That order counts as a dependency in the ranks. A communication task that takes no
//! time (there is nothing to move under this strategy) does not wait for a stream.
//!
//! Memory follows the schedule: a task's buffers are allocated when it starts, and buffers that it
//! was the last to use are freed when it ends. Sizes are rounded up to whole blocks of the
//! allocator.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::liveness::Liveness;
use crate::replay::program::{BufferId, Program, TaskId, COMMUNICATION, COMPUTE};

/// The values of one strategy: seconds per task, bytes per buffer, and flags.
#[derive(Debug, Clone, Copy)]
pub struct Strategy<'a> {
    pub durations_s: &'a [f64],
    pub sizes_bytes: &'a [f64],
    pub flags: &'a [bool],
}

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    pub peak_bytes: f64,
    /// The task whose start reached the peak; `None` if it was reached before the first task.
    pub peak_task: Option<TaskId>,
    /// From the first start to the last end.
    pub time_s: f64,
    pub compute_s: f64,
    pub communication_s: f64,
    /// Time without computation, spent on communication.
    pub exposed_s: f64,
    /// When each of the program's marks ended.
    pub marks_s: Vec<f64>,
}

/// The schedule of one replay.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    pub start_s: Vec<f64>,
    pub end_s: Vec<f64>,
    /// The bytes of all live buffers right after each task's start.
    pub held_bytes: Vec<f64>,
    /// The live buffers at the peak.
    pub at_peak: Vec<BufferId>,
}

/// Replays strategies of one program; its buffers are reused from one replay to the next.
pub struct Replayer<'a> {
    program: &'a Program,
    memory: Liveness<'a>,
    rank: IdVec<TaskId, f64>,
    /// The number of tasks that each task still waits for.
    waiting: IdVec<TaskId, u32>,
    ready: BinaryHeap<Urgent>,
    /// Tasks that have ended and whose followers have not been released yet.
    ended: Vec<TaskId>,
    marks_s: Vec<f64>,
    timeline: Option<Timeline>,
}

/// A ready task; the highest rank comes first, among equals the task with the lowest number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Urgent {
    rank: f64,
    task: TaskId,
}

impl Eq for Urgent {}

impl PartialOrd for Urgent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Urgent {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rank = self.rank.total_cmp(&other.rank);
        by_rank.then_with(|| other.task.cmp(&self.task))
    }
}

impl<'a> Replayer<'a> {
    /// Prepares replays in which the allocator rounds every buffer up to whole blocks.
    ///
    /// # Errors
    ///
    /// Rejects a block size of 0.
    pub fn new(program: &'a Program, block_bytes: u64) -> Result<Self, SolveError> {
        if block_bytes == 0 {
            return Err(SolveError::Invalid(
                "block_bytes must be at least 1, got 0".into(),
            ));
        }
        Ok(Self {
            program,
            memory: Liveness::new(program, block_bytes),
            rank: IdVec::filled(0.0, program.tasks()),
            waiting: IdVec::filled(0, program.tasks()),
            ready: BinaryHeap::new(),
            ended: Vec::new(),
            marks_s: vec![0.0; program.mark_count],
            timeline: None,
        })
    }

    /// Returns the peak and the time of one strategy.
    ///
    /// # Errors
    ///
    /// Rejects costs that are negative or not finite, and lists whose lengths do not fit the
    /// program.
    pub fn replay(&mut self, strategy: Strategy) -> Result<Replayed, SolveError> {
        check(self.program, strategy)?;
        self.memory.begin(strategy.sizes_bytes, strategy.flags);
        let before = self.program.before.as_slice();
        self.waiting.as_mut_slice().copy_from_slice(before);
        self.rank_tasks(strategy.durations_s);
        Ok(self.schedule(strategy.durations_s))
    }

    /// Returns the result of [`Replayer::replay`] together with the schedule.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Replayer::replay`].
    pub fn trace(&mut self, strategy: Strategy) -> Result<(Replayed, Timeline), SolveError> {
        let tasks = self.program.tasks();
        check(self.program, strategy)?;
        self.memory.begin(strategy.sizes_bytes, strategy.flags);
        self.timeline = Some(Timeline {
            start_s: vec![0.0; tasks],
            end_s: vec![0.0; tasks],
            held_bytes: vec![0.0; tasks],
            at_peak: self.memory.live(),
        });
        let replayed = self.replay(strategy);
        let timeline = self.timeline.take().unwrap_or_default();
        Ok((replayed?, timeline))
    }

    /// Ranks every task by the least time of everything that depends on it, including itself.
    fn rank_tasks(&mut self, durations_s: &[f64]) {
        let program = self.program;
        let mut next_compute = 0.0_f64;
        for task in program.streams.ids().rev() {
            let followers = program.after.of(task).iter();
            let mut longest = followers.fold(0.0_f64, |most, &j| most.max(self.rank[j]));
            if program.streams[task] == COMPUTE {
                longest = longest.max(next_compute);
                next_compute = longest + durations_s[task.index()];
            }
            self.rank[task] = longest + durations_s[task.index()];
        }
    }

    /// Runs all tasks, each as soon as its stream and its dependencies allow.
    fn schedule(&mut self, durations_s: &[f64]) -> Replayed {
        let program = self.program;
        let mut busy_s = [0.0_f64; 2];
        // Per stream, the running task and its end.
        let mut running: [Option<(TaskId, f64)>; 2] = [None, None];
        let (mut now, mut issued) = (0.0_f64, 0_usize);
        for task in program.streams.ids() {
            if program.before[task] == 0 {
                self.release(task, now, durations_s);
            }
        }
        self.settle(now, durations_s);
        loop {
            while running[COMPUTE as usize].is_none() {
                let Some(&task) = program.compute.get(issued) else {
                    break;
                };
                if self.waiting[task] > 0 {
                    break;
                }
                issued += 1;
                let end = self.start(task, now, durations_s);
                busy_s[COMPUTE as usize] += durations_s[task.index()];
                if end > now {
                    running[COMPUTE as usize] = Some((task, end));
                } else {
                    self.end(task, now, durations_s);
                }
            }
            if running[COMMUNICATION as usize].is_none() {
                if let Some(Urgent { task, .. }) = self.ready.pop() {
                    let end = self.start(task, now, durations_s);
                    busy_s[COMMUNICATION as usize] += durations_s[task.index()];
                    running[COMMUNICATION as usize] = Some((task, end));
                }
            }
            let ends = running.iter().flatten().map(|(_, end)| *end);
            let Some(soonest) = ends.min_by(f64::total_cmp) else {
                break;
            };
            now = soonest;
            for stream in &mut running {
                if let Some((task, end)) = *stream {
                    if end <= now {
                        *stream = None;
                        self.end(task, now, durations_s);
                    }
                }
            }
        }
        Replayed {
            peak_bytes: self.memory.peak_bytes(),
            peak_task: self.memory.peak_task(),
            time_s: now,
            compute_s: busy_s[COMPUTE as usize],
            communication_s: busy_s[COMMUNICATION as usize],
            exposed_s: (now - busy_s[COMPUTE as usize]).max(0.0),
            marks_s: self.marks_s.clone(),
        }
    }

    /// Starts a task and returns when it will end.
    fn start(&mut self, task: TaskId, now: f64, durations_s: &[f64]) -> f64 {
        let is_peak = self.memory.start(task);
        let end = now + durations_s[task.index()];
        if let Some(timeline) = &mut self.timeline {
            timeline.start_s[task.index()] = now;
            timeline.end_s[task.index()] = end;
            timeline.held_bytes[task.index()] = self.memory.now_bytes();
            if is_peak {
                timeline.at_peak = self.memory.live();
            }
        }
        end
    }

    /// Ends a task and the tasks after it that take no time.
    fn end(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        self.ended.push(task);
        self.settle(now, durations_s);
    }

    /// Frees the buffers of ended tasks and releases the tasks that waited for them.
    fn settle(&mut self, now: f64, durations_s: &[f64]) {
        let program = self.program;
        while let Some(task) = self.ended.pop() {
            self.memory.end(task);
            for &mark in program.marks.of(task) {
                self.marks_s[mark as usize] = now;
            }
            for &follower in program.after.of(task) {
                self.waiting[follower] -= 1;
                if self.waiting[follower] == 0 {
                    self.release(follower, now, durations_s);
                }
            }
        }
    }

    /// Releases a task whose dependencies have ended; a compute task still waits for its turn.
    fn release(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        if self.program.streams[task] == COMPUTE {
            return;
        }
        if durations_s[task.index()] > 0.0 {
            let rank = self.rank[task];
            self.ready.push(Urgent { rank, task });
        } else {
            self.start(task, now, durations_s);
            self.ended.push(task);
        }
    }
}

fn check(program: &Program, strategy: Strategy) -> Result<(), SolveError> {
    let invalid = |text: String| Err(SolveError::Invalid(text));
    for (what, given, needed) in [
        ("durations", strategy.durations_s.len(), program.tasks()),
        ("sizes", strategy.sizes_bytes.len(), program.buffers()),
        ("flags", strategy.flags.len(), program.flags()),
    ] {
        if given != needed {
            return invalid(format!("expected {needed} {what}, got {given}"));
        }
    }
    let mut costs = strategy.durations_s.iter().chain(strategy.sizes_bytes);
    if let Some(bad) = costs.find(|cost| !cost.is_finite() || **cost < 0.0) {
        return invalid(format!(
            "durations and sizes must be finite and not negative, got {bad}"
        ));
    }
    Ok(())
}
