//! Values of strategies, taken from tables: one row per choice of an owner.
//!
//! Each item (a task's duration, a buffer's size, a flag) is a constant or a cell of a table: the
//! column is always the same, the row is the one that the item's owner has chosen.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::{ids, IdVec};
use crate::replay::lists::Lists;

ids! {
    /// Names an owner of cells in one table.
    SlotId(u32);
    /// Names one of several strategies.
    StrategyId(u32);
}

/// Which items are cells of one table: item, owner and column of each.
#[derive(Debug, Clone, Copy)]
pub struct Picks<'a> {
    pub items: &'a [i64],
    pub owners: &'a [i64],
    pub columns: &'a [i64],
}

/// A table of values, `width` columns in each row, and the row that each strategy's owners chose.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    pub values: &'a [f64],
    pub width: usize,
    /// One row number per owner, strategy by strategy.
    pub rows: &'a [i64],
    pub owners: usize,
}

/// A table in which an owner chooses a row.
#[derive(Debug, Clone, Copy)]
struct Slot {
    table: usize,
    owner: usize,
    /// More than the highest column of its cells.
    width: usize,
}

/// Where the items of a strategy are.
#[derive(Debug)]
pub struct Cells {
    constants: Vec<f64>,
    tables: usize,
    slots: IdVec<SlotId, Slot>,
    /// Per slot, its items and their columns.
    of_slot: Lists<SlotId, (u32, u32)>,
}

/// Values of several strategies, most of them equal: all those of the first, and of each strategy
/// the items whose values differ from them.
#[derive(Debug)]
pub struct Sheet {
    pub first: Vec<f64>,
    pub differing: Lists<StrategyId, (u32, f64)>,
}

impl Cells {
    /// Indexes the cells of each table; all other items are their constants.
    ///
    /// # Errors
    ///
    /// Rejects items that there are not, and lists of different lengths.
    pub fn new(constants: Vec<f64>, picks: &[Picks]) -> Result<Self, SolveError> {
        let mut slots: IdVec<SlotId, Slot> = IdVec::default();
        let mut cells: Vec<(SlotId, (u32, u32))> = Vec::new();
        for (table, of) in picks.iter().enumerate() {
            if of.items.len() != of.owners.len() || of.items.len() != of.columns.len() {
                return Err(unknown());
            }
            let mut known: HashMap<i64, SlotId> = HashMap::new();
            for ((&item, &owner), &column) in of.items.iter().zip(of.owners).zip(of.columns) {
                let number = |n: i64| u32::try_from(n).map_err(|_| unknown());
                let (item, column) = (number(item)?, number(column)?);
                let slot = Slot {
                    table,
                    owner: number(owner)? as usize,
                    width: 0,
                };
                if item as usize >= constants.len() {
                    return Err(unknown());
                }
                let id = *known.entry(owner).or_insert_with(|| slots.push(slot));
                slots[id].width = slots[id].width.max(column as usize + 1);
                cells.push((id, (item, column)));
            }
        }
        Ok(Self {
            constants,
            tables: picks.len(),
            of_slot: Lists::group(slots.len(), cells.iter().copied()),
            slots,
        })
    }

    /// Returns the number of items.
    pub fn items(&self) -> usize {
        self.constants.len()
    }

    /// Returns the values of all strategies, one after the other.
    ///
    /// # Errors
    ///
    /// Rejects tables and rows that do not fit.
    pub fn fill(&self, strategies: usize, tables: &[Chosen]) -> Result<Vec<f64>, SolveError> {
        self.check(strategies, tables)?;
        let mut result = vec![0.0; strategies * self.items()];
        if self.items() > 0 {
            let parts = result.par_chunks_exact_mut(self.items()).enumerate();
            parts.try_for_each(|(strategy, result)| self.fill_one(strategy, tables, result))?;
        }
        Ok(result)
    }

    /// Returns the values of all strategies, of which there is at least one.
    ///
    /// # Errors
    ///
    /// Rejects tables and rows that do not fit, and no strategy.
    pub fn sheet(&self, strategies: usize, tables: &[Chosen]) -> Result<Sheet, SolveError> {
        self.check(strategies, tables)?;
        if strategies == 0 {
            return Err(SolveError::Invalid("there must be a strategy".into()));
        }
        let mut first = vec![0.0; self.items()];
        self.fill_one(0, tables, &mut first)?;
        let mut differing = Lists::none();
        differing.close();
        for strategy in 1..strategies {
            for (id, slot) in self.slots.enumerate() {
                let table = &tables[slot.table];
                if chosen(table, slot, strategy) != chosen(table, slot, 0) {
                    let row = row(table, slot, strategy)?;
                    for &(item, column) in self.of_slot.of(id) {
                        let value = row[column as usize];
                        if value != first[item as usize] {
                            differing.push((item, value));
                        }
                    }
                }
            }
            differing.close();
        }
        Ok(Sheet { first, differing })
    }

