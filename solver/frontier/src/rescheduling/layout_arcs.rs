//! Pairs of layouts of a tensor that one collective converts (TensorOpt Section 4.2).
//!
//! A layout is a row with one state per mesh axis: a dimension of the tensor that the axis splits,
//! [`REPLICATE`] or [`PARTIAL`]. A collective changes any number of axes from one state to another;
//! a dimension is split by its axes in mesh order, so that only its innermost axes can be removed
//! or added.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::model::error::SolveError;

/// The state of an axis along which every device holds the whole tensor.
pub const REPLICATE: i8 = -1;
/// The state of an axis along which devices hold summands of the tensor.
pub const PARTIAL: i8 = -2;
/// States fit in four bits, so that a layout is one number.
const BITS: u32 = 4;
const MOST_AXES: usize = 16;

/// A change of the axes in the bit mask `axes` from state `before` to `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub source: u32,
    pub target: u32,
    pub before: i8,
    pub after: i8,
    pub axes: u32,
}

/// Returns all changes between two of the layouts, in order of their sources; `layouts` has the
/// shape (layouts, axes), row-major.
///
/// # Errors
///
/// Rejects states out of range, and more axes than fit in a number.
pub fn layout_changes(layouts: &[i8], axes: usize) -> Result<Vec<Change>, SolveError> {
    if axes == 0 {
        return Ok(Vec::new());
    }
    let sound = axes <= MOST_AXES
        && layouts.len() % axes == 0
        && layouts.iter().all(|s| (PARTIAL..14).contains(s));
    if !sound {
        return Err(SolveError::Invalid(format!(
            "layouts must be rows of at most {MOST_AXES} states from {PARTIAL} to 13"
        )));
    }
    let rows: Vec<&[i8]> = layouts.chunks(axes).collect();
    let ids: HashMap<u64, u32> = rows
        .iter()
        .enumerate()
        .map(|(i, row)| (encode(row), i as u32))
        .collect();
    let mut states: Vec<i8> = layouts.to_vec();
    states.extend([REPLICATE, PARTIAL]);
    states.sort_unstable();
    states.dedup();
    let changes: Vec<Vec<Change>> = rows
        .par_iter()
        .enumerate()
        .map(|(i, row)| from_one(i as u32, row, &ids, &states))
        .collect();
    Ok(changes.concat())
}

/// Returns the number of a layout.
fn encode(row: &[i8]) -> u64 {
    row.iter()
        .fold(0, |code, state| code << BITS | (state + 2) as u64)
}

/// Returns the changes from one layout.
fn from_one(source: u32, row: &[i8], ids: &HashMap<u64, u32>, states: &[i8]) -> Vec<Change> {
    let mut changes = Vec::new();
    let code = encode(row);
    let bit = |axis: usize| 1u32 << axis;
    let shift = |axis: usize| BITS * (row.len() - 1 - axis) as u32;
    for &before in states {
        let matching: Vec<usize> = (0..row.len()).filter(|a| row[*a] == before).collect();
        for subset in 1u32..1 << matching.len() {
            // A dimension loses only its innermost axes: the subset ends at the last axis without a
            // gap.
            if before >= 0
                && subset != !((1 << subset.trailing_zeros()) - 1) & ((1 << matching.len()) - 1)
            {
                continue;
            }
            let chosen: Vec<usize> = (0..matching.len())
                .filter(|i| subset >> i & 1 == 1)
                .map(|i| matching[i])
                .collect();
            let axes: u32 = chosen.iter().map(|a| bit(*a)).sum();
            let cleared: u64 = chosen
                .iter()
                .fold(code, |code, a| code & !(0xf << shift(*a)));
            for &after in states {
                if after == before || (after == PARTIAL && before != REPLICATE) {
                    continue;
                }
                // A dimension gains axes only as its innermost ones.
                let innermost = row.iter().rposition(|s| *s == after);
                if after >= 0 && innermost.is_some_and(|last| last > chosen[0]) {
                    continue;
                }
                let target = chosen
                    .iter()
                    .fold(cleared, |code, a| code | ((after + 2) as u64) << shift(*a));
                if let Some(&target) = ids.get(&target) {
                    changes.push(Change {
                        source,
                        target,
                        before,
                        after,
                        axes,
                    });
                }
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every layout of `axes` axes over the states -2, -1, 0, 1.
    fn all(axes: u32) -> Vec<i8> {
        let mut layouts = Vec::new();
        for mut code in 0..4i32.pow(axes) {
            for _ in 0..axes {
                layouts.push((code % 4 - 2) as i8);
                code /= 4;
            }
        }
        layouts
    }

    /// Returns whether one collective turns `a` into `b`, straight from the definition.
    fn joined(a: &[i8], b: &[i8]) -> bool {
        let changed: Vec<usize> = (0..a.len()).filter(|i| a[*i] != b[*i]).collect();
        let Some(&first) = changed.first() else {
            return false;
        };
        let (before, after) = (a[first], b[first]);
        let alike = changed.iter().all(|i| (a[*i], b[*i]) == (before, after));
        let innermost = |row: &[i8], state: i8| {
            state < 0
                || (0..row.len()).all(|i| row[i] != state || changed.contains(&i) || i < first)
        };
        alike
            && (after != PARTIAL || before == REPLICATE)
            && innermost(a, before)
            && innermost(b, after)
    }

    #[test]
    fn changes_are_those_of_the_definition() {
        let layouts = all(4);
        let rows: Vec<&[i8]> = layouts.chunks(4).collect();
        let mut pairs: Vec<(u32, u32)> = layout_changes(&layouts, 4)
            .unwrap()
            .iter()
            .map(|c| (c.source, c.target))
            .collect();
        pairs.sort_unstable();
        let mut expected = Vec::new();
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in rows.iter().enumerate() {
                if joined(a, b) {
                    expected.push((i as u32, j as u32));
                }
            }
        }
        assert_eq!(pairs, expected);
        assert!(expected.len() > 1000);
    }

    #[test]
    fn states_out_of_range_are_rejected() {
        assert!(layout_changes(&[14], 1).is_err());
        assert!(layout_changes(&[0, 1, 0], 2).is_err());
    }
}
