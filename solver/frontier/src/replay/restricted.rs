//! A program without what does nothing under any of a few strategies.
//!
//! Most of what a program describes happens under few strategies: copies and moves between layouts
//! that are equal under the others, and buffers for them. The strategies that a search replays
//! together mostly differ in a few groups, so what none of them needs is left out once for all:
//!
//! - buffers without bytes, uses whose flag is never set, and tasks whose condition never is;
//! - tasks that take no time and neither allocate nor use anything, if all that they release would
//!   wait for its turn. Those before them then release it.
//!
//! The replay is the same to the last digit: everything that is left happens in the same order at
//! the same times. What starts or ends at one moment in an order that matters, allocations and what
//! frees buffers, is never released by a task that was left out.

use crate::model::ids::{Id, IdVec};
use crate::replay::batch::Batch;
use crate::replay::buffers::Buffers;
use crate::replay::cells::Sheet;
use crate::replay::chains::Chains;
use crate::replay::columns::Columns;
use crate::replay::conditions::Conditions;
use crate::replay::lists::Lists;
use crate::replay::outcome::Replayed;
use crate::replay::program::{waits, BufferId, Program, TaskId, ALWAYS};
use crate::replay::resources::Order;

/// In place of a flag: it is set under none of the strategies.
const NEVER: i32 = -2;

/// The program of what at least one of some strategies needs, and their values in it.
pub struct Restricted {
    pub program: Program,
    pub values: Columns,
    /// The numbers of its tasks in the whole program.
    tasks: Vec<TaskId>,
}

impl Restricted {
    /// Leaves out what no strategy needs; all have been checked.
    pub fn new(program: &Program, batch: &Batch) -> Self {
        let (flags, of_flag, both) = flags(program, &batch.flags);
        let is_needed = needed_buffers(program, &batch.sizes_bytes, &of_flag);
        let buffers: Vec<BufferId> = is_needed.ids().filter(|b| is_needed[*b]).collect();
        let mut numbers = IdVec::filled(None, is_needed.len());
        for (at, &buffer) in buffers.iter().enumerate() {
            numbers[buffer] = Some(BufferId::new(at));
        }
        let flagged = |(buffer, flag): (BufferId, i32)| {
            let flag = state(&of_flag, flag);
            numbers[buffer].filter(|_| flag != NEVER).map(|b| (b, flag))
        };
        let every = (0..program.tasks()).map(TaskId::new);
        let uses: Lists<TaskId, (BufferId, i32)> =
            program.buffers.uses.of_keys(every.clone(), flagged);
        let conditions = every.clone().map(|t| program.conditions.flag(t));
        let conditions: IdVec<TaskId, i32> = conditions.map(|f| state(&of_flag, f)).collect();

        let time = Times::of(&batch.durations_s);
        let is_idle = |task: TaskId| uses.of(task).is_empty() && program.marks.of(task).is_empty();
        let after = released(program, &time, &conditions, is_idle);
        let tasks: Vec<TaskId> = every.filter(|t| after.takes_part[*t]).collect();
        let mut task_numbers = IdVec::filled(None, program.tasks());
        for (at, &task) in tasks.iter().enumerate() {
            task_numbers[task] = Some(TaskId::new(at));
        }
        let number = |task: TaskId| task_numbers[task];

        let conditions = Conditions::of_flags(tasks.iter().map(|t| conditions[*t]).collect());
        let resources = program.resources.of_tasks(&tasks, number);
        let mut after = after.lists.of_keys(tasks.iter().copied(), number);
        Chains::new(&resources, tasks.len()).thin(&mut after, &conditions);
        let (before, first) = waits(&after, &conditions, tasks.len());
        let restricted = Program {
            resources,
            before,
            first,
            after,
            conditions,
            buffers: restricted_buffers(program, &uses, &tasks, &numbers, &of_flag, number),
            device_classes: program.device_classes,
            given_flags: flags.len(),
            both,
            marks: program.marks.of_keys(tasks.iter().copied(), Some),
            mark_count: program.mark_count,
        };
        let of_tasks = tasks.iter().map(|task| task.index());
        let of_buffers = buffers.iter().map(|buffer| buffer.index());
        let of_flags = flags.iter().map(|flag| *flag as usize);
        Self {
            program: restricted,
            values: Columns::of(batch, of_tasks, of_buffers, of_flags),
            tasks,
        }
    }

