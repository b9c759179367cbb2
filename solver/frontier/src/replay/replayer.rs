//! Replay of one strategy: peak memory and overlapped time of a [`Program`] (docs/replay.md).
//!
//! List scheduling after HeteroG, Section 4.2, on any resources:
//!
//! ```text
//! rank(i) = duration(i) + max over successors j of rank(j)
//! ```
//!
//! A task starts when everything that it depends on has ended, it is the next one of each resource
//! with the order `Program` that it holds, and all its resources are free. At every moment the
//! tasks of the program's order start first, the lowest number first; then, of the ready tasks
//! whose resources are free, the one with the highest rank, until none is left. A task whose
//! resources are not all free blocks no other. The program's order counts as a dependency in the
//! ranks. A task that takes no time and holds no resource in the program's order (there is nothing
//! to move under this strategy) does not wait for its resources. A void task, whose flag is not
//! set, neither waits nor runs, no task waits for it, and no rank counts it.
//!
//! Compute keeps the program's order where a framework issues operators: the order of the backward
//! pass decides which buffers are alive when, so peak and time describe the same execution.
//!
//! Memory follows the schedule: a task's buffers are allocated when it starts, and buffers that it
//! was the last to use are freed when it ends. Sizes are rounded up to whole blocks of the
//! allocator.

use std::ops::Range;

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::liveness::Liveness;
use crate::replay::outcome::{Replayed, Timeline};
use crate::replay::program::{DeviceClassId, Program, TaskId};
use crate::replay::ready::{Ready, Urgent};
use crate::replay::resources::ResourceId;
use crate::replay::strategy::{check, Strategy};
use crate::replay::urgency::Urgency;

