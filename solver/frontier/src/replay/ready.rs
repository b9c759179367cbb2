//! Tasks that are ready and wait for resources without the program's order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::model::ids::IdVec;
use crate::replay::program::TaskId;
use crate::replay::resources::SetId;

/// A ready task; the highest rank comes first, among equals the task with the lowest number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Urgent {
    pub rank: f64,
    pub task: TaskId,
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

/// The ready tasks by the set of resources that they hold.
///
/// Tasks with one set are free to start at the same moments, so only the most urgent one of each
/// set is ever looked at, however many wait.
#[derive(Debug)]
pub struct Ready {
    queues: IdVec<SetId, BinaryHeap<Urgent>>,
    /// The sets whose queues are not empty.
    waiting: Vec<SetId>,
    /// Tasks that were passed over for want of memory, with their sets.
    passed: Vec<(Urgent, SetId)>,
}

impl Ready {
    /// Allocates empty queues.
    pub fn new(sets: usize) -> Self {
        Self {
            queues: IdVec::filled(BinaryHeap::new(), sets),
            waiting: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Adds a task that holds this set.
    pub fn push(&mut self, urgent: Urgent, set: SetId) {
        let queue = &mut self.queues[set];
        if queue.is_empty() {
            self.waiting.push(set);
        }
        queue.push(urgent);
    }

    /// Takes the most urgent task among the sets that are free.
    ///
    /// A task that does not fit is passed over until [`Ready::restore`].
    pub fn pop(
        &mut self,
        is_free: impl Fn(SetId) -> bool,
        fits: impl Fn(TaskId, SetId) -> bool,
    ) -> Option<TaskId> {
        let mut most: Option<(Urgent, usize)> = None;
        let mut at = 0;
        while let Some(&set) = self.waiting.get(at) {
            let queue = &mut self.queues[set];
            if is_free(set) {
                while let Some(&top) = queue.peek() {
                    if fits(top.task, set) {
                        break;
                    }
                    queue.pop();
                    self.passed.push((top, set));
                }
                let Some(&top) = queue.peek() else {
                    self.waiting.swap_remove(at);
                    continue;
                };
                if most.is_none_or(|(most, _)| top > most) {
                    most = Some((top, at));
                }
            }
            at += 1;
        }
        let (Urgent { task, .. }, at) = most?;
        let queue = &mut self.queues[self.waiting[at]];
        queue.pop();
        if queue.is_empty() {
            self.waiting.swap_remove(at);
        }
        Some(task)
    }

    /// Takes the most urgent task that was passed over.
    pub fn pop_passed(&mut self) -> Option<TaskId> {
        let places = 0..self.passed.len();
        let at = places.max_by_key(|&at| self.passed[at].0)?;
        Some(self.passed.swap_remove(at).0.task)
    }

    /// Puts the tasks that were passed over back into their queues.
    pub fn restore(&mut self) {
        while let Some((urgent, set)) = self.passed.pop() {
            self.push(urgent, set);
        }
    }
}
