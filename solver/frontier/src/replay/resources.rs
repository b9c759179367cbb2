//! The resources of a program: what tasks hold while they run.

use std::collections::BTreeMap;

use crate::model::error::SolveError;
use crate::model::ids::{ids, Id, IdVec};
use crate::replay::lists::Lists;
use crate::replay::program::TaskId;

ids! {
    /// Names a resource of a program. One task at a time holds it.
    ResourceId(u16);
    /// Names a set of resources that tasks hold together.
    SetId(u32);
}

/// The order in which a resource takes the tasks that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Tasks start in the order of their numbers, as a framework issues operators.
    Program,
    /// Whenever the resource is free, the most urgent ready task starts.
    Rank,
    /// As [`Order::Rank`], but a task that would lift a device class above its memory limit is
    /// passed over while anything else runs or can start.
    RankWithinMemory,
}

impl Order {
    /// All orders with their names.
    pub const NAMES: [(&'static str, Order); 3] = [
        ("program", Order::Program),
        ("rank", Order::Rank),
        ("rank-within-memory", Order::RankWithinMemory),
    ];

    /// Returns the order with a name.
    pub fn parse(name: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, order)| *order)
    }
}

/// The resources that each task holds.
#[derive(Debug, Clone)]
pub struct Resources {
    orders: IdVec<ResourceId, Order>,
    /// The distinct sets, each ascending.
    sets: Lists<SetId, ResourceId>,
    /// Per task, the set that it holds.
    held: IdVec<TaskId, SetId>,
    /// Per set, whether one of its resources has the order `Program`.
    in_program: IdVec<SetId, bool>,
    /// Per set, whether its tasks are passed over for want of memory.
    bounded: IdVec<SetId, bool>,
    /// Per resource, the tasks that hold it, in the order of their numbers.
    tasks: Lists<ResourceId, TaskId>,
}

impl Resources {
    /// Checks (task, resource) pairs and groups tasks that hold the same resources.
    pub fn new(
        orders: Vec<Order>,
        tasks: usize,
        holds: &[(u32, ResourceId)],
    ) -> Result<Self, SolveError> {
        let invalid = |text: String| Err(SolveError::Invalid(text));
        if orders.len() > usize::from(u16::MAX) {
            return invalid(format!(
                "at most {} resources, got {}",
                u16::MAX,
                orders.len()
            ));
        }
        for &(task, resource) in holds {
            if task as usize >= tasks || resource.index() >= orders.len() {
                return invalid(format!(
                    "unknown task {task} or resource {resource} in holds"
                ));
            }
        }
        let pairs = holds.iter().map(|&(t, r)| (TaskId::from(t), r));
        let by_task = Lists::group(tasks, pairs);
        let mut numbers: BTreeMap<Vec<ResourceId>, SetId> = BTreeMap::new();
        let mut held = IdVec::default();
        for task in (0..tasks).map(TaskId::new) {
            let mut set = by_task.of(task).to_vec();
            set.sort_unstable();
            if let Some(twice) = set.windows(2).find(|pair| pair[0] == pair[1]) {
                return invalid(format!("task {task} holds resource {} twice", twice[0]));
            }
            let next = SetId::new(numbers.len());
            held.push(*numbers.entry(set).or_insert(next));
        }
        let orders: IdVec<ResourceId, Order> = orders.into();
        let members = numbers
            .iter()
            .flat_map(|(set, &number)| set.iter().map(move |&r| (number, r)));
        let sets = Lists::group(numbers.len(), members);
        let any = |order: Order| -> IdVec<SetId, bool> {
            let of = |set| sets.of(SetId::new(set)).iter().any(|&r| orders[r] == order);
            (0..sets.len()).map(of).collect()
        };
        let in_program = any(Order::Program);
        let mut bounded = any(Order::RankWithinMemory);
        for (bounded, in_program) in bounded.iter_mut().zip(&in_program) {
            *bounded &= !in_program;
        }
        let ascending = (0..tasks).map(TaskId::new);
        let by_resource = ascending.flat_map(|t| by_task.of(t).iter().map(move |&r| (r, t)));
        let tasks = Lists::group(orders.len(), by_resource);
        Ok(Self {
            orders,
            sets,
            held,
            in_program,
            bounded,
            tasks,
        })
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.orders.len()
    }

    /// Returns the number of distinct sets.
    pub fn set_count(&self) -> usize {
        self.sets.len()
    }

    /// Returns the set that a task holds.
    pub fn set_of(&self, task: TaskId) -> SetId {
        self.held[task]
    }

    /// Returns the resources of a set, ascending.
    pub fn of_set(&self, set: SetId) -> &[ResourceId] {
        self.sets.of(set)
    }

    /// Returns the resources that a task holds, ascending.
    pub fn of(&self, task: TaskId) -> &[ResourceId] {
        self.sets.of(self.held[task])
    }

    /// Returns the tasks that hold a resource, in the order of their numbers.
    pub fn tasks(&self, resource: ResourceId) -> &[TaskId] {
        self.tasks.of(resource)
    }

    /// Returns whether a task holds a resource that keeps the program's order.
    pub fn in_program(&self, task: TaskId) -> bool {
        self.in_program[self.held[task]]
    }

    /// Returns whether tasks with this set are passed over for want of memory.
    pub fn is_bounded(&self, set: SetId) -> bool {
        self.bounded[set]
    }

    /// Returns what the program's order adds to the dependencies: (before, after) for neighbours on
    /// each resource that keeps it.
    pub fn program_order(&self) -> impl Iterator<Item = (TaskId, TaskId)> + Clone + '_ {
        let kept = self
            .orders
            .ids()
            .filter(|r| self.orders[*r] == Order::Program);
        kept.flat_map(|r| self.tasks.of(r).windows(2).map(|pair| (pair[0], pair[1])))
    }
}
