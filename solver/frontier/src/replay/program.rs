//! A step program: what devices do in one training step, for every strategy at once.
//!
//! Each task holds a set of resources while it runs and comes after all tasks that it depends on,
//! so tasks can be issued in the order of their numbers. Buffers are allocated when a task starts
//! and freed when the last of their uses has ended; each is in the memory of one device class. A
//! use may name a flag, so that it counts only under some strategies. While a buffer has uses left
//! it may keep others: what uses it uses them too. A strategy gives the durations, the sizes and
//! the flags; all strategies share the structure.
//!
//! A conditional task takes part only under strategies that set its flag. Elsewhere it is void: the
//! step is that of a program without the task, its dependencies and its uses.

use crate::model::error::SolveError;
use crate::model::ids::{ids, Id, IdVec};
use crate::replay::buffers::Buffers;
use crate::replay::chains::Chains;
use crate::replay::conditions::{self, Conditions};
use crate::replay::lists::Lists;
use crate::replay::resources::{Order, ResourceId, Resources};

ids! {
    /// Names a task of a program; a task comes after all tasks that it depends on.
    TaskId(u32);
    /// Names a buffer of a program.
    BufferId(u32);
    /// Names a class of devices that do the same, of which one is replayed.
    DeviceClassId(u16);
}

/// The flag of a use that counts under every strategy.
pub const ALWAYS: i32 = -1;

/// Keeps a buffer until `task` has ended, if `flag` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub buffer: u32,
    pub task: u32,
    pub flag: i32,
}

/// Counts each use of `buffer` as one of `kept` too, if `flag` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub buffer: u32,
    /// A buffer with a lower number.
    pub kept: u32,
    pub flag: i32,
}

/// The unchecked parts of a program.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The number of tasks.
    pub tasks: usize,
    /// The order of each resource.
    pub resources: Vec<Order>,
    /// (task, resource): the task holds the resource while it runs. A task without resources runs
    /// beside everything else.
    pub holds: Vec<(u32, ResourceId)>,
    /// (before, after): the second task starts when the first has ended.
    pub dependencies: Vec<(u32, u32)>,
    /// The task that allocates each buffer; -1 if it exists before the first task.
    pub makers: Vec<i32>,
    /// Whether each buffer is never freed.
    pub lasting: Vec<bool>,
    /// The number of device classes.
    pub device_classes: usize,
    /// The device class of each buffer; empty if all are in class 0.
    pub buffer_classes: Vec<DeviceClassId>,
    pub uses: Vec<Use>,
    pub keeps: Vec<Keep>,
    /// The number of flags that a strategy gives.
    pub given_flags: usize,
    /// Further flags, each set where two earlier ones are.
    pub both: Vec<(u32, u32)>,
    /// (task, flag): the task takes part only where the flag is set. Such a task allocates nothing
    /// and holds no resource with the order `Program`.
    pub conditions: Vec<(u32, i32)>,
    /// The tasks whose end times replays return.
    pub marks: Vec<u32>,
}

impl Default for Parts {
    /// Returns the parts of a program without tasks, for one device class.
    fn default() -> Self {
        Self {
            tasks: 0,
            resources: Vec::new(),
            holds: Vec::new(),
            dependencies: Vec::new(),
            makers: Vec::new(),
            lasting: Vec::new(),
            device_classes: 1,
            buffer_classes: Vec::new(),
            uses: Vec::new(),
            keeps: Vec::new(),
            given_flags: 0,
            both: Vec::new(),
            conditions: Vec::new(),
            marks: Vec::new(),
        }
    }
}

/// A checked program.
#[derive(Debug, Clone)]
pub struct Program {
    pub(super) resources: Resources,
    /// Per task, how many tasks it waits for: those that it depends on, and those just before it in
    /// the program's order on a resource, without those that others of them come after ([`Chains`]).
    pub(super) before: IdVec<TaskId, u32>,
    /// The tasks that wait for conditional ones at most, ascending.
    pub(super) first: Vec<TaskId>,
    /// Per task, the tasks that wait for it.
    pub(super) after: Lists<TaskId, TaskId>,
    pub(super) conditions: Conditions,
    pub(super) buffers: Buffers,
    pub(super) device_classes: usize,
    pub(super) given_flags: usize,
    pub(super) both: Vec<(u32, u32)>,
    /// Per task, the positions of its marks.
    pub(super) marks: Lists<TaskId, u32>,
    pub(super) mark_count: usize,
}

impl Program {
    /// Checks the parts of a program and indexes them.
    ///
    /// # Errors
    ///
    /// Rejects numbers out of range, a task that depends on a later one, and a condition on a task
    /// that cannot have it.
    pub fn new(mut parts: Parts) -> Result<Self, SolveError> {
        check(&parts)?;
        let tasks = parts.tasks;
        let conditions = Conditions::new(&parts);
        conditions.restrict_uses(&mut parts);
        let buffers = Buffers::new(&parts);
        let resources = Resources::new(parts.resources, tasks, &parts.holds)?;
        let given = parts.dependencies.iter();
        let given = given.map(|&(b, a)| (TaskId::from(b), TaskId::from(a)));
        let mut after = Lists::group(tasks, given.chain(resources.program_order()));
        Chains::new(&resources, tasks).thin(&mut after, &conditions);
        let (before, first) = waits(&after, &conditions, tasks);
        Ok(Self {
            first,
            before,
            after,
            conditions,
            buffers,
            resources,
            device_classes: parts.device_classes,
            given_flags: parts.given_flags,
            both: parts.both,
            mark_count: parts.marks.len(),
            marks: Lists::group(
                tasks,
                parts
                    .marks
                    .iter()
                    .enumerate()
                    .map(|(m, &task)| (task.into(), m as u32)),
            ),
        })
    }