    /// Gives tasks the numbers of the whole program.
    pub fn renumbered(&self, mut replayed: Replayed) -> Replayed {
        for peak in replayed.peaks.iter_mut() {
            peak.task = peak.task.map(|task| self.tasks[task.index()]);
        }
        replayed
    }
}

/// Returns what stands for a flag: `ALWAYS`, `NEVER` or the number of one that varies.
fn state(of_flag: &[i32], flag: i32) -> i32 {
    usize::try_from(flag).map_or(ALWAYS, |flag| of_flag[flag])
}

/// Returns the given flags that vary, the state of each flag, and the pairs of those that are set
/// where two are.
fn flags(program: &Program, sheet: &Sheet) -> (Vec<u32>, Vec<i32>, Vec<(u32, u32)>) {
    let mut varies = vec![false; sheet.first.len()];
    for (flag, _) in sheet.others() {
        varies[*flag as usize] = true;
    }
    let mut varying = Vec::new();
    let mut states = Vec::with_capacity(varies.len() + program.both.len());
    for (flag, varies) in varies.into_iter().enumerate() {
        states.push(if varies {
            varying.push(flag as u32);
            varying.len() as i32 - 1
        } else if sheet.first[flag] != 0.0 {
            ALWAYS
        } else {
            NEVER
        });
    }
    let mut both: Vec<(u32, u32)> = Vec::new();
    for &(a, b) in &program.both {
        let pair = (states[a as usize], states[b as usize]);
        states.push(match pair {
            (NEVER, _) | (_, NEVER) => NEVER,
            (ALWAYS, other) | (other, ALWAYS) => other,
            (a, b) if a == b => a,
            (a, b) => {
                both.push((a as u32, b as u32));
                (varying.len() + both.len()) as i32 - 1
            }
        });
    }
    (varying, states, both)
}

/// Returns which buffers have bytes under some strategy, or keep one that has.
fn needed_buffers(program: &Program, sizes: &Sheet, of_flag: &[i32]) -> IdVec<BufferId, bool> {
    let mut is_needed: IdVec<BufferId, bool> = sizes.first.iter().map(|s| *s > 0.0).collect();
    for &(buffer, size) in sizes.others() {
        is_needed[BufferId::from(buffer)] |= size > 0.0;
    }
    for &keeper in program.buffers.keepers.iter().rev() {
        let mut kept = program.buffers.kept.of(keeper).iter();
        is_needed[keeper] |=
            kept.any(|&(kept, flag)| is_needed[kept] && state(of_flag, flag) != NEVER);
    }
    is_needed
}

/// Per task, whether it takes time under any strategy and under all.
struct Times {
    any: IdVec<TaskId, bool>,
    all: IdVec<TaskId, bool>,
}

impl Times {
    fn of(durations: &Sheet) -> Self {
        let first: IdVec<TaskId, bool> = durations.first.iter().map(|d| *d > 0.0).collect();
        let (mut any, mut all) = (first.clone(), first);
        for &(task, duration) in durations.others() {
            any[TaskId::from(task)] |= duration > 0.0;
            all[TaskId::from(task)] &= duration > 0.0;
        }
        Self { any, all }
    }
}

/// Which tasks take part, and those that wait for each of them.
struct Released {
    takes_part: IdVec<TaskId, bool>,
    lists: Lists<TaskId, TaskId>,
}

