//! Memory while a [`Program`] is replayed: the live buffers and the peak.

use crate::model::ids::IdVec;
use crate::replay::program::{BufferId, Program, TaskId, ALWAYS};

/// The buffers of one strategy. Sizes are whole blocks, so that sums are exact.
#[derive(Debug)]
pub struct Liveness<'a> {
    program: &'a Program,
    block_bytes: f64,
    sizes: IdVec<BufferId, f64>,
    /// The remaining uses of each buffer, including the one by its maker.
    uses: IdVec<BufferId, u32>,
    flags: Vec<bool>,
    is_live: IdVec<BufferId, bool>,
    now_bytes: f64,
    peak_bytes: f64,
    peak_task: Option<TaskId>,
}

impl<'a> Liveness<'a> {
    /// Allocates the state for the buffers of a program.
    pub fn new(program: &'a Program, block_bytes: u64) -> Self {
        let buffers = program.buffers();
        Self {
            program,
            block_bytes: block_bytes as f64,
            sizes: IdVec::filled(0.0, buffers),
            uses: IdVec::filled(0, buffers),
            flags: Vec::new(),
            is_live: IdVec::filled(false, buffers),
            now_bytes: 0.0,
            peak_bytes: 0.0,
            peak_task: None,
        }
    }

    /// Begins a replay with the buffers that exist before its first task.
    pub fn begin(&mut self, sizes_bytes: &[f64], flags: &[bool]) {
        let program = self.program;
        self.flags.clear();
        self.flags.extend_from_slice(flags);
        for &(a, b) in &program.both {
            let set = self.flags[a as usize] && self.flags[b as usize];
            self.flags.push(set);
        }
        for (rounded, size) in self.sizes.iter_mut().zip(sizes_bytes) {
            *rounded = (size / self.block_bytes).ceil() * self.block_bytes;
        }
        for (uses, maker) in self.uses.iter_mut().zip(&program.makers) {
            *uses = u32::from(*maker >= 0);
        }
        for task in program.streams.ids() {
            for &(buffer, flag) in program.uses.of(task) {
                self.uses[buffer] += u32::from(self.counts(flag));
            }
        }
        self.now_bytes = 0.0;
        self.peak_task = None;
        for buffer in program.makers.ids() {
            let exists = program.makers[buffer] < 0;
            self.is_live[buffer] = exists && (program.lasting[buffer] || self.uses[buffer] > 0);
            if self.is_live[buffer] {
                self.now_bytes += self.sizes[buffer];
            }
        }
        self.peak_bytes = self.now_bytes;
    }

    /// Allocates the buffers of a task that starts; returns whether that is a new peak.
    pub fn start(&mut self, task: TaskId) -> bool {
        for &buffer in self.program.makes.of(task) {
            self.is_live[buffer] = true;
            self.now_bytes += self.sizes[buffer];
        }
        let is_peak = self.now_bytes > self.peak_bytes;
        if is_peak {
            self.peak_bytes = self.now_bytes;
            self.peak_task = Some(task);
        }
        is_peak
    }

    /// Frees the buffers that no task uses after this one.
    pub fn end(&mut self, task: TaskId) {
        let program = self.program;
        for &buffer in program.makes.of(task) {
            self.release(buffer);
        }
        for &(buffer, flag) in program.uses.of(task) {
            if self.counts(flag) {
                self.release(buffer);
            }
        }
    }

    /// Returns whether a use counts under this strategy.
    fn counts(&self, flag: i32) -> bool {
        flag == ALWAYS || self.flags[flag as usize]
    }

    /// Counts down a buffer's uses and frees it after the last one.
    fn release(&mut self, buffer: BufferId) {
        self.uses[buffer] -= 1;
        if self.uses[buffer] == 0 && !self.program.lasting[buffer] {
            self.is_live[buffer] = false;
            self.now_bytes -= self.sizes[buffer];
        }
    }

    /// Returns the bytes of all live buffers.
    pub fn now_bytes(&self) -> f64 {
        self.now_bytes
    }

    /// Returns the peak in bytes.
    pub fn peak_bytes(&self) -> f64 {
        self.peak_bytes
    }

    /// Returns the task whose start reached the peak; `None` if it was reached before the first
    /// task.
    pub fn peak_task(&self) -> Option<TaskId> {
        self.peak_task
    }

    /// Returns the live buffers that are not empty.
    pub fn live(&self) -> Vec<BufferId> {
        let all = self.is_live.ids();
        all.filter(|b| self.is_live[*b] && self.sizes[*b] > 0.0)
            .collect()
    }
}
