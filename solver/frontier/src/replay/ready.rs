//! Tasks that are ready and wait for resources without the program's order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::model::ids::IdVec;
use crate::replay::program::TaskId;
use crate::replay::resources::{Held, ResourceId, SetId};

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

/// A set of resources for which tasks wait.
#[derive(Debug, Clone, Copy)]
struct Waiting<'a> {
    set: SetId,
    resources: &'a [ResourceId],
    /// Whether tasks are passed over for want of memory.
    is_bounded: bool,
}

/// The ready tasks by the set of resources that they hold.
///
/// Tasks with one set are free to start at the same moments, so only the most urgent one of each
/// set is ever looked at, however many wait.
#[derive(Debug)]
pub struct Ready<'a> {
    queues: IdVec<SetId, BinaryHeap<Urgent>>,
    /// The sets whose queues are not empty.
    waiting: Vec<Waiting<'a>>,
    /// Tasks that were passed over for want of memory.
    passed: Vec<(Urgent, Waiting<'a>)>,
}

impl<'a> Ready<'a> {
    /// Allocates empty queues.
    pub fn new(sets: usize) -> Self {
        Self {
            queues: IdVec::filled(BinaryHeap::new(), sets),
            waiting: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Adds a task that holds these resources.
    pub fn push(&mut self, urgent: Urgent, held: Held, resources: &'a [ResourceId]) {
        let waiting = Waiting {
            set: held.set,
            resources,
            is_bounded: held.is_bounded,
        };
        self.wait(urgent, waiting);
    }

    #[inline]
    fn wait(&mut self, urgent: Urgent, waiting: Waiting<'a>) {
        let queue = &mut self.queues[waiting.set];
        if queue.is_empty() {
            self.waiting.push(waiting);
        }
        queue.push(urgent);
    }

    /// Takes the most urgent task whose resources are free, and returns it with them.
    ///
    /// A task that does not fit is passed over until [`Ready::restore`].
    #[inline]
    pub fn pop(
        &mut self,
        held_until_s: &IdVec<ResourceId, f64>,
        fits: impl Fn(TaskId) -> bool,
    ) -> Option<(TaskId, &'a [ResourceId])> {
        let mut most: Option<(Urgent, usize)> = None;
        let mut at = 0;
        while let Some(&waiting) = self.waiting.get(at) {
            if waiting
                .resources
                .iter()
                .any(|r| held_until_s[*r] < f64::INFINITY)
            {
                at += 1;
                continue;
            }
            if waiting.is_bounded {
                self.pass_over(waiting, &fits);
            }
            let Some(&top) = self.queues[waiting.set].peek() else {
                self.waiting.swap_remove(at);
                continue;
            };
            if most.is_none_or(|(most, _)| top > most) {
                most = Some((top, at));
            }
            at += 1;
        }
        let (Urgent { task, .. }, at) = most?;
        let Waiting { set, resources, .. } = self.waiting[at];
        let queue = &mut self.queues[set];
        queue.pop();
        if queue.is_empty() {
            self.waiting.swap_remove(at);
        }
        Some((task, resources))
    }

    /// Passes over tasks that do not fit, up to the most urgent one that does.
    fn pass_over(&mut self, waiting: Waiting<'a>, fits: impl Fn(TaskId) -> bool) {
        let queue = &mut self.queues[waiting.set];
        while let Some(&top) = queue.peek().filter(|top| !fits(top.task)) {
            queue.pop();
            self.passed.push((top, waiting));
        }
    }

    /// Takes the most urgent task that was passed over, with its resources.
    pub fn pop_passed(&mut self) -> Option<(TaskId, &'a [ResourceId])> {
        let places = 0..self.passed.len();
        let at = places.max_by_key(|&at| self.passed[at].0)?;
        let (Urgent { task, .. }, Waiting { resources, .. }) = self.passed.swap_remove(at);
        Some((task, resources))
    }

    /// Puts the tasks that were passed over back into their queues.
    pub fn restore(&mut self) {
        while let Some((urgent, waiting)) = self.passed.pop() {
            self.wait(urgent, waiting);
        }
    }
}
