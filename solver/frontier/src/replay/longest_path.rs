//! A lower bound on the replayed time: the longest path with jumps (docs/certificates.md).
//!
//! The compute tasks c_0 … c_{n-1} run in program order. For a communication task j let
//!
//! ```text
//! r_j = the last compute task among its ancestors (before c_0: none)
//! d_j = the first compute task among its descendants (after c_{n-1}: none)
//! ```
//!
//! Under any schedule all tasks j with `r_j >= a` and `d_j <= b` run after the end of `c_a` and
//! before the start of `c_b`, one after another on their stream. So the longest path from the start
//! to the end of the step, where a node costs its computation and a jump from a to b the
//! communication of all those j, is no longer than the step. Which tasks lie on a path does not
//! depend on the durations, so a path is a set of tasks whose durations add up to a lower bound on
//! the step under *every* strategy.

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::program::{Program, TaskId, COMPUTE};

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
    /// From the end of one compute task to the end of a later one.
    Between(TaskId, TaskId),
}

/// Between which nodes each task runs under every strategy.
///
/// Node 0 is the start of the step, node p + 1 the compute task at position p among those that
/// compute, the last node the end of the step. A task of communication runs after the end of node
/// `after` and before the start of node `before`; for a task that computes both are its own node.
#[derive(Debug, Clone)]
pub struct Between {
    pub after: IdVec<TaskId, usize>,
    pub before: IdVec<TaskId, usize>,
}

impl Between {
    /// Determines the nodes around each task of a program.
    pub fn of(program: &Program) -> Self {
        let (tasks, last) = (program.tasks(), program.compute.len() + 1);
        let mut after: IdVec<TaskId, usize> = IdVec::filled(0, tasks);
        let mut before: IdVec<TaskId, usize> = IdVec::filled(last, tasks);
        for (position, &task) in program.compute.iter().enumerate() {
            after[task] = position + 1;
            before[task] = position + 1;
        }
        for task in program.streams.ids() {
            for &follower in program.after.of(task) {
                if program.streams[follower] != COMPUTE {
                    after[follower] = after[follower].max(after[task]);
                }
            }
        }
        for task in program.streams.ids().rev() {
            if program.streams[task] != COMPUTE {
                let followers = program.after.of(task).iter();
                before[task] = followers.fold(last, |first, &f| first.min(before[f]));
            }
        }
        Self { after, before }
    }
}

/// Finds longest paths of one program; what depends on its structure alone is computed once.
#[derive(Debug)]
pub struct LongestPaths<'a> {
    program: &'a Program,
    /// Each task of communication, with the nodes that it runs after and before.
    released: Vec<(TaskId, usize, usize)>,
    /// The same tasks by the position of d: the starts of each node's list in `released`.
    starts: Vec<usize>,
    /// Per compute task, its position among them.
    position: IdVec<TaskId, usize>,
}

impl<'a> LongestPaths<'a> {
    /// Determines between which compute tasks each task of communication runs.
    pub fn new(program: &'a Program) -> Self {
        let tasks = program.tasks();
        let nodes = program.compute.len();
        let mut position = IdVec::filled(usize::MAX, tasks);
        for (at, &task) in program.compute.iter().enumerate() {
            position[task] = at;
        }
        let Between { after, before } = Between::of(program);
        let mut released: Vec<(TaskId, usize, usize)> = program
            .streams
            .ids()
            .filter(|t| program.streams[*t] != COMPUTE)
            .map(|t| (t, after[t], before[t]))
            .collect();
        released.sort_by_key(|&(task, _, until)| (until, task.index()));
        let mut starts = vec![0; nodes + 3];
        for &(_, _, until) in &released {
            starts[until + 1] += 1;
        }
        for node in 0..nodes + 2 {
            starts[node + 1] += starts[node];
        }
        Self {
            program,
            released,
            starts,
            position,
        }
    }

