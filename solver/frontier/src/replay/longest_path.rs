//! A lower bound on the replayed time: the longest path with jumps (docs/certificates.md).
//!
//! The tasks c_0 … c_{n-1} of one resource with the program's order, the chain, run one after
//! another. For any other task j let
//!
//! ```text
//! r_j = the last task of the chain among its ancestors (before c_0: none)
//! d_j = the first task of the chain among its descendants (after c_{n-1}: none)
//! ```
//!
//! Under any schedule all tasks j of one other resource with `r_j >= a` and `d_j <= b` run after
//! the end of `c_a` and before the start of `c_b`, one after another. So the longest path from the
//! start to the end of the step, where a node costs its own time and a jump from a to b the time of
//! all those j of the resource for which that is the longest, is no longer than the step. Which
//! tasks lie on a path does not depend on the durations, so a path is a set of tasks whose durations
//! add up to a lower bound on the step under *every* strategy.
//!
//! Conditional tasks and all dependencies from and to them are left out, as if the program had none
//! of them: where they are void, nothing waits for them. They lie on no path, and no path leads
//! through them, so the bound holds whichever of them take part.

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::program::{Program, TaskId};
use crate::replay::resources::ResourceId;

/// A path: the least time that its tasks take in any schedule, and which tasks they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    pub length_s: f64,
    /// Per task, whether it lies on the path.
    pub members: Vec<bool>,
}

/// Where a path begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// From the start of the step to its end.
    Step,
    /// From the end of one task of the chain to the end of a later one.
    Between(TaskId, TaskId),
}

/// Between which nodes each task runs under every strategy.
///
/// Node 0 is the start of the step, node p + 1 the task at position p of the chain, the last node
/// the end of the step. A task runs after the end of node `after` and before the start of node
/// `before`; for a task of the chain both are its own node, for a conditional task they are the
/// start and the end of the step.
#[derive(Debug, Clone)]
pub struct Between {
    pub after: IdVec<TaskId, usize>,
    pub before: IdVec<TaskId, usize>,
}

impl Between {
    /// Determines the nodes around each task of a program, with the tasks of a resource as chain.
    pub fn of(program: &Program, chain: ResourceId) -> Self {
        let nodes = program.tasks_of(chain);
        let (tasks, last) = (program.tasks(), nodes.len() + 1);
        let mut in_chain = IdVec::filled(false, tasks);
        let mut after: IdVec<TaskId, usize> = IdVec::filled(0, tasks);
        let mut before: IdVec<TaskId, usize> = IdVec::filled(last, tasks);
        for (position, &task) in nodes.iter().enumerate() {
            in_chain[task] = true;
            after[task] = position + 1;
            before[task] = position + 1;
        }
        let conditions = &program.conditions;
        let certain = in_chain.ids().filter(|t| !conditions.is_conditional(*t));
        for task in certain.clone() {
            for &follower in program.after.of(task) {
                if !in_chain[follower] && !conditions.is_conditional(follower) {
                    after[follower] = after[follower].max(after[task]);
                }
            }
        }
        for task in certain.rev() {
            if !in_chain[task] {
                // A conditional follower is before the end of the step alone.
                let followers = program.after.of(task).iter();
                before[task] = followers.fold(last, |first, &f| first.min(before[f]));
            }
        }
        Self { after, before }
    }
}

/// A task of a resource other than the chain, with the nodes that it runs after and before.
#[derive(Debug, Clone, Copy)]
struct Aside {
    task: TaskId,
    after: usize,
    before: usize,
}

/// The tasks of one resource besides the chain.
#[derive(Debug)]
struct Lane {
    /// In the order of the nodes that they run before.
    tasks: Vec<Aside>,
    /// Per node, where the tasks begin that run before it.
    starts: Vec<usize>,
}

impl Lane {
    fn new(mut tasks: Vec<Aside>, last: usize) -> Self {
        tasks.sort_by_key(|aside| (aside.before, aside.task.index()));
        let mut starts = vec![0; last + 2];
        for aside in &tasks {
            starts[aside.before + 1] += 1;
        }
        for node in 0..=last {
            starts[node + 1] += starts[node];
        }
        Self { tasks, starts }
    }

    /// Returns the tasks that run before a node and before none earlier.
    fn ending_at(&self, node: usize) -> &[Aside] {
        &self.tasks[self.starts[node]..self.starts[node + 1]]
    }
}

/// Finds longest paths of one program; what depends on its structure alone is computed once.
#[derive(Debug)]
pub struct LongestPaths<'a> {
    program: &'a Program,
    chain: &'a [TaskId],
    lanes: Vec<Lane>,
    /// Per task of the chain, its node.
    node: IdVec<TaskId, Option<usize>>,
}

impl<'a> LongestPaths<'a> {
    /// Prepares paths along the tasks of a resource that keeps the program's order.
    ///
    /// # Errors
    ///
    /// Rejects a resource that the program does not have, and one that keeps no order.
    pub fn new(program: &'a Program, chain: ResourceId) -> Result<Self, SolveError> {
        if chain.index() >= program.resources() || !program.keeps_order(chain) {
            return Err(SolveError::Invalid(format!(
                "resource {chain} does not keep the program's order"
            )));
        }
        let between = Between::of(program, chain);
        let nodes = program.tasks_of(chain);
        let mut node = IdVec::filled(None, program.tasks());
        for (position, &task) in nodes.iter().enumerate() {
            node[task] = Some(position + 1);
        }
        let others = (0..program.resources())
            .map(ResourceId::new)
            .filter(|of| *of != chain);
        let lanes = others
            .map(|of| {
                let tasks = program.tasks_of(of).iter();
                let aside = tasks.filter(|t| node[**t].is_none());
                let certain = aside.filter(|t| !program.conditions.is_conditional(**t));
                let aside = certain.map(|&task| Aside {
                    task,
                    after: between.after[task],
                    before: between.before[task],
                });
                Lane::new(aside.collect(), nodes.len() + 1)
            })
            .collect();
        Ok(Self {
            program,
            chain: nodes,
            lanes,
            node,
        })
    }

