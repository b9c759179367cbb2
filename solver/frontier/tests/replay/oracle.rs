//! A simulator without queues and counters, which looks at all tasks at every moment.
//!
//! It follows the rules in docs/replay.md word by word and is compared with replay exactly.

use std::cmp::Reverse;

use frontier::replay::{BufferId, Order, Parts, Peak, TaskId, ALWAYS};

/// A program with the values of one strategy.
#[derive(Debug, Clone)]
pub struct Instance {
    pub parts: Parts,
    pub durations: Vec<f64>,
    pub sizes: Vec<f64>,
    pub flags: Vec<bool>,
    pub block: u64,
    pub limits: Vec<f64>,
}

impl Instance {
    /// Returns the resources of a task, ascending.
    pub fn holds(&self, task: usize) -> Vec<usize> {
        let pairs = self.parts.holds.iter();
        let mut held: Vec<usize> = pairs
            .filter(|(t, _)| *t as usize == task)
            .map(|(_, r)| usize::from(u16::from(*r)))
            .collect();
        held.sort_unstable();
        held
    }

    fn has_order(&self, task: usize, order: Order) -> bool {
        let held = self.holds(task);
        held.iter().any(|r| self.parts.resources[*r] == order)
    }

    pub fn keeps_program(&self, task: usize) -> bool {
        self.has_order(task, Order::Program)
    }

    /// Returns whether the strategy sets a flag: one of two that are given, or both.
    pub fn sets(&self, flag: i32) -> bool {
        match flag {
            ALWAYS => true,
            2 => self.flags[0] && self.flags[1],
            given => self.flags[given as usize],
        }
    }

    /// Returns whether a task starts without waiting for its resources.
    fn is_immediate(&self, task: usize) -> bool {
        self.durations[task] == 0.0 && !self.keeps_program(task)
    }

    /// Returns whether `later` waits for `task`: it depends on it, or comes after it on a resource
    /// that keeps the program's order.
    fn waits(&self, task: usize, later: usize) -> bool {
        let depends = (task as u32, later as u32);
        let held = self.holds(later);
        let shares = |r: &usize| {
            self.parts.resources[*r] == Order::Program && held.contains(r) && task < later
        };
        self.parts.dependencies.contains(&depends) || self.holds(task).iter().any(shares)
    }

    /// Returns the upward rank of every task.
    pub fn ranks(&self) -> Vec<f64> {
        let tasks = self.parts.tasks;
        let mut ranks = vec![0.0_f64; tasks];
        for task in (0..tasks).rev() {
            let later = (task + 1..tasks).filter(|j| self.waits(task, *j));
            let longest = later.fold(0.0_f64, |most, j| most.max(ranks[j]));
            ranks[task] = longest + self.durations[task];
        }
        ranks
    }

    fn class(&self, buffer: usize) -> usize {
        u16::from(self.parts.buffer_classes[buffer]).into()
    }

    fn size(&self, buffer: usize) -> f64 {
        let block = self.block as f64;
        (self.sizes[buffer] / block).ceil() * block
    }
}

/// What the simulator found, in the form of `Replayed` and `Timeline`.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    pub time_s: f64,
    pub peaks: Vec<Peak>,
    pub busy_s: Vec<f64>,
    pub start_s: Vec<f64>,
    pub end_s: Vec<f64>,
    pub held_bytes: Vec<f64>,
    pub at_peak: Vec<Vec<BufferId>>,
}

/// The state of a simulation.
pub struct Simulator<'a> {
    given: &'a Instance,
    ranks: Vec<f64>,
    now: f64,
    started: Vec<bool>,
    ended: Vec<bool>,
    found: Simulated,
}

impl<'a> Simulator<'a> {
    pub fn new(given: &'a Instance) -> Self {
        let tasks = given.parts.tasks;
        let classes = given.parts.device_classes;
        Self {
            given,
            ranks: given.ranks(),
            now: 0.0,
            started: vec![false; tasks],
            ended: vec![false; tasks],
            found: Simulated {
                time_s: 0.0,
                peaks: vec![Peak::default(); classes],
                busy_s: vec![0.0; given.parts.resources.len()],
                start_s: vec![0.0; tasks],
                end_s: vec![0.0; tasks],
                held_bytes: vec![0.0; tasks * classes],
                at_peak: vec![Vec::new(); classes],
            },
        }
    }

    fn ready(&self, task: usize) -> bool {
        let mut before = (0..task).filter(|t| self.given.waits(*t, task));
        !self.started[task] && before.all(|t| self.ended[t])
    }

    fn running(&self) -> Vec<usize> {
        let all = 0..self.started.len();
        all.filter(|&t| self.started[t] && !self.ended[t]).collect()
    }

    fn free(&self, task: usize) -> bool {
        let held = self.given.holds(task);
        let running = self.running();
        let mut taken = running.iter().flat_map(|t| self.given.holds(*t));
        taken.all(|r| !held.contains(&r))
    }

    /// Returns the buffers of a class that exist and are wanted.
    fn live(&self, class: usize) -> Vec<usize> {
        let parts = &self.given.parts;
        let is_live = |&buffer: &usize| {
            let maker = usize::try_from(parts.makers[buffer]).ok();
            let exists = maker.is_none_or(|maker| self.started[maker]);
            exists && self.is_wanted(buffer)
        };
        let all = (0..parts.makers.len()).filter(|b| self.given.class(*b) == class);
        all.filter(is_live).collect()
    }

