//! The weighted time of an edge: moves in forward and backward, and moves again by what is kept.

use crate::model::error::SolveError;

/// An edge's table of R rows, C columns and A alternatives, row by row.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub rows: usize,
    pub columns: usize,
    /// What each alternative keeps, (R, C, A).
    pub kept: &'a [i8],
    /// What a cell costs whatever is kept, (R, C).
    pub once: &'a [f64],
    /// Costs of moving from the row's layout to the column's and back, (R, C).
    pub there: &'a [f64],
    pub back: &'a [f64],
}

/// How often the move there is made again, by what is kept, without and with the column's flag;
/// and the move back, without and with the row's.
#[derive(Debug, Clone, Copy)]
pub struct Again<'a> {
    pub column_flags: &'a [bool],
    pub row_flags: &'a [bool],
    pub there: [&'a [f64]; 2],
    pub back: [&'a [f64]; 2],
}

/// Returns the cost of every alternative, (R, C, A).
///
/// # Errors
///
/// Rejects arrays of other shapes, and kinds of copies without a weight.
pub fn weighted_cells(table: &Kept, again: &Again) -> Result<Vec<f64>, SolveError> {
    let cells = table.rows * table.columns;
    let alternatives = table.kept.len().checked_div(cells).unwrap_or(0);
    let weights = [again.there[0], again.there[1], again.back[0], again.back[1]];
    let kinds = weights.iter().map(|w| w.len()).min().unwrap_or(0);
    let shaped = [table.once.len(), table.there.len(), table.back.len()] == [cells; 3]
        && table.kept.len() == cells * alternatives
        && again.column_flags.len() == table.columns
        && again.row_flags.len() == table.rows
        && table.kept.iter().all(|k| (*k as usize) < kinds);
    if !shaped {
        return Err(SolveError::Invalid(
            "the arrays of a table's cells must have its rows, columns and kinds".into(),
        ));
    }
    let mut costs = Vec::with_capacity(table.kept.len());
    if alternatives == 0 {
        return Ok(costs);
    }
    for (cell, kept) in table.kept.chunks_exact(alternatives).enumerate() {
        let (row, column) = (cell / table.columns, cell % table.columns);
        let there = again.there[usize::from(again.column_flags[column])];
        let back = again.back[usize::from(again.row_flags[row])];
        let (once, moved, moved_back) = (table.once[cell], table.there[cell], table.back[cell]);
        costs.extend(kept.iter().map(|kind| {
            let kind = *kind as usize;
            once + there[kind] * moved + back[kind] * moved_back
        }));
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Again = Again {
        column_flags: &[false, true],
        row_flags: &[true],
        there: [&[0.0, 1.0], &[0.0, 3.0]],
        back: [&[0.0, 0.0], &[0.5, 0.0]],
    };
    const TABLE: Kept = Kept {
        rows: 1,
        columns: 2,
        kept: &[0, 1, 1, 0],
        once: &[1.0, 2.0],
        there: &[10.0, 20.0],
        back: &[100.0, 200.0],
    };

    #[test]
    fn adds_what_is_moved_again() {
        let costs = weighted_cells(&TABLE, &AGAIN).unwrap();
        assert_eq!(costs, [1.0 + 50.0, 1.0 + 10.0, 2.0 + 60.0, 2.0 + 100.0]);
    }

    #[test]
    fn rejects_kinds_without_a_weight() {
        let kept = &[0, 2, 1, 0];
        assert!(weighted_cells(&Kept { kept, ..TABLE }, &AGAIN).is_err());
        let once = &[1.0];
        assert!(weighted_cells(&Kept { once, ..TABLE }, &AGAIN).is_err());
    }
}
