//! The conditional tasks of a program: those that take part only where a flag is set.

use std::collections::HashMap;

use crate::model::error::SolveError;
use crate::model::ids::{Id, IdVec};
use crate::replay::program::{Parts, TaskId, ALWAYS};
use crate::replay::resources::Order;

/// Which tasks are conditional, and under which flags.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Per task, the flag under which it takes part.
    flags: IdVec<TaskId, i32>,
    /// The conditional tasks, ascending.
    tasks: Vec<TaskId>,
}

impl Conditions {
    /// Indexes the conditions of checked parts.
    pub fn new(parts: &Parts) -> Self {
        let mut flags = IdVec::filled(ALWAYS, parts.tasks);
        for &(task, flag) in &parts.conditions {
            flags[TaskId::from(task)] = flag;
        }
        Self::of_flags(flags)
    }

    /// Returns the conditions of the tasks with these flags, `ALWAYS` where there is none.
    pub fn of_flags(flags: IdVec<TaskId, i32>) -> Self {
        let is_conditional = |task: &TaskId| flags[*task] != ALWAYS;
        let tasks = flags.ids().filter(is_conditional).collect();
        Self { flags, tasks }
    }

    /// Returns the flag under which a task takes part.
    pub fn flag(&self, task: TaskId) -> i32 {
        self.flags[task]
    }

    /// Returns whether a task takes part only under some strategies.
    pub fn is_conditional(&self, task: TaskId) -> bool {
        self.flag(task) != ALWAYS
    }

    /// Returns the conditional tasks, ascending.
    pub fn tasks(&self) -> &[TaskId] {
        &self.tasks
    }

    /// Lets the uses by conditional tasks count only where these take part.
    pub fn restrict_uses(&self, parts: &mut Parts) {
        let Parts {
            uses,
            both,
            given_flags,
            ..
        } = parts;
        let mut known: HashMap<(u32, u32), i32> = HashMap::new();
        for item in uses {
            let condition = self.flag(item.task.into());
            if item.flag == ALWAYS {
                item.flag = condition;
            } else if condition != ALWAYS && condition != item.flag {
                let pair = (item.flag as u32, condition as u32);
                item.flag = *known.entry(pair).or_insert_with(|| {
                    both.push(pair);
                    (*given_flags + both.len() - 1) as i32
                });
            }
        }
    }
}

/// Rejects conditions on unknown tasks and flags, two on one task, and one on a task that keeps the
/// program's order or allocates a buffer.
pub fn check(parts: &Parts) -> Result<(), SolveError> {
    let invalid = |text: String| Err(SolveError::Invalid(text));
    let flags = (parts.given_flags + parts.both.len()) as i64;
    let mut is_conditional = vec![false; parts.tasks];
    for &(task, flag) in &parts.conditions {
        let Some(known) = is_conditional.get_mut(task as usize) else {
            return invalid(format!("unknown task {task} in conditions"));
        };
        if !(0..flags).contains(&i64::from(flag)) {
            return invalid(format!("unknown flag {flag} in conditions"));
        }
        if std::mem::replace(known, true) {
            return invalid(format!("task {task} has two conditions"));
        }
    }
    let is_conditional = |task: usize| is_conditional.get(task).is_some_and(|is| *is);
    let keeps_order = |order: Option<&Order>| order == Some(&Order::Program);
    let mut holds = parts.holds.iter();
    if let Some((task, resource)) = holds.find(|(task, resource)| {
        is_conditional(*task as usize) && keeps_order(parts.resources.get(resource.index()))
    }) {
        return invalid(format!(
            "conditional task {task} holds resource {resource}, which keeps the program's order"
        ));
    }
    let made = parts
        .makers
        .iter()
        .flat_map(|maker| usize::try_from(*maker));
    if let Some(maker) = made.into_iter().find(|maker| is_conditional(*maker)) {
        return invalid(format!("conditional task {maker} allocates a buffer"));
    }
    Ok(())
}