    fn check(&self, strategies: usize, tables: &[Chosen]) -> Result<(), SolveError> {
        let fits = |of: &Chosen| of.rows.len() == strategies * of.owners;
        let has = |slot: &Slot| {
            let table = &tables[slot.table];
            slot.owner < table.owners && slot.width <= table.width
        };
        let sound =
            tables.len() == self.tables && tables.iter().all(fits) && self.slots.iter().all(has);
        sound.then_some(()).ok_or_else(unknown)
    }

    fn fill_one(
        &self,
        strategy: usize,
        tables: &[Chosen],
        result: &mut [f64],
    ) -> Result<(), SolveError> {
        result.copy_from_slice(&self.constants);
        for (id, slot) in self.slots.enumerate() {
            let row = row(&tables[slot.table], slot, strategy)?;
            for &(item, column) in self.of_slot.of(id) {
                result[item as usize] = row[column as usize];
            }
        }
        Ok(())
    }
}

impl Sheet {
    /// Returns the values of strategies that are given as rows of equal lengths.
    pub fn of_rows<T: Copy + Into<f64>>(rows: &[&[T]]) -> Self {
        let first: Vec<f64> = rows
            .first()
            .map_or(Vec::new(), |row| row.iter().map(|v| (*v).into()).collect());
        let mut differing = Lists::none();
        for row in rows {
            for (item, (value, first)) in row.iter().zip(&first).enumerate() {
                let value: f64 = (*value).into();
                if value != *first {
                    differing.push((item as u32, value));
                }
            }
            differing.close();
        }
        Self { first, differing }
    }

    /// Returns the number of strategies.
    pub fn strategies(&self) -> usize {
        self.differing.len()
    }

    /// Returns every value that any strategy has where the first has another.
    pub fn others(&self) -> &[(u32, f64)] {
        self.differing.items()
    }
}

fn chosen(table: &Chosen, slot: &Slot, strategy: usize) -> i64 {
    table.rows[strategy * table.owners + slot.owner]
}

/// Returns the row that an owner has chosen.
fn row<'a>(table: &Chosen<'a>, slot: &Slot, strategy: usize) -> Result<&'a [f64], SolveError> {
    let number = usize::try_from(chosen(table, slot, strategy)).map_err(|_| unknown())?;
    let start = number.checked_mul(table.width).ok_or_else(unknown)?;
    let row = table
        .values
        .get(start..)
        .and_then(|rest| rest.get(..table.width));
    row.ok_or_else(unknown)
}

fn unknown() -> SolveError {
    SolveError::Invalid("items, owners, columns and rows must be numbers of what there is".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICKS: Picks = Picks {
        items: &[2, 0],
        owners: &[0, 1],
        columns: &[1, 0],
    };
    const CHOSEN: Chosen = Chosen {
        values: &[1.0, 2.0, 3.0, 4.0],
        width: 2,
        rows: &[0, 1, 1, 0],
        owners: 2,
    };

    #[test]
    fn takes_the_rows_that_owners_chose() {
        let cells = Cells::new(vec![0.0, 9.0, 0.0], &[PICKS]).unwrap();
        let filled = cells.fill(2, &[CHOSEN]).unwrap();
        assert_eq!(filled, [3.0, 9.0, 2.0, 1.0, 9.0, 4.0]);
        let sheet = cells.sheet(2, &[CHOSEN]).unwrap();
        assert_eq!(sheet.first, filled[..3]);
        assert_eq!(sheet.others(), [(2, 4.0), (0, 1.0)]);
        assert_eq!(
            Sheet::of_rows(&[&filled[..3], &filled[3..]]).others().len(),
            2
        );
    }

    #[test]
    fn rejects_what_there_is_not() {
        let cells = Cells::new(vec![0.0; 3], &[PICKS]).unwrap();
        let beyond = Chosen {
            rows: &[0, 1, 2, 0],
            ..CHOSEN
        };
        assert!(cells.fill(2, &[beyond]).is_err());
        assert!(cells.sheet(2, &[beyond]).is_err());
        assert!(cells.fill(2, &[]).is_err());
        assert!(cells.fill(3, &[CHOSEN]).is_err());
        assert!(Cells::new(vec![0.0; 2], &[PICKS]).is_err());
        let narrow = Chosen { width: 1, ..CHOSEN };
        assert!(cells.fill(2, &[narrow]).is_err());
    }
}
