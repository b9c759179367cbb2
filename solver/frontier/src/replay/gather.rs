//! Values of strategies, gathered from tables: one row per choice of an owner.

use rayon::prelude::*;

use crate::model::error::SolveError;

/// Which items of a strategy are cells of one table: item, owner and column of each.
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

/// Writes the picked items of every strategy; `result` has `items` of them for each.
///
/// # Errors
///
/// Rejects numbers outside of their lists.
pub fn gather(
    result: &mut [f64],
    items: usize,
    picks: &Picks,
    chosen: &Chosen,
) -> Result<(), SolveError> {
    let below = |numbers: &[i64], end: usize| numbers.iter().all(|n| (*n as u64) < end as u64);
    let rows = chosen.values.len().checked_div(chosen.width).unwrap_or(0);
    let strategies = result.len().checked_div(items).unwrap_or(0);
    let sound = picks.items.len() == picks.owners.len()
        && picks.items.len() == picks.columns.len()
        && below(picks.items, items)
        && below(picks.owners, chosen.owners)
        && below(picks.columns, chosen.width)
        && chosen.rows.len() == strategies * chosen.owners;
    let unknown = || {
        SolveError::Invalid(
            "items, owners, columns and rows must be numbers of what there is".into(),
        )
    };
    if !sound {
        return Err(unknown());
    }
    if items == 0 || chosen.owners == 0 {
        return Ok(());
    }
    let strategies = result.par_chunks_exact_mut(items);
    let chosen_rows = chosen.rows.par_chunks_exact(chosen.owners);
    strategies
        .zip(chosen_rows)
        .try_for_each(|(result, of_owner)| {
            let places = picks.items.iter().zip(picks.owners).zip(picks.columns);
            for ((item, owner), column) in places {
                let row = of_owner[*owner as usize] as usize;
                if row >= rows {
                    return Err(unknown());
                }
                result[*item as usize] = chosen.values[row * chosen.width + *column as usize];
            }
            Ok(())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_rows_that_owners_chose() {
        let picks = Picks {
            items: &[2, 0],
            owners: &[0, 1],
            columns: &[1, 0],
        };
        let chosen = Chosen {
            values: &[1.0, 2.0, 3.0, 4.0],
            width: 2,
            rows: &[0, 1, 1, 0],
            owners: 2,
        };
        let mut result = [9.0; 6];
        gather(&mut result, 3, &picks, &chosen).unwrap();
        assert_eq!(result, [3.0, 9.0, 2.0, 1.0, 9.0, 4.0]);
        let beyond = Chosen {
            rows: &[0, 1, 2, 0],
            ..chosen
        };
        assert!(gather(&mut result, 3, &picks, &beyond).is_err());
    }
}