/// Replays strategies of one program; its buffers are reused from one replay to the next.
pub struct Replayer<'a> {
    program: &'a Program,
    memory: Liveness<'a>,
    limits_bytes: IdVec<DeviceClassId, f64>,
    urgency: Urgency,
    /// How urgent each task is, the most urgent highest.
    rank: IdVec<TaskId, f64>,
    /// The conditional tasks whose flag is not set, ascending.
    void: Vec<TaskId>,
    /// The number of tasks that each task still waits for; of void tasks a number that no end of
    /// others brings to 0.
    waiting: IdVec<TaskId, u32>,
    /// When each resource will be free; infinite while no task holds it.
    held_until_s: IdVec<ResourceId, f64>,
    /// The task that holds each resource.
    holder: IdVec<ResourceId, TaskId>,
    busy_s: IdVec<ResourceId, f64>,
    /// The tasks whose turn it is in the program's order, the lowest number last.
    turn: Vec<TaskId>,
    ready: Ready<'a>,
    /// Tasks that have ended and whose followers have not been released yet.
    ended: Vec<TaskId>,
    marks_s: Vec<f64>,
    timeline: Option<Timeline>,
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
        let resources = &program.resources;
        Ok(Self {
            program,
            memory: Liveness::new(program, block_bytes),
            limits_bytes: IdVec::filled(f64::INFINITY, program.device_classes()),
            urgency: Urgency::default(),
            rank: IdVec::filled(0.0, program.tasks()),
            void: Vec::new(),
            waiting: IdVec::filled(0, program.tasks()),
            held_until_s: IdVec::filled(f64::INFINITY, resources.len()),
            holder: IdVec::filled(TaskId::new(0), resources.len()),
            busy_s: IdVec::filled(0.0, resources.len()),
            turn: Vec::new(),
            ready: Ready::new(resources.set_count()),
            ended: Vec::new(),
            marks_s: vec![0.0; program.mark_count],
            timeline: None,
        })
    }

    /// Sets the memory limit of each device class for resources with the order
    /// `RankWithinMemory`; without, there is none.
    ///
    /// # Errors
    ///
    /// Rejects a limit that is negative or not a number, and a list that is not one per class.
    pub fn with_limits(mut self, limits_bytes: &[f64]) -> Result<Self, SolveError> {
        let (given, classes) = (limits_bytes.len(), self.program.device_classes());
        if given != classes {
            return Err(SolveError::Invalid(format!(
                "expected {classes} memory limits, one per device class, got {given}"
            )));
        }
        if let Some(bad) = limits_bytes.iter().find(|l| l.is_nan() || **l < 0.0) {
            return Err(SolveError::Invalid(format!(
                "memory limits must not be negative, got {bad}"
            )));
        }
        self.limits_bytes = limits_bytes.to_vec().into();
        Ok(self)
    }

    /// Sets which ready tasks are the most urgent; by default those of the highest upward rank.
    #[must_use]
    pub fn with_urgency(mut self, urgency: Urgency) -> Self {
        self.urgency = urgency;
        self
    }

    /// Returns the peak and the time of one strategy.
    ///
    /// # Errors
    ///
    /// Rejects costs that are negative or not finite, and lists whose lengths do not fit the
    /// program.
    pub fn replay(&mut self, strategy: Strategy) -> Result<Replayed, SolveError> {
        check(self.program, strategy)?;
        Ok(self.run(strategy))
    }

    /// Returns the peak and the time of one strategy that [`check`] accepts.
    pub(super) fn run(&mut self, strategy: Strategy) -> Replayed {
        self.memory.begin(strategy.sizes_bytes, strategy.flags);
        let before = self.program.before.as_slice();
        self.waiting.as_mut_slice().copy_from_slice(before);
        self.leave_out_void();
        match self.urgency {
            Urgency::Upward => self.rank_tasks(strategy.durations_s),
            Urgency::Depth => self.rank_by_depth(strategy.durations_s),
            Urgency::Fifo => {}
        }
        self.schedule(strategy.durations_s)
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
        let classes = self.program.device_classes();
        let live = |class| self.memory.live(DeviceClassId::new(class), |_| false);
        self.timeline = Some(Timeline {
            start_s: vec![f64::NAN; tasks],
            end_s: vec![0.0; tasks],
            held_bytes: vec![0.0; tasks * classes],
            at_peak: (0..classes).map(live).collect(),
        });
        let replayed = self.run(strategy);
        let mut timeline = self.timeline.take().unwrap_or_default();
        for task in &self.void {
            timeline.start_s[task.index()] = 0.0;
        }
        Ok((replayed, timeline))
    }

    /// Determines the void tasks and lets no task wait for them.
    fn leave_out_void(&mut self) {
        let program = self.program;
        let conditional = program.conditions.tasks().iter();
        let is_void = |task: &TaskId| !self.memory.is_set(program.conditions.flag(*task));
        self.void.clear();
        self.void.extend(conditional.copied().filter(is_void));
        for &task in &self.void {
            for &follower in program.after.of(task) {
                self.waiting[follower] -= 1;
            }
            for &mark in program.marks.of(task) {
                self.marks_s[mark as usize] = 0.0;
            }
        }
        for &task in &self.void {
            self.waiting[task] = u32::MAX;
        }
    }

    /// Ranks every task by the least time of everything that waits for it, including itself.
    fn rank_tasks(&mut self, durations_s: &[f64]) {
        let mut end = self.program.tasks();
        for at in (0..self.void.len()).rev() {
            let task = self.void[at];
            self.rank_stretch(task.index() + 1..end, durations_s);
            self.rank[task] = 0.0;
            end = task.index();
        }
        self.rank_stretch(0..end, durations_s);
    }

    /// Ranks the tasks of a stretch without void ones, after all later tasks.
    fn rank_stretch(&mut self, stretch: Range<usize>, durations_s: &[f64]) {
        let program = self.program;
        for task in stretch.rev().map(TaskId::new) {
            let followers = program.after.of(task).iter();
            let longest = followers.fold(0.0, |most, &j| larger(most, self.rank[j]));
            self.rank[task] = longest + durations_s[task.index()];
        }
    }

    /// Ranks every task by the longest path up to its end, the shortest highest.
    fn rank_by_depth(&mut self, durations_s: &[f64]) {
        let program = self.program;
        self.rank.as_mut_slice().fill(0.0);
        for task in (0..program.tasks()).map(TaskId::new) {
            if self.waiting[task] == u32::MAX {
                self.rank[task] = 0.0;
                continue;
            }
            self.rank[task] -= durations_s[task.index()];
            for &follower in program.after.of(task) {
                self.rank[follower] = smaller(self.rank[follower], self.rank[task]);
            }
        }
    }

    /// Runs all tasks, each as soon as its resources and its dependencies allow.
    fn schedule(&mut self, durations_s: &[f64]) -> Replayed {
        let program = self.program;
        self.busy_s.as_mut_slice().fill(0.0);
        let (mut now, mut last) = (0.0_f64, 0.0_f64);
        for &task in &program.first {
            if self.waiting[task] == 0 {
                self.release(task, now, durations_s);
            }
        }
        self.settle(now, durations_s);
        loop {
            self.start_in_program(now, durations_s);
            self.start_by_rank(now, durations_s);
            let ends = self.held_until_s.iter();
            now = ends.fold(f64::INFINITY, |soonest, &end| smaller(soonest, end));
            if now == f64::INFINITY {
                break;
            }
            last = now;
            for resource in self.held_until_s.ids() {
                if self.held_until_s[resource] <= now {
                    let task = self.holder[resource];
                    self.free(program.resources.of(task));
                    self.end(task, now, durations_s);
                }
            }
        }
        Replayed {
            peaks: self.memory.peaks(),
            time_s: last,
            busy_s: self.busy_s.clone(),
            marks_s: self.marks_s.clone(),
        }
    }

    /// Starts the tasks whose turn it is and whose resources are free.
    fn start_in_program(&mut self, now: f64, durations_s: &[f64]) {
        let program = self.program;
        let mut at = self.turn.len();
        while at > 0 {
            at -= 1;
            let task = self.turn[at];
            let resources = program.resources.of(task);
            if resources
                .iter()
                .any(|r| self.held_until_s[*r] < f64::INFINITY)
            {
                continue;
            }
            self.turn.remove(at);
            let end_s = self.start(task, now, durations_s);
            self.hold(task, resources, end_s, durations_s[task.index()]);
            if end_s <= now {
                self.free(resources);
                self.end(task, now, durations_s);
                at = self.turn.len();
            }
        }
    }

    /// Starts ready tasks without the program's order, the most urgent first.
    fn start_by_rank(&mut self, now: f64, durations_s: &[f64]) {
        loop {
            let fits = |task| self.memory.fits(task, &self.limits_bytes);
            let next = match self.ready.pop(&self.held_until_s, fits) {
                None if !self.is_running() => self.ready.pop_passed(),
                next => next,
            };
            let Some((task, held)) = next else { break };
            let end_s = self.start(task, now, durations_s);
            self.hold(task, held, end_s, durations_s[task.index()]);
        }
        self.ready.restore();
    }

    /// Returns whether any task runs.
    fn is_running(&self) -> bool {
        self.held_until_s.iter().any(|end| *end < f64::INFINITY)
    }

    /// Holds the resources of a task that has started until it ends.
    #[inline]
    fn hold(&mut self, task: TaskId, resources: &[ResourceId], end_s: f64, duration_s: f64) {
        for &resource in resources {
            self.busy_s[resource] += duration_s;
            // A sum of finite durations may be infinite, which stands for a free resource.
            self.held_until_s[resource] = end_s.min(f64::MAX);
            self.holder[resource] = task;
        }
    }

    /// Frees the resources of a task that ends.
    #[inline]
    fn free(&mut self, resources: &[ResourceId]) {
        for &resource in resources {
            self.held_until_s[resource] = f64::INFINITY;
        }
    }

    /// Starts a task and returns when it will end.
    #[inline]
    fn start(&mut self, task: TaskId, now: f64, durations_s: &[f64]) -> f64 {
        let is_peak = self.memory.start(task);
        let at = task.index();
        let end = now + durations_s[at];
        if let Some(timeline) = &mut self.timeline {
            timeline.start_s[at] = now;
            timeline.end_s[at] = end;
            let classes = timeline.at_peak.len();
            let held = &mut timeline.held_bytes[at * classes..];
            for (held, now_bytes) in held.iter_mut().zip(self.memory.now_bytes()) {
                *held = now_bytes;
            }
            if is_peak {
                let started = |task: TaskId| !timeline.start_s[task.index()].is_nan();
                for class in self.memory.peaked(task) {
                    timeline.at_peak[class] = self.memory.live(class, started);
                }
            }
        }
        end
    }

    /// Ends a task and the tasks after it that take no time.
    fn end(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        self.finish(task, now, durations_s);
        self.settle(now, durations_s);
    }

    /// Ends tasks that take no time, the latest started first.
    #[inline]
    fn settle(&mut self, now: f64, durations_s: &[f64]) {
        while let Some(task) = self.ended.pop() {
            self.finish(task, now, durations_s);
        }
    }

    /// Frees the buffers of an ended task and releases the tasks that waited for it.
    fn finish(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        let program = self.program;
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

    /// Releases a task that waits for no other task.
    fn release(&mut self, task: TaskId, now: f64, durations_s: &[f64]) {
        let resources = &self.program.resources;
        let held = resources.held(task);
        if held.in_program {
            let at = self.turn.partition_point(|other| *other > task);
            self.turn.insert(at, task);
        } else if durations_s[task.index()] > 0.0 {
            if self.urgency == Urgency::Fifo {
                self.rank[task] = -now;
            }
            let rank = self.rank[task];
            let of_task = resources.of(task);
            self.ready.push(Urgent { rank, task }, held, of_task);
        } else {
            self.start(task, now, durations_s);
            self.ended.push(task);
        }
    }
}

/// Returns the larger of two numbers; `f64::max` also asks which of them are numbers.
#[inline]
fn larger(a: f64, b: f64) -> f64 {
    if b > a {
        b
    } else {
        a
    }
}

/// Returns the smaller of two numbers.
#[inline]
fn smaller(a: f64, b: f64) -> f64 {
    if b < a {
        b
    } else {
        a
    }
}
