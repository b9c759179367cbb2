//! The values of several strategies, of which one after the other is replayed.

use crate::model::ids::Id;
use crate::replay::batch::Batch;
use crate::replay::cells::{Sheet, StrategyId};
use crate::replay::lists::Lists;
use crate::replay::strategy::Strategy;

/// Values of some tasks, buffers and flags: of the first strategy, and what differs under others.
#[derive(Debug)]
pub struct Columns {
    durations_s: Column<f64>,
    sizes_bytes: Column<f64>,
    flags: Column<bool>,
}

/// The values of the strategy that is replayed.
#[derive(Debug, Clone)]
pub struct Values {
    durations_s: Vec<f64>,
    sizes_bytes: Vec<f64>,
    flags: Vec<bool>,
}

#[derive(Debug)]
struct Column<T> {
    first: Vec<T>,
    differing: Lists<StrategyId, (u32, T)>,
}

impl Columns {
    /// Takes the tasks, buffers and flags with these numbers.
    pub fn of(
        batch: &Batch,
        tasks: impl Iterator<Item = usize>,
        buffers: impl Iterator<Item = usize>,
        flags: impl Iterator<Item = usize>,
    ) -> Self {
        Self {
            durations_s: Column::of(&batch.durations_s, tasks, |seconds| seconds),
            sizes_bytes: Column::of(&batch.sizes_bytes, buffers, |bytes| bytes),
            flags: Column::of(&batch.flags, flags, |flag| flag != 0.0),
        }
    }

    /// Takes all of them.
    pub fn of_all(batch: &Batch) -> Self {
        let all = |sheet: &Sheet| 0..sheet.first.len();
        let (durations, sizes) = (all(&batch.durations_s), all(&batch.sizes_bytes));
        Self::of(batch, durations, sizes, all(&batch.flags))
    }

    /// Returns the values of the first strategy.
    pub fn first(&self) -> Values {
        Values {
            durations_s: self.durations_s.first.clone(),
            sizes_bytes: self.sizes_bytes.first.clone(),
            flags: self.flags.first.clone(),
        }
    }

    /// Lets a replay have the values of a strategy; `values` are those of the first, before and
    /// after.
    pub fn with<T>(
        &self,
        strategy: StrategyId,
        values: &mut Values,
        replay: impl FnOnce(Strategy) -> T,
    ) -> T {
        self.durations_s.apply(strategy, &mut values.durations_s);
        self.sizes_bytes.apply(strategy, &mut values.sizes_bytes);
        self.flags.apply(strategy, &mut values.flags);
        let result = replay(Strategy {
            durations_s: &values.durations_s,
            sizes_bytes: &values.sizes_bytes,
            flags: &values.flags,
        });
        self.durations_s.undo(strategy, &mut values.durations_s);
        self.sizes_bytes.undo(strategy, &mut values.sizes_bytes);
        self.flags.undo(strategy, &mut values.flags);
        result
    }
}

impl<T: Copy> Column<T> {
    fn of(sheet: &Sheet, items: impl Iterator<Item = usize>, value: impl Fn(f64) -> T) -> Self {
        let mut numbers = vec![u32::MAX; sheet.first.len()];
        let mut first = Vec::new();
        for item in items {
            numbers[item] = first.len() as u32;
            first.push(value(sheet.first[item]));
        }
        let strategies = (0..sheet.strategies()).map(StrategyId::new);
        let differing = sheet.differing.of_keys(strategies, |(item, other)| {
            let number = numbers[item as usize];
            (number != u32::MAX).then(|| (number, value(other)))
        });
        Self { first, differing }
    }

    /// Makes the values of the first strategy those of another.
    fn apply(&self, strategy: StrategyId, values: &mut [T]) {
        for &(item, value) in self.differing.of(strategy) {
            values[item as usize] = value;
        }
    }

    /// Makes the values of a strategy those of the first again.
    fn undo(&self, strategy: StrategyId, values: &mut [T]) {
        for &(item, _) in self.differing.of(strategy) {
            values[item as usize] = self.first[item as usize];
        }
    }
}
