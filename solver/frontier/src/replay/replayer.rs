//! Replay of one strategy: peak memory and overlapped time of a [`Program`] (docs/costs.md).
//!
//! List scheduling after HeteroG, Section 4.2, on a compute and a communication stream:
//!
//! ```text
//! rank(i) = duration(i) + max over successors j of rank(j)
//! ```
//!
//! Whenever the communication stream is idle it takes the ready task of the highest rank. The
//! compute stream keeps the program's order instead, as a framework issues operators: the order of
//! the backward pass decides what is alive when, so peak and time belong to one execution. That
//! order counts as a dependency in the ranks. A communication task that takes no time (nothing to
//! move under this strategy) waits for no stream.
//!
//! Memory follows the schedule: a task's buffers are taken when it starts, and what it was the last
//! to use is given back when it ends, each rounded up to whole blocks of the allocator.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::liveness::Liveness;
use crate::replay::program::{BufferId, Program, TaskId, COMMUNICATION, COMPUTE};

/// What a strategy gives a program: seconds per task, bytes per buffer, its flags.
#[derive(Debug, Clone, Copy)]
pub struct Strategy<'a> {
    pub durations_s: &'a [f64],
    pub sizes_bytes: &'a [f64],
    pub flags: &'a [bool],
}

/// What a replay found.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    pub peak_bytes: f64,
    /// The task whose start reached the peak; `None` when it was there before the first.
    pub peak_task: Option<TaskId>,
    /// From the first start to the last end.
    pub time_s: f64,
    pub compute_s: f64,
    pub communication_s: f64,
    /// Communication while nothing computed.
    pub exposed_s: f64,
    /// When each of the program's marks ended.
    pub marks_s: Vec<f64>,
}

/// Where everything was, for those who ask why.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    pub start_s: Vec<f64>,
    pub end_s: Vec<f64>,
    /// Bytes held right after the task's start.
    pub held_bytes: Vec<f64>,
    /// Buffers held at the peak.
    pub at_peak: Vec<BufferId>,
}

/// Replays strategies of one program; its room is reused from one to the next.
pub struct Replayer<'a> {
    program: &'a Program,
    memory: Liveness<'a>,
    rank: IdVec<TaskId, f64>,
    /// Per task how many it still waits for.
    waiting: IdVec<TaskId, u32>,
    ready: BinaryHeap<Urgent>,
    /// Tasks that have ended and whose followers have not been told.
    ended: Vec<TaskId>,
    marks_s: Vec<f64>,
    timeline: Option<Timeline>,
}

/// A ready task; the highest rank comes first, of equal ones the first issued.
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
    /// Makes room for replays; the allocator rounds every buffer up to whole blocks.
    ///
    /// # Errors
    ///
    /// Refuses blocks of no bytes.
    pub fn new(program: &'a Program, block_bytes: u64) -> Result<Self, SolveError> {
        if block_bytes == 0 {
            return Err(SolveError::Invalid("a block has at least 1 byte".into()));
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

    /// Returns peak and time of one strategy.
    ///
    /// # Errors
    ///
    /// Refuses costs that are negative or not finite, and more or fewer than the program has.
    pub fn replay(&mut self, strategy: Strategy) -> Result<Replayed, SolveError> {
        check(self.program, strategy)?;
        self.memory.begin(strategy.sizes_bytes, strategy.flags);
        let before = self.program.before.as_slice();
        self.waiting.as_mut_slice().copy_from_slice(before);
        self.rank_tasks(strategy.durations_s);
        Ok(self.schedule(strategy.durations_s))
    }

    /// Returns the same with the whole schedule.
    ///
    /// # Errors
    ///
    /// Refuses what [`Replayer::replay`] refuses.
    pub fn trace(&mut self, strategy: Strategy) -> Result<(Replayed, Timeline), SolveError> {
        let tasks = self.program.tasks();
        check(self.program, strategy)?;
        self.memory.begin(strategy.sizes_bytes, strategy.flags);
        self.timeline = Some(Timeline {
            start_s: vec![0.0; tasks],
            end_s: vec![0.0; tasks],
            held_bytes: vec![0.0; tasks],
            at_peak: self.memory.held(),
        });
        let replayed = self.replay(strategy);
        let timeline = self.timeline.take().unwrap_or_default();
        Ok((replayed?, timeline))
    }

    /// Ranks every task: how long what depends on it takes at least, itself included.
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

    /// Runs all tasks, each as soon as its stream and what it depends on allow.
    fn schedule(&mut self, durations_s: &[f64]) -> Replayed {
        let program = self.program;
        let mut busy_s = [0.0_f64; 2];
        // Per stream the task that runs and when it ends.
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
        let highest = self.memory.start(task);
        let end = now + durations_s[task.index()];
        if let Some(timeline) = &mut self.timeline {
            timeline.start_s[task.index()] = now;
            timeline.end_s[task.index()] = end;
            timeline.held_bytes[task.index()] = self.memory.now_bytes();
            if highest {
                timeline.at_peak = self.memory.held();
            }
        }
        end
    }

    /// Ends a task, and what takes no time after it.
    fn end(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        self.ended.push(task);
        self.settle(now, durations_s);
    }

    /// Gives back what ended tasks held and releases the tasks that waited for them.
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

    /// Releases a task that nothing holds back any more; computing waits for its turn besides.
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
            return invalid(format!("{given} {what} for {needed}"));
        }
    }
    let mut costs = strategy.durations_s.iter().chain(strategy.sizes_bytes);
    if let Some(bad) = costs.find(|cost| !cost.is_finite() || **cost < 0.0) {
        return invalid(format!("{bad} is negative or not finite"));
    }
    Ok(())
}
