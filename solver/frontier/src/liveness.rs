//! Memory while a [`Program`] is replayed: what is held, and the most that ever was.

use crate::program::{Program, ALWAYS};

/// The buffers of one strategy. Sizes are whole blocks, so that sums are exact.
#[derive(Debug)]
pub struct Liveness<'a> {
    program: &'a Program,
    block_bytes: f64,
    sizes: Vec<f64>,
    /// Uses still to come, the maker's own among them.
    uses: Vec<u32>,
    flags: Vec<bool>,
    held: Vec<bool>,
    now_bytes: f64,
    peak_bytes: f64,
    peak_task: Option<u32>,
}

impl<'a> Liveness<'a> {
    pub fn new(program: &'a Program, block_bytes: u64) -> Self {
        let buffers = program.buffers();
        Self {
            program,
            block_bytes: block_bytes as f64,
            sizes: vec![0.0; buffers],
            uses: vec![0; buffers],
            flags: Vec::new(),
            held: vec![false; buffers],
            now_bytes: 0.0,
            peak_bytes: 0.0,
            peak_task: None,
        }
    }

    /// Before the first task: what is there already is held.
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
        for task in 0..program.tasks() {
            for &(buffer, flag) in program.uses.of(task) {
                self.uses[buffer as usize] += u32::from(self.counts(flag));
            }
        }
        self.now_bytes = 0.0;
        self.peak_task = None;
        for buffer in 0..program.buffers() {
            let there = program.makers[buffer] < 0;
            self.held[buffer] = there && (program.lasting[buffer] || self.uses[buffer] > 0);
            if self.held[buffer] {
                self.now_bytes += self.sizes[buffer];
            }
        }
        self.peak_bytes = self.now_bytes;
    }

    /// A task starts: its buffers are taken. Answers whether memory was never higher.
    pub fn start(&mut self, task: u32) -> bool {
        for &buffer in self.program.makes.of(task as usize) {
            self.held[buffer as usize] = true;
            self.now_bytes += self.sizes[buffer as usize];
        }
        let highest = self.now_bytes > self.peak_bytes;
        if highest {
            self.peak_bytes = self.now_bytes;
            self.peak_task = Some(task);
        }
        highest
    }

    /// A task has ended: what it was the last to use is given back.
    pub fn end(&mut self, task: u32) {
        let program = self.program;
        for &buffer in program.makes.of(task as usize) {
            self.give_back(buffer as usize);
        }
        for &(buffer, flag) in program.uses.of(task as usize) {
            if self.counts(flag) {
                self.give_back(buffer as usize);
            }
        }
    }

    fn counts(&self, flag: i32) -> bool {
        flag == ALWAYS || self.flags[flag as usize]
    }

    fn give_back(&mut self, buffer: usize) {
        self.uses[buffer] -= 1;
        if self.uses[buffer] == 0 && !self.program.lasting[buffer] {
            self.held[buffer] = false;
            self.now_bytes -= self.sizes[buffer];
        }
    }

    pub fn now_bytes(&self) -> f64 {
        self.now_bytes
    }

    pub fn peak_bytes(&self) -> f64 {
        self.peak_bytes
    }

    /// The task whose start reached the peak; `None` when it was there before the first.
    pub fn peak_task(&self) -> Option<u32> {
        self.peak_task
    }

    /// Buffers held now that take any room.
    pub fn held(&self) -> Vec<u32> {
        let all = 0..self.held.len();
        all.filter(|&b| self.held[b] && self.sizes[b] > 0.0)
            .map(|b| b as u32)
            .collect()
    }
}
