//! Memory while a [`Program`] is replayed: the live buffers and the peak.

use crate::model::ids::IdVec;
use crate::replay::program::{BufferId, DeviceClassId, Program, TaskId, ALWAYS};

/// The most memory that a device class held.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Peak {
    pub bytes: f64,
    /// The task whose start reached the peak; `None` if it was reached before the first task.
    pub task: Option<TaskId>,
}

/// The memory of one device class.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    now_bytes: f64,
    peak: Peak,
}

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
    memory: IdVec<DeviceClassId, Memory>,
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
            memory: IdVec::filled(Memory::default(), program.device_classes()),
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
        for task in program.before.ids() {
            for &(buffer, flag) in program.uses.of(task) {
                self.uses[buffer] += u32::from(self.counts(flag));
            }
        }
        self.memory.as_mut_slice().fill(Memory::default());
        for buffer in program.makers.ids() {
            let exists = program.makers[buffer] < 0;
            self.is_live[buffer] = exists && (program.lasting[buffer] || self.uses[buffer] > 0);
            if self.is_live[buffer] {
                self.memory[program.class_of[buffer]].now_bytes += self.sizes[buffer];
            }
        }
        for memory in self.memory.iter_mut() {
            memory.peak.bytes = memory.now_bytes;
        }
    }

    /// Allocates the buffers of a task that starts; returns whether that is a new peak.
    pub fn start(&mut self, task: TaskId) -> bool {
        let program = self.program;
        let mut is_peak = false;
        for &buffer in program.makes.of(task) {
            self.is_live[buffer] = true;
            let memory = &mut self.memory[program.class_of[buffer]];
            memory.now_bytes += self.sizes[buffer];
            if memory.now_bytes > memory.peak.bytes {
                memory.peak = Peak {
                    bytes: memory.now_bytes,
                    task: Some(task),
                };
                is_peak = true;
            }
        }
        is_peak
    }

    /// Returns whether what a task allocates keeps every device class within its limit.
    pub fn fits(&self, task: TaskId, limits_bytes: &IdVec<DeviceClassId, f64>) -> bool {
        let program = self.program;
        let makes = program.makes.of(task);
        makes.iter().all(|&buffer| {
            let class = program.class_of[buffer];
            let of_class = makes.iter().filter(|b| program.class_of[**b] == class);
            let made: f64 = of_class.map(|b| self.sizes[*b]).sum();
            made == 0.0 || self.memory[class].now_bytes + made <= limits_bytes[class]
        })
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
            self.memory[self.program.class_of[buffer]].now_bytes -= self.sizes[buffer];
        }
    }

    /// Returns the bytes of the live buffers of each device class.
    pub fn now_bytes(&self) -> impl Iterator<Item = f64> + '_ {
        self.memory.iter().map(|memory| memory.now_bytes)
    }

    /// Returns the peak of each device class.
    pub fn peaks(&self) -> IdVec<DeviceClassId, Peak> {
        self.memory.iter().map(|memory| memory.peak).collect()
    }

    /// Returns the live buffers of a device class that are not empty.
    pub fn live(&self, class: DeviceClassId) -> Vec<BufferId> {
        let all = self.is_live.ids();
        all.filter(|b| self.is_live[*b] && self.sizes[*b] > 0.0)
            .filter(|b| self.program.class_of[*b] == class)
            .collect()
    }

    /// Returns the device classes whose peak the start of this task has reached.
    pub fn peaked(&self, task: TaskId) -> impl Iterator<Item = DeviceClassId> + '_ {
        let all = self.memory.enumerate();
        all.filter(move |(_, memory)| memory.peak.task == Some(task))
            .map(|(class, _)| class)
    }
}
