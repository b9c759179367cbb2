//! The resources of a program: what tasks hold while they run.

use std::collections::HashMap;

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

/// What a task holds.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Where the resources of the set are in the list of all sets.
    start: u32,
    end: u32,
    pub set: SetId,
    /// Whether one of the resources has the order `Program`.
    pub in_program: bool,
    /// Whether the task is passed over for want of memory.
    pub is_bounded: bool,
}

/// The resources that each task holds.
#[derive(Debug, Clone)]
pub struct Resources {
    orders: IdVec<ResourceId, Order>,
    /// The distinct sets one after the other, each ascending.
    sets: Vec<ResourceId>,
    /// What the tasks of each set hold.
    held: IdVec<SetId, Held>,
    set_of: IdVec<TaskId, SetId>,
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
        let orders: IdVec<ResourceId, Order> = orders.into();
        let mut sets = Vec::new();
        let mut known: HashMap<Vec<ResourceId>, SetId> = HashMap::new();
        let mut held = IdVec::default();
        let mut set_of = IdVec::default();
        for task in (0..tasks).map(TaskId::new) {
            let mut set = by_task.of(task).to_vec();
            if set.is_empty() {
                return invalid(format!("task {task} holds no resource"));
            }
            set.sort_unstable();
            if let Some(twice) = set.windows(2).find(|pair| pair[0] == pair[1]) {
                return invalid(format!("task {task} holds resource {} twice", twice[0]));
            }
            let number = SetId::new(known.len());
            let of_task = known.entry(set).or_insert_with_key(|set| {
                let any = |order| set.iter().any(|&r| orders[r] == order);
                let in_program = any(Order::Program);
                sets.extend_from_slice(set);
                held.push(Held {
                    start: (sets.len() - set.len()) as u32,
                    end: sets.len() as u32,
                    set: number,
                    in_program,
                    is_bounded: !in_program && any(Order::RankWithinMemory),
                })
            });
            set_of.push(*of_task);
        }
        let ascending = (0..tasks).map(TaskId::new);
        let by_resource = ascending.flat_map(|t| by_task.of(t).iter().map(move |&r| (r, t)));
        let tasks = Lists::group(orders.len(), by_resource);
        Ok(Self {
            orders,
            sets,
            held,
            set_of,
            tasks,
        })
    }

    /// Returns the resources of a program of some of the tasks, which `number` numbers anew.
    pub fn of_tasks(&self, tasks: &[TaskId], number: impl Fn(TaskId) -> Option<TaskId>) -> Self {
        Self {
            orders: self.orders.clone(),
            sets: self.sets.clone(),
            held: self.held.clone(),
            set_of: tasks.iter().map(|task| self.set_of[*task]).collect(),
            tasks: self.tasks.of_keys(self.orders.ids(), number),
        }
    }

    /// Returns the order of a resource.
    pub fn order(&self, resource: ResourceId) -> Order {
        self.orders[resource]
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.orders.len()
    }

    /// Returns the number of distinct sets.
    pub fn set_count(&self) -> usize {
        self.held.len()
    }

    /// Returns what a task holds.
    #[inline]
    pub fn held(&self, task: TaskId) -> Held {
        self.held[self.set_of[task]]
    }

    /// Returns the resources that a task holds, ascending.
    #[inline]
    pub fn of(&self, task: TaskId) -> &[ResourceId] {
        let held = &self.held[self.set_of[task]];
        &self.sets[held.start as usize..held.end as usize]
    }

    /// Returns the tasks that hold a resource, in the order of their numbers.
    pub fn tasks(&self, resource: ResourceId) -> &[TaskId] {
        self.tasks.of(resource)
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
