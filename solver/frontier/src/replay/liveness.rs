//! Memory while a [`Program`] is replayed: what is held, and the most that ever was.

use crate::model::ids::IdVec;
use crate::replay::program::{BufferId, Program, TaskId, ALWAYS};

/// The buffers of one strategy. Sizes are whole blocks, so that sums are exact.
#[derive(Debug)]
pub struct Liveness<'a> {
    program: &'a Program,
    block_bytes: f64,
    sizes: IdVec<BufferId, f64>,
    /// Uses still to come, the maker's own among them.
    uses: IdVec<BufferId, u32>,
    flags: Vec<bool>,
    held: IdVec<BufferId, bool>,
    now_bytes: f64,
    peak_bytes: f64,
    peak_task: Option<TaskId>,
}

impl<'a> Liveness<'a> {
    /// Makes room for the buffers of a program.
    pub fn new(program: &'a Program, block_bytes: u64) -> Self {
        let buffers = program.buffers();
        Self {
            program,
            block_bytes: block_bytes as f64,
            sizes: IdVec::filled(0.0, buffers),
            uses: IdVec::filled(0, buffers),
            flags: Vec::new(),
            held: IdVec::filled(false, buffers),
            now_bytes: 0.0,
            peak_bytes: 0.0,
            peak_task: None,
        }
    }

    /// Begins a replay, before its first task: what is there already is held.
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
            let there = program.makers[buffer] < 0;
            self.held[buffer] = there && (program.lasting[buffer] || self.uses[buffer] > 0);
            if self.held[buffer] {
                self.now_bytes += self.sizes[buffer];
            }
        }
        self.peak_bytes = self.now_bytes;
    }

    /// Takes the buffers of a task that starts; returns whether memory was never higher.
    pub fn start(&mut self, task: TaskId) -> bool {
        for &buffer in self.program.makes.of(task) {
            self.held[buffer] = true;
            self.now_bytes += self.sizes[buffer];
        }
        let highest = self.now_bytes > self.peak_bytes;
        if highest {
            self.peak_bytes = self.now_bytes;
            self.peak_task = Some(task);
        }
        highest
    }

    /// Gives back what a task that has ended was the last to use.
    pub fn end(&mut self, task: TaskId) {
        let program = self.program;
        for &buffer in program.makes.of(task) {
            self.give_back(buffer);
        }
        for &(buffer, flag) in program.uses.of(task) {
            if self.counts(flag) {
                self.give_back(buffer);
            }
        }
    }

    /// Returns whether a use counts under this strategy.
    fn counts(&self, flag: i32) -> bool {
        flag == ALWAYS || self.flags[flag as usize]
    }

    /// Counts down a buffer's uses; the last one frees it.
    fn give_back(&mut self, buffer: BufferId) {
        self.uses[buffer] -= 1;
        if self.uses[buffer] == 0 && !self.program.lasting[buffer] {
            self.held[buffer] = false;
            self.now_bytes -= self.sizes[buffer];
        }
    }

    /// Returns the bytes held now.
    pub fn now_bytes(&self) -> f64 {
        self.now_bytes
    }

    /// Returns the most bytes that were ever held.
    pub fn peak_bytes(&self) -> f64 {
        self.peak_bytes
    }

    /// Returns the task whose start reached the peak; `None` when it was there before the first.
    pub fn peak_task(&self) -> Option<TaskId> {
        self.peak_task
    }

    /// Returns the buffers held now that take any room.
    pub fn held(&self) -> Vec<BufferId> {
        let all = self.held.ids();
        all.filter(|b| self.held[*b] && self.sizes[*b] > 0.0)
            .collect()
    }
}