    /// Returns whether a buffer has uses left, or one has that keeps it.
    fn is_wanted(&self, buffer: usize) -> bool {
        let parts = &self.given.parts;
        let uses = parts.uses.iter();
        let counted = uses.filter(|u| u.buffer as usize == buffer && self.given.sets(u.flag));
        let maker = usize::try_from(parts.makers[buffer]).ok();
        let mut users = counted.map(|u| u.task as usize).chain(maker);
        let keeps = parts.keeps.iter();
        let mut keepers = keeps.filter(|k| k.kept as usize == buffer && self.given.sets(k.flag));
        parts.lasting[buffer]
            || users.any(|t| !self.ended[t])
            || keepers.any(|k| self.is_wanted(k.buffer as usize))
    }

    fn held_bytes(&self, class: usize) -> f64 {
        self.live(class).iter().map(|b| self.given.size(*b)).sum()
    }

    fn fits(&self, task: usize) -> bool {
        let parts = &self.given.parts;
        let bounded = self.given.has_order(task, Order::RankWithinMemory);
        !bounded
            || (0..parts.device_classes).all(|class| {
                let made = (0..parts.makers.len())
                    .filter(|&b| parts.makers[b] == task as i32 && self.given.class(b) == class);
                let made: f64 = made.map(|b| self.given.size(b)).sum();
                made == 0.0 || self.held_bytes(class) + made <= self.given.limits[class]
            })
    }

    fn note_peaks(&mut self, task: Option<usize>) {
        for class in 0..self.found.peaks.len() {
            let bytes = self.held_bytes(class);
            if let Some(task) = task {
                self.found.held_bytes[task * self.found.peaks.len() + class] = bytes;
            }
            if task.is_none() || bytes > self.found.peaks[class].bytes {
                let task = task.map(|task| TaskId::from(task as u32));
                self.found.peaks[class] = Peak { bytes, task };
                let live = self.live(class).into_iter();
                let live = live.filter(|b| self.given.size(*b) > 0.0);
                self.found.at_peak[class] = live.map(|b| BufferId::from(b as u32)).collect();
            }
        }
    }

    fn start(&mut self, task: usize) {
        let duration = self.given.durations[task];
        self.started[task] = true;
        self.found.start_s[task] = self.now;
        self.found.end_s[task] = self.now + duration;
        for resource in self.given.holds(task) {
            self.found.busy_s[resource] += duration;
        }
        self.note_peaks(Some(task));
    }

    /// Starts those of some tasks that take no time and wait for nothing; they end last first.
    fn start_immediate(&mut self, tasks: Vec<usize>) {
        let mut started = Vec::new();
        for task in tasks {
            if self.given.is_immediate(task) && self.ready(task) {
                self.start(task);
                started.push(task);
            }
        }
        self.end_all(started);
    }

    fn end_all(&mut self, mut ending: Vec<usize>) {
        while let Some(task) = ending.pop() {
            self.ended[task] = true;
            let pairs = self.given.parts.dependencies.clone();
            for (_, after) in pairs.iter().filter(|(b, _)| *b as usize == task) {
                let after = *after as usize;
                if self.given.is_immediate(after) && self.ready(after) {
                    self.start(after);
                    ending.push(after);
                }
            }
        }
    }

    /// Returns the most urgent task that may start by rank.
    fn most_urgent(&self, fitting: bool) -> Option<usize> {
        let all = 0..self.started.len();
        let ready = all.filter(|&t| !self.given.keeps_program(t) && self.ready(t) && self.free(t));
        let urgent = ready.filter(|&t| !fitting || self.fits(t));
        urgent.max_by(|&a, &b| {
            let by_rank = self.ranks[a].total_cmp(&self.ranks[b]);
            by_rank.then(Reverse(a).cmp(&Reverse(b)))
        })
    }

    pub fn run(mut self) -> Simulated {
        self.note_peaks(None);
        self.start_immediate((0..self.started.len()).collect());
        loop {
            let all = 0..self.started.len();
            let mut in_program = all.filter(|&t| self.given.keeps_program(t));
            if let Some(task) = in_program.find(|&t| self.ready(t) && self.free(t)) {
                self.start(task);
                if self.given.durations[task] == 0.0 {
                    self.end_all(vec![task]);
                }
                continue;
            }
            let urgent = self.most_urgent(true);
            let is_idle = self.running().is_empty();
            if let Some(task) = urgent.or_else(|| self.most_urgent(false).filter(|_| is_idle)) {
                self.start(task);
                continue;
            }
            let mut running = self.running();
            let ends = running.iter().map(|t| self.found.end_s[*t]);
            let Some(soonest) = ends.min_by(f64::total_cmp) else {
                self.found.time_s = self.now;
                return self.found;
            };
            self.now = soonest;
            running.sort_by_key(|t| self.given.holds(*t)[0]);
            for task in running {
                if self.found.end_s[task] <= soonest {
                    self.end_all(vec![task]);
                }
            }
        }
    }
}
