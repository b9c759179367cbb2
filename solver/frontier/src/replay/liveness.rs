//! Memory while a [`Program`] is replayed: the live buffers and the peak.

use crate::model::ids::{Id, IdVec};
use crate::replay::buffers::AllocationId;
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
    /// The remaining uses of each buffer, including the one by its maker; all those of a buffer
    /// that keeps it count as one.
    uses: IdVec<BufferId, u32>,
    /// Kept buffers whose keeper was freed.
    released: Vec<BufferId>,
    allocated_bytes: IdVec<AllocationId, f64>,
    flags: Vec<bool>,
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
            released: Vec::new(),
            allocated_bytes: IdVec::filled(0.0, program.buffers.allocation_count),
            flags: Vec::new(),
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
            *rounded = rounded_up(size / self.block_bytes) * self.block_bytes;
        }
        for allocation in self.allocated_bytes.ids() {
            let buffers = program.buffers.allocated.of(allocation).iter();
            self.allocated_bytes[allocation] = buffers.map(|b| self.sizes[*b]).sum();
        }
        let certain = program.buffers.certain_uses.as_slice();
        self.uses.as_mut_slice().copy_from_slice(certain);
        for &(buffer, flag) in &program.buffers.flagged_uses {
            let is_set = self.is_set(flag);
            self.uses[buffer] += u32::from(is_set);
        }
        for &keeper in &program.buffers.keepers {
            if self.uses[keeper] > 0 {
                for &(kept, flag) in program.buffers.kept.of(keeper) {
                    let is_set = self.is_set(flag);
                    self.uses[kept] += u32::from(is_set);
                }
            }
        }
        self.memory.as_mut_slice().fill(Memory::default());
        for &buffer in &program.buffers.given {
            if self.uses[buffer] > 0 {
                self.memory[program.buffers.class_of[buffer]].now_bytes += self.sizes[buffer];
            }
        }
        for memory in self.memory.iter_mut() {
            memory.peak.bytes = memory.now_bytes;
        }
    }

    /// Allocates the buffers of a task that starts; returns whether that is a new peak.
    #[inline]
    pub fn start(&mut self, task: TaskId) -> bool {
        let mut is_peak = false;
        for &(allocation, class) in self.program.buffers.allocations.of(task) {
            let memory = &mut self.memory[class];
            memory.now_bytes += self.allocated_bytes[allocation];
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
        let mut allocations = self.program.buffers.allocations.of(task).iter();
        allocations.all(|&(allocation, class)| {
            let allocated = self.allocated_bytes[allocation];
            allocated == 0.0 || self.memory[class].now_bytes + allocated <= limits_bytes[class]
        })
    }

    /// Frees the buffers that no task uses after this one.
    #[inline]
    pub fn end(&mut self, task: TaskId) {
        let program = self.program;
        for &(buffer, flag) in program.buffers.uses.of(task) {
            if self.is_set(flag) {
                self.release(buffer);
            }
        }
    }

    /// Returns whether this strategy sets a flag.
    #[inline]
    pub fn is_set(&self, flag: i32) -> bool {
        flag == ALWAYS || self.flags[flag as usize]
    }

    /// Counts down a buffer's uses; frees it after the last one, and so what it kept.
    #[inline]
    fn release(&mut self, buffer: BufferId) {
        let program = self.program;
        let mut next = Some(buffer);
        while let Some(buffer) = next {
            self.uses[buffer] -= 1;
            if self.uses[buffer] == 0 {
                let class = program.buffers.class_of[buffer];
                self.memory[class].now_bytes -= self.sizes[buffer];
                for &(kept, flag) in program.buffers.kept.of(buffer) {
                    if self.is_set(flag) {
                        self.released.push(kept);
                    }
                }
            }
            next = self.released.pop();
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

    /// Returns the live buffers of a device class that are not empty; `started` tells which tasks
    /// have started.
    pub fn live(&self, class: DeviceClassId, started: impl Fn(TaskId) -> bool) -> Vec<BufferId> {
        let all = self.uses.enumerate();
        all.filter(|&(buffer, uses)| *uses > 0 && self.sizes[buffer] > 0.0)
            .map(|(buffer, _)| buffer)
            .filter(|buffer| self.program.buffers.class_of[*buffer] == class)
            .filter(|buffer| {
                let maker = usize::try_from(self.program.buffers.makers[*buffer]);
                maker.map_or(true, |maker| started(TaskId::new(maker)))
            })
            .collect()
    }

    /// Returns the device classes whose peak the start of this task has reached.
    pub fn peaked(&self, task: TaskId) -> impl Iterator<Item = DeviceClassId> + '_ {
        let all = self.memory.enumerate();
        all.filter(move |(_, memory)| memory.peak.task == Some(task))
            .map(|(class, _)| class)
    }
}

/// Returns `f64::ceil` of a number that is not negative, without a call for each.
#[inline]
fn rounded_up(number: f64) -> f64 {
    /// From here on all numbers are whole, so a sum with it is rounded to a whole number.
    const WHOLE: f64 = (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64;
    if number < WHOLE {
        let nearest = (number + WHOLE) - WHOLE;
        nearest + f64::from(u8::from(nearest < number))
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::rounded_up;

    #[test]
    fn rounds_up_as_ceil_does() {
        let whole = 2.0_f64.powi(52);
        for base in [
            0.0,
            1.0,
            7.0,
            1e6,
            1e9,
            whole / 4.0,
            whole / 2.0,
            whole,
            whole * 8.0,
            1e300,
        ] {
            let above = f64::from_bits(base.to_bits() + 1);
            let below = f64::from_bits(base.to_bits().saturating_sub(1));
            for number in [base, above, below, base + 0.5, base * 1.1] {
                assert_eq!(rounded_up(number), number.ceil(), "{number}");
            }
        }
    }
}
