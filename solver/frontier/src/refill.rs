//! The cheapest alternatives of edges under given choices, and what strategies then cost.

use rayon::prelude::*;

use crate::model::error::SolveError;

/// What edges of one table cost between a row and a column, under the cheapest alternative.
#[derive(Debug, Clone, Copy)]
pub struct Cheapest<'a> {
    /// The row of each choice of the source, and the column of each of the target.
    pub rows: &'a [u32],
    pub columns: &'a [u32],
    /// The number of columns.
    pub width: usize,
    /// Per cell the alternative, and what it costs.
    pub which: &'a [u32],
    pub least: &'a [f64],
}

/// What groups and edges cost. Owners that cost alike share tables.
#[derive(Debug)]
pub struct Owners<'a> {
    pub constant: f64,
    /// Per group, the costs of its choices.
    pub groups: Vec<&'a [f64]>,
    /// Per edge, the groups at its ends and what it costs between them.
    pub edges: Vec<(usize, usize, Cheapest<'a>)>,
}

/// Returns the cheapest alternatives of the edges of each strategy, and what each costs in all:
/// the sum of its groups and then its edges, in their order.
///
/// # Errors
///
/// Rejects choices and groups that there are not.
pub fn refill(choices: &[u32], owners: &Owners) -> Result<(Vec<u32>, Vec<f64>), SolveError> {
    let (groups, edges) = (owners.groups.len(), owners.edges.len());
    if groups == 0 || choices.len() % groups != 0 {
        return Err(unknown());
    }
    let strategies = choices.len() / groups;
    let mut alternatives = vec![0; strategies * edges];
    let mut totals = vec![0.0; strategies];
    let each = choices.par_chunks_exact(groups).zip(&mut totals);
    if edges == 0 {
        each.try_for_each(|(chosen, total)| {
            *total = total_of(owners, chosen, &mut [])?;
            Ok(())
        })?;
    } else {
        each.zip(alternatives.par_chunks_exact_mut(edges))
            .try_for_each(|((chosen, total), alternatives)| {
                *total = total_of(owners, chosen, alternatives)?;
                Ok(())
            })?;
    }
    Ok((alternatives, totals))
}

/// Writes the alternatives of one strategy and returns what it costs.
fn total_of(owners: &Owners, chosen: &[u32], alternatives: &mut [u32]) -> Result<f64, SolveError> {
    let mut total = owners.constant;
    for (costs, choice) in owners.groups.iter().zip(chosen) {
        total += costs.get(*choice as usize).ok_or_else(unknown)?;
    }
    for ((source, target, costs), alternative) in owners.edges.iter().zip(alternatives) {
        let at = |group: usize, numbers: &[u32]| -> Option<usize> {
            Some(*numbers.get(*chosen.get(group)? as usize)? as usize)
        };
        let row = at(*source, costs.rows).ok_or_else(unknown)?;
        let column = at(*target, costs.columns).ok_or_else(unknown)?;
        let cell = row * costs.width + column;
        *alternative = *costs.which.get(cell).ok_or_else(unknown)?;
        total += costs.least.get(cell).ok_or_else(unknown)?;
    }
    Ok(total)
}

fn unknown() -> SolveError {
    SolveError::Invalid("choices and groups must be numbers of what there is".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_cheapest_alternative_of_each_edge() {
        let moves = Cheapest {
            rows: &[0, 1, 1],
            columns: &[1, 0],
            width: 2,
            which: &[0, 3, 1, 2],
            least: &[1.0, 2.0, 4.0, 8.0],
        };
        let owners = Owners {
            constant: 0.5,
            groups: vec![&[16.0, 32.0, 64.0], &[128.0, 256.0]],
            edges: vec![(0, 1, moves)],
        };
        let (alternatives, totals) = refill(&[0, 0, 2, 1], &owners).unwrap();
        assert_eq!(alternatives, [3, 1]);
        assert_eq!(totals, [146.5, 324.5]);
        assert!(refill(&[0, 2], &owners).is_err());
        assert!(refill(&[0], &owners).is_err());
    }
}