    /// Returns the number of tasks.
    pub fn tasks(&self) -> usize {
        self.before.len()
    }

    /// Returns the number of marks.
    pub fn marks(&self) -> usize {
        self.mark_count
    }

    /// Returns the number of resources.
    pub fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Returns the number of device classes.
    pub fn device_classes(&self) -> usize {
        self.device_classes
    }

    /// Returns the resources that a task holds, ascending.
    pub fn resources_of(&self, task: TaskId) -> &[ResourceId] {
        self.resources.of(task)
    }

    /// Returns the tasks that hold a resource, in the order of their numbers.
    pub fn tasks_of(&self, resource: ResourceId) -> &[TaskId] {
        self.resources.tasks(resource)
    }

    /// Returns whether a resource takes its tasks in the program's order.
    pub fn keeps_order(&self, resource: ResourceId) -> bool {
        self.resources.order(resource) == Order::Program
    }

    /// Returns the number of buffers.
    pub fn buffers(&self) -> usize {
        self.buffers.makers.len()
    }

    /// Returns the number of flags that a strategy gives.
    pub fn flags(&self) -> usize {
        self.given_flags
    }
}

/// Returns how many tasks each task waits for, and those that wait for conditional ones at most.
pub(super) fn waits(
    after: &Lists<TaskId, TaskId>,
    conditions: &Conditions,
    tasks: usize,
) -> (IdVec<TaskId, u32>, Vec<TaskId>) {
    let mut before = IdVec::filled(0_u32, tasks);
    let mut is_first = IdVec::filled(true, tasks);
    for earlier in (0..tasks).map(TaskId::new) {
        let is_conditional = conditions.is_conditional(earlier);
        for &later in after.of(earlier) {
            before[later] += 1;
            is_first[later] &= is_conditional;
        }
    }
    let first = before.ids().filter(|task| is_first[*task]).collect();
    (before, first)
}

fn check(parts: &Parts) -> Result<(), SolveError> {
    let (tasks, buffers) = (parts.tasks, parts.makers.len());
    let invalid = |text: String| Err(SolveError::Invalid(text));
    for &(before, after) in &parts.dependencies {
        if before >= after || after as usize >= tasks {
            return invalid(format!("task {after} cannot come after task {before}"));
        }
    }
    if parts.lasting.len() != buffers {
        return invalid("makers and lasting must have the same length".into());
    }
    let most = usize::from(u16::MAX);
    if !(1..=most).contains(&parts.device_classes) {
        let given = parts.device_classes;
        return invalid(format!("device_classes must be 1 to {most}, got {given}"));
    }
    let classes = &parts.buffer_classes;
    if !classes.is_empty() && classes.len() != buffers {
        return invalid("makers and buffer_classes must have the same length".into());
    }
    if let Some(class) = classes.iter().find(|c| c.index() >= parts.device_classes) {
        return invalid(format!("unknown device class {class} in buffer_classes"));
    }
    if let Some(maker) = parts.makers.iter().find(|m| **m >= tasks as i32) {
        return invalid(format!("unknown task {maker} in makers"));
    }
    for (position, &(a, b)) in parts.both.iter().enumerate() {
        if a.max(b) as usize >= parts.given_flags + position {
            return invalid(format!(
                "flag {} must be defined before it is used",
                a.max(b)
            ));
        }
    }
    if let Some(mark) = parts.marks.iter().find(|m| **m as usize >= tasks) {
        return invalid(format!("unknown task {mark} in marks"));
    }
    let flags = (parts.given_flags + parts.both.len()) as i32;
    let made = made_by(parts, flags)?;
    for item in &parts.uses {
        if item.buffer as usize >= buffers || item.task as usize >= tasks {
            return invalid(format!(
                "unknown buffer {} or task {} in uses",
                item.buffer, item.task
            ));
        }
        if item.flag < ALWAYS || item.flag >= flags {
            return invalid(format!("unknown flag {} in uses", item.flag));
        }
        if i64::from(made[item.buffer as usize]) > i64::from(item.task) {
            return invalid(format!(
                "buffer {} is used before it is allocated",
                item.buffer
            ));
        }
    }
    conditions::check(parts)
}

/// Returns the latest maker of each buffer and of those that it keeps.
fn made_by(parts: &Parts, flags: i32) -> Result<Vec<i32>, SolveError> {
    let invalid = |text: String| Err(SolveError::Invalid(text));
    let mut made = parts.makers.clone();
    let mut keeps = parts.keeps.clone();
    keeps.sort_by_key(|keep| keep.buffer);
    for Keep { buffer, kept, flag } in keeps {
        if kept >= buffer || buffer as usize >= made.len() {
            return invalid(format!("buffer {buffer} cannot keep buffer {kept}"));
        }
        if flag < ALWAYS || flag >= flags {
            return invalid(format!("unknown flag {flag} in keeps"));
        }
        made[buffer as usize] = made[buffer as usize].max(made[kept as usize]);
    }
    Ok(made)
}