    /// Returns the longest path under these durations.
    ///
    /// # Errors
    ///
    /// Rejects a wrong number of durations, and a span that is not two tasks of the chain in order.
    pub fn longest(&self, durations_s: &[f64], span: Span) -> Result<Path, SolveError> {
        let (first, last) = self.ends(span)?;
        if durations_s.len() != self.program.tasks() {
            return Err(SolveError::Invalid(format!(
                "expected {} durations, got {}",
                self.program.tasks(),
                durations_s.len()
            )));
        }
        let count = last - first + 1;
        let mut reached: Vec<Reached> = (0..self.lanes.len().max(1))
            .map(|_| Reached::new(count))
            .collect();
        // Per node, the node before it on its longest path and the lane of the jump between them.
        let mut previous = vec![(0_usize, 0_usize); count];
        for of in &mut reached {
            of.set(0, 0.0);
        }
        let mut length_s = 0.0;
        for node in first + 1..=last {
            let mut longest = f64::NEG_INFINITY;
            for (number, of) in reached.iter_mut().enumerate() {
                let ending = self
                    .lanes
                    .get(number)
                    .map_or(&[][..], |l| l.ending_at(node));
                for aside in ending {
                    let duration = durations_s[aside.task.index()];
                    if aside.after >= first && duration > 0.0 {
                        of.add_up_to(aside.after - first, duration);
                    }
                }
                let (start, from) = of.largest();
                if start > longest {
                    longest = start;
                    previous[node - first] = (from, number);
                }
            }
            let own = self.chain.get(node - 1);
            length_s = longest + own.map_or(0.0, |task| durations_s[task.index()]);
            for of in &mut reached {
                of.set(node - first, length_s);
            }
        }
        Ok(Path {
            length_s,
            members: self.members(first, last, &previous),
        })
    }

    /// Returns the nodes at which a span begins and ends.
    fn ends(&self, span: Span) -> Result<(usize, usize), SolveError> {
        let Span::Between(begin, end) = span else {
            return Ok((0, self.chain.len() + 1));
        };
        let of = |task: TaskId| match self.node.get(task) {
            Some(Some(node)) => Ok(*node),
            _ => Err(SolveError::Invalid(format!(
                "task {task} is not of the chain"
            ))),
        };
        let (first, last) = (of(begin)?, of(end)?);
        if first >= last {
            return Err(SolveError::Invalid(format!(
                "a path cannot lead from task {begin} to task {end}"
            )));
        }
        Ok((first, last))
    }

    /// Returns which tasks lie on the path that `previous` describes.
    fn members(&self, first: usize, last: usize, previous: &[(usize, usize)]) -> Vec<bool> {
        let mut members = vec![false; self.program.tasks()];
        // Per node, the next node of the path after it and the lane of the jump to that node.
        let mut next = vec![(usize::MAX, usize::MAX); last - first + 1];
        let mut node = last - first;
        while node > 0 {
            let (from, lane) = previous[node];
            next[from..node].fill((node, lane));
            if let Some(task) = self.chain.get(node + first - 1) {
                members[task.index()] = true;
            }
            node = from;
        }
        for (number, lane) in self.lanes.iter().enumerate() {
            for aside in &lane.tasks {
                if aside.after >= first && aside.after < last && aside.before <= last {
                    let (to, by) = next[aside.after - first];
                    if by == number && to >= aside.before - first {
                        members[aside.task.index()] = true;
                    }
                }
            }
        }
        members
    }
}

/// Values at positions, under additions to all positions up to one; a tree of maxima.
struct Reached {
    leaves: usize,
    /// Per node of the tree: what was added to all below it.
    added: Vec<f64>,
    /// Per node of the tree: the largest value below it, its own addition included.
    largest: Vec<f64>,
}

impl Reached {
    fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two().max(2);
        Self {
            leaves,
            added: vec![0.0; 2 * leaves],
            largest: vec![f64::NEG_INFINITY; 2 * leaves],
        }
    }

    /// Sets a value, whatever was added before.
    fn set(&mut self, at: usize, value: f64) {
        let leaf = at + self.leaves;
        let mut above = 0.0;
        let mut parent = leaf / 2;
        while parent > 0 {
            above += self.added[parent];
            parent /= 2;
        }
        self.largest[leaf] = value - above;
        self.refresh_above(leaf);
    }

    /// Adds to the values at `0..=at`.
    fn add_up_to(&mut self, at: usize, value: f64) {
        // The positions before `at` are below the left siblings of the nodes on the way to it.
        let mut node = at + self.leaves;
        self.largest[node] += value;
        while node > 1 {
            if node % 2 == 1 {
                self.largest[node - 1] += value;
                if node - 1 < self.leaves {
                    self.added[node - 1] += value;
                }
            }
            node /= 2;
            self.refresh(node);
        }
    }

    fn refresh_above(&mut self, mut node: usize) {
        while node > 1 {
            node /= 2;
            self.refresh(node);
        }
    }

    fn refresh(&mut self, node: usize) {
        let below = self.largest[2 * node].max(self.largest[2 * node + 1]);
        self.largest[node] = below + self.added[node];
    }

    /// Returns the largest value and the first position that has it.
    fn largest(&self) -> (f64, usize) {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.largest[node + 1] > self.largest[node] {
                node += 1;
            }
        }
        (self.largest[1], node - self.leaves)
    }
}