/// Finds the tasks that are left out, and lets those that wait for them wait for what they waited
/// for.
fn released(
    program: &Program,
    time: &Times,
    conditions: &IdVec<TaskId, i32>,
    is_idle: impl Fn(TaskId) -> bool,
) -> Released {
    let tasks = program.tasks();
    let mut waits_for = IdVec::filled(0_u32, tasks);
    for task in waits_for.ids() {
        for &follower in program.after.of(task) {
            waits_for[follower] += 1;
        }
    }
    // In descending order of tasks, what each of them releases.
    let mut released: Vec<TaskId> = Vec::new();
    let mut stretch: IdVec<TaskId, (u32, u32)> = IdVec::filled((0, 0), tasks);
    let mut takes_part = IdVec::filled(true, tasks);
    // Whether it makes no difference in which order a task and others are released at one moment.
    let mut in_any_order = IdVec::filled(false, tasks);
    for task in waits_for.ids().rev() {
        if conditions[task] == NEVER {
            takes_part[task] = false;
            continue;
        }
        let start = released.len();
        for &follower in program.after.of(task) {
            if takes_part[follower] {
                released.push(follower);
            } else if conditions[follower] != NEVER {
                let (start, end) = stretch[follower];
                released.extend_from_within(start as usize..end as usize);
            }
        }
        stretch[task] = (start as u32, released.len() as u32);
        let followers = &released[start..];
        let idle = is_idle(task) && followers.iter().all(|f| in_any_order[*f]);
        let held = program.resources.held(task);
        in_any_order[task] = held.in_program || time.all[task] || idle;
        let orders = program.resources.of(task).iter();
        let waits_for_resources = held.in_program
            && !orders
                .map(|r| program.resources.order(*r))
                .all(|order| order == Order::Program);
        takes_part[task] = !idle
            || time.any[task]
            || waits_for_resources
            || conditions[task] != ALWAYS
            || (followers.len() > 1 && waits_for[task] > 1);
    }
    let mut lists = Lists::none();
    for task in takes_part.ids() {
        let (start, end) = stretch[task];
        for &follower in &released[start as usize..end as usize] {
            lists.push(follower);
        }
        lists.close();
    }
    Released { takes_part, lists }
}

/// Returns the buffers that have numbers, for the tasks that take part.
fn restricted_buffers(
    program: &Program,
    uses: &Lists<TaskId, (BufferId, i32)>,
    tasks: &[TaskId],
    numbers: &IdVec<BufferId, Option<BufferId>>,
    of_flag: &[i32],
    task_number: impl Fn(TaskId) -> Option<TaskId>,
) -> Buffers {
    let of = &program.buffers;
    let every = tasks.iter().copied();
    let renumbered = |buffers: &[BufferId]| -> Vec<BufferId> {
        buffers.iter().filter_map(|b| numbers[*b]).collect()
    };
    let needed = || numbers.ids().filter(|b| numbers[*b].is_some());
    let uses: Lists<TaskId, (BufferId, i32)> = uses.of_keys(every.clone(), Some);
    let mut certain_uses: IdVec<BufferId, u32> = needed().map(|b| of.certain_uses[b]).collect();
    let mut flagged_uses = Vec::new();
    for &(buffer, flag) in &of.flagged_uses {
        if let Some(buffer) = numbers[buffer] {
            match state(of_flag, flag) {
                NEVER => {}
                ALWAYS => certain_uses[buffer] += 1,
                flag => flagged_uses.push((buffer, flag)),
            }
        }
    }
    let kept: Lists<BufferId, (BufferId, i32)> = of.kept.of_keys(needed(), |(buffer, flag)| {
        let flag = state(of_flag, flag);
        numbers[buffer].filter(|_| flag != NEVER).map(|b| (b, flag))
    });
    let keepers = renumbered(&of.keepers);
    let maker = |buffer: BufferId| match usize::try_from(of.makers[buffer]) {
        Ok(maker) => task_number(TaskId::new(maker)).map_or(-1, |task| task.index() as i32),
        Err(_) => of.makers[buffer],
    };
    Buffers {
        makers: needed().map(maker).collect(),
        class_of: needed().map(|b| of.class_of[b]).collect(),
        given: renumbered(&of.given),
        allocations: of.allocations.of_keys(every, Some),
        allocated: of
            .allocated
            .of_keys((0..of.allocation_count).map(Id::new), |b| numbers[b]),
        allocation_count: of.allocation_count,
        keepers: keepers
            .into_iter()
            .filter(|b| !kept.of(*b).is_empty())
            .collect(),
        kept,
        uses,
        certain_uses,
        flagged_uses,
    }
}
