//! Dependencies that follow from others through the program's order, left out.
//!
//! The tasks of a resource that keeps the program's order run one after another, a chain. A task
//! that waits for one of them and for something that comes after it need not wait for the first;
//! of those that wait for a task only the first of each chain need do so. What is left has the same
//! order, the same last predecessor of each task at any time, and the same longest paths.

use crate::model::ids::{Id, IdVec};
use crate::replay::conditions::Conditions;
use crate::replay::lists::Lists;
use crate::replay::program::TaskId;
use crate::replay::resources::{Order, ResourceId, Resources};

/// The chain of each task.
#[derive(Debug, Clone)]
pub struct Chains {
    /// A resource with the order `Program` that the task holds.
    of: IdVec<TaskId, Option<ResourceId>>,
    /// The resources with that order.
    all: Vec<ResourceId>,
    resources: usize,
}

impl Chains {
    /// Finds the chain of each of `tasks` tasks.
    pub fn new(resources: &Resources, tasks: usize) -> Self {
        let is_kept = |r: &ResourceId| resources.order(*r) == Order::Program;
        let held = (0..tasks).map(|task| resources.of(TaskId::new(task)).iter());
        Self {
            of: held
                .map(|mut held| held.find(|r| is_kept(r)).copied())
                .collect(),
            all: (0..resources.len())
                .map(ResourceId::new)
                .filter(is_kept)
                .collect(),
            resources: resources.len(),
        }
    }

    /// Leaves out of `after`, which has per task those that wait for it, what follows from the rest.
    pub fn thin(&self, after: &mut Lists<TaskId, TaskId>, conditions: &Conditions) {
        self.leave_first(after);
        for &chain in &self.all {
            self.leave_latest(after, chain, conditions);
        }
    }

    /// Leaves the first task of each chain of those that wait for one task.
    fn leave_first(&self, after: &mut Lists<TaskId, TaskId>) {
        // Per chain, the task of which its first follower is known, and that follower.
        let none = (usize::MAX, TaskId::new(0));
        let mut known: IdVec<ResourceId, (usize, TaskId)> = IdVec::filled(none, self.resources);
        let mut taken = IdVec::filled(usize::MAX, self.of.len());
        let mut first = Lists::none();
        for task in self.of.ids() {
            for &follower in after.of(task) {
                if let Some(chain) = self.of[follower] {
                    let (of, least) = &mut known[chain];
                    if *of != task.index() || follower < *least {
                        (*of, *least) = (task.index(), follower);
                    }
                }
            }
            for &follower in after.of(task) {
                let is_first = self.of[follower].is_none_or(|chain| known[chain].1 == follower);
                if is_first && taken[follower] != task.index() {
                    taken[follower] = task.index();
                    first.push(follower);
                }
            }
            first.close();
        }
        *after = first;
    }

    /// Leaves of the tasks of a chain that a task waits for the last, if nothing else that it
    /// waits for comes after that one.
    fn leave_latest(
        &self,
        after: &mut Lists<TaskId, TaskId>,
        chain: ResourceId,
        conditions: &Conditions,
    ) {
        // Twice the latest task of the chain, counted from 1, that the task comes after; one more
        // if something lies between them.
        let mut latest: IdVec<TaskId, u64> = IdVec::filled(0, self.of.len());
        let itself = |task: TaskId| 2 * (task.index() as u64 + 1);
        for task in self.of.ids() {
            let own = match self.of[task] {
                Some(of) if of == chain => itself(task),
                _ if conditions.is_conditional(task) => 0,
                _ => latest[task] | u64::from(latest[task] > 0),
            };
            for &follower in after.of(task) {
                latest[follower] = latest[follower].max(own);
            }
        }
        after.retain(|task, follower| {
            self.of[task] != Some(chain) || latest[follower] <= itself(task)
        });
    }
}