    /// Returns the longest path under these durations.
    ///
    /// # Errors
    ///
    /// Rejects a wrong number of durations, and a span that is not two compute tasks in order.
    pub fn longest(&self, durations_s: &[f64], span: Span) -> Result<Path, SolveError> {
        let (first, last) = self.ends(span)?;
        if durations_s.len() != self.program.tasks() {
            return Err(SolveError::Invalid(format!(
                "expected {} durations, got {}",
                self.program.tasks(),
                durations_s.len()
            )));
        }
        let mut reached = Reached::new(last - first + 1);
        let mut previous = vec![0_usize; last - first + 1];
        reached.set(0, 0.0);
        for node in first + 1..=last {
            for &(task, from, _) in self.ending_at(node) {
                if from >= first && durations_s[task.index()] > 0.0 {
                    reached.add_up_to(from - first, durations_s[task.index()]);
                }
            }
            let (start, from) = reached.largest();
            previous[node - first] = from;
            let own = match self.program.compute.get(node - 1) {
                Some(task) => durations_s[task.index()],
                None => 0.0,
            };
            reached.set(node - first, start + own);
        }
        let length_s = reached.at(last - first);
        Ok(Path {
            length_s,
            members: self.members(first, last, &previous),
        })
    }

    /// Returns the tasks of communication that end before a node at the latest.
    fn ending_at(&self, node: usize) -> &[(TaskId, usize, usize)] {
        &self.released[self.starts[node]..self.starts[node + 1]]
    }

    /// Returns the nodes at which a span begins and ends.
    fn ends(&self, span: Span) -> Result<(usize, usize), SolveError> {
        let Span::Between(begin, end) = span else {
            return Ok((0, self.program.compute.len() + 1));
        };
        let of = |task: TaskId| match self.position.get(task) {
            Some(&at) if at != usize::MAX => Ok(at + 1),
            _ => Err(SolveError::Invalid(format!("task {task} does not compute"))),
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
    fn members(&self, first: usize, last: usize, previous: &[usize]) -> Vec<bool> {
        let mut members = vec![false; self.program.tasks()];
        // Per node, the next node of the path after it.
        let mut next = vec![usize::MAX; last - first + 1];
        let mut node = last - first;
        while node > 0 {
            let from = previous[node];
            for skipped in &mut next[from..node] {
                *skipped = node;
            }
            if let Some(task) = self.program.compute.get(node + first - 1) {
                members[task.index()] = true;
            }
            node = from;
        }
        for &(task, from, until) in &self.released {
            if from < first || until > last || from >= last {
                continue;
            }
            members[task.index()] = next[from - first] >= until - first;
        }
        members
    }
}

/// Values at positions, under additions to all positions up to one; a tree of maxima.
struct Reached {
    leaves: usize,
    /// Per node of the tree: what was added to all below it, and the largest value below it
    /// (its own addition included).
    added: Vec<f64>,
    largest: Vec<f64>,
}

impl Reached {
    fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two();
        Self {
            leaves,
            added: vec![0.0; 2 * leaves],
            largest: vec![f64::NEG_INFINITY; 2 * leaves],
        }
    }

    /// Sets a value, whatever was added before.
    fn set(&mut self, at: usize, value: f64) {
        let mut node = at + self.leaves;
        let mut above = 0.0;
        let mut parent = node / 2;
        while parent > 0 {
            above += self.added[parent];
            parent /= 2;
        }
        self.largest[node] = value - above;
        node /= 2;
        self.refresh(node);
    }

    /// Adds to the values at `0..=at`.
    fn add_up_to(&mut self, at: usize, value: f64) {
        // The nodes that cover 0..=at are the left siblings on the way down to at + 1.
        let mut node = at + self.leaves;
        self.largest[node] += value;
        let mut parent = node / 2;
        while parent > 0 {
            if node % 2 == 1 {
                let left = node - 1;
                self.largest[left] += value;
                if left < self.leaves {
                    self.added[left] += value;
                }
            }
            self.largest[parent] =
                self.largest[2 * parent].max(self.largest[2 * parent + 1]) + self.added[parent];
            node = parent;
            parent /= 2;
        }
    }

    fn refresh(&mut self, mut node: usize) {
        while node > 0 {
            self.largest[node] =
                self.largest[2 * node].max(self.largest[2 * node + 1]) + self.added[node];
            node /= 2;
        }
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

    fn at(&self, at: usize) -> f64 {
        let mut node = at + self.leaves;
        let mut value = self.largest[node];
        node /= 2;
        while node > 0 {
            value += self.added[node];
            node /= 2;
        }
        value
    }
}
