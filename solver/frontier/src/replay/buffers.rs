//! The buffers of a program, indexed by task.

use crate::model::ids::{ids, Id, IdVec};
use crate::replay::lists::Lists;
use crate::replay::program::{BufferId, DeviceClassId, Parts, TaskId, ALWAYS};

ids! {
    /// Names what one task allocates on one device class.
    AllocationId(u32);
}

/// Which task allocates, and which holds each buffer.
#[derive(Debug, Clone)]
pub struct Buffers {
    pub makers: IdVec<BufferId, i32>,
    pub class_of: IdVec<BufferId, DeviceClassId>,
    /// The buffers that exist before the first task.
    pub given: Vec<BufferId>,
    /// Per task, what it allocates on each device class.
    pub allocations: Lists<TaskId, (AllocationId, DeviceClassId)>,
    /// The buffers of each allocation.
    pub allocated: Lists<AllocationId, BufferId>,
    pub allocation_count: usize,
    /// Per task, the buffers that it uses, each with its flag; first those that it allocates.
    pub uses: Lists<TaskId, (BufferId, i32)>,
    /// Per buffer, its uses without a flag, and one that never ends if it lasts.
    pub certain_uses: IdVec<BufferId, u32>,
    /// The uses with a flag.
    pub flagged_uses: Vec<(BufferId, i32)>,
    /// Per buffer, those that it keeps, each with its flag.
    pub kept: Lists<BufferId, (BufferId, i32)>,
    /// The buffers that keep others, descending.
    pub keepers: Vec<BufferId>,
}

impl Buffers {
    /// Indexes the buffers of checked parts.
    pub fn new(parts: &Parts) -> Self {
        let makers: IdVec<BufferId, i32> = parts.makers.clone().into();
        let mut class_of = parts.buffer_classes.clone();
        class_of.resize(makers.len(), DeviceClassId::new(0));
        let class_of: IdVec<BufferId, DeviceClassId> = class_of.into();
        let made = makers.ids().filter(|buffer| makers[*buffer] >= 0);
        let made = made.map(|buffer| (TaskId::new(makers[buffer] as usize), buffer));
        let by_maker = Lists::group(parts.tasks, made.clone());
        let mut allocations: Vec<(TaskId, (AllocationId, DeviceClassId))> = Vec::new();
        let mut allocated: Vec<(AllocationId, BufferId)> = Vec::new();
        for task in (0..parts.tasks).map(TaskId::new) {
            let first = allocations.len();
            for &buffer in by_maker.of(task) {
                let class = class_of[buffer];
                let next = AllocationId::new(allocations.len());
                let mut of_task = allocations[first..].iter().map(|(_, of_class)| *of_class);
                let known = of_task.find(|(_, known)| *known == class);
                let allocation = known.map_or(next, |(allocation, _)| allocation);
                if known.is_none() {
                    allocations.push((task, (allocation, class)));
                }
                allocated.push((allocation, buffer));
            }
        }
        let given_uses = parts.uses.iter();
        let given_uses = given_uses.map(|u| (u.task.into(), (u.buffer.into(), u.flag)));
        let uses = made
            .map(|(task, buffer)| (task, (buffer, ALWAYS)))
            .chain(given_uses);
        let lasting = parts.lasting.iter();
        let mut certain_uses: IdVec<BufferId, u32> = lasting.map(|l| u32::from(*l)).collect();
        let mut flagged_uses = Vec::new();
        for (_, (buffer, flag)) in uses.clone() {
            match flag {
                ALWAYS => certain_uses[buffer] += 1,
                flag => flagged_uses.push((buffer, flag)),
            }
        }
        let keeps = parts.keeps.iter();
        let keeps = keeps.map(|k| (BufferId::from(k.buffer), (k.kept.into(), k.flag)));
        let kept = Lists::group(makers.len(), keeps);
        let keepers = makers.ids().rev();
        Self {
            keepers: keepers.filter(|b| !kept.of(*b).is_empty()).collect(),
            kept,
            given: makers.ids().filter(|b| makers[*b] < 0).collect(),
            uses: Lists::group(parts.tasks, uses),
            makers,
            class_of,
            allocation_count: allocations.len(),
            allocated: Lists::group(allocations.len(), allocated.into_iter()),
            allocations: Lists::group(parts.tasks, allocations.into_iter()),
            certain_uses,
            flagged_uses,
        }
    }
}
