//! The solver's input: a graph of operators with costs per choice and edges with costs per pair.
//!
//! Cost arrays, tables and row maps are shared by id, so that repeated layers are recognised.

use std::collections::HashMap;
use std::ops::Range;

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, CostsId, EdgeId, IdVec, MapId, OperatorId, TableId};

/// The costs of one operator's choices in bytes and seconds; both lists have the same length.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    pub memory: IdVec<ChoiceId, f64>,
    pub time: IdVec<ChoiceId, f64>,
}

/// The costs of an edge between `rows` kinds of source choice and `columns` kinds of target choice.
///
/// The alternatives of cell (r, c) are those from `starts[r * columns + c]` to the next start.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    starts: Vec<u32>,
    pub(crate) memory: Vec<f64>,
    pub(crate) time: Vec<f64>,
}

impl Table {
    /// Returns a table with `counts` alternatives per cell, row by row, and the costs of all of
    /// them.
    ///
    /// # Errors
    ///
    /// Rejects more than 2^32 - 1 alternatives. Everything else is checked when the table is added
    /// to a problem.
    pub fn ragged(
        rows: usize,
        columns: usize,
        counts: impl Iterator<Item = u32>,
        memory: Vec<f64>,
        time: Vec<f64>,
    ) -> Result<Self, SolveError> {
        let mut starts = vec![0u32];
        for count in counts {
            let next = starts[starts.len() - 1].checked_add(count).ok_or_else(|| {
                SolveError::Invalid("a table holds at most 2^32 - 1 alternatives".into())
            })?;
            starts.push(next);
        }
        Ok(Self {
            rows,
            columns,
            starts,
            memory,
            time,
        })
    }

    /// Returns a table of times alone, in which a cell has the least of its alternatives: the first
    /// `counts` of each `most` in `time`.
    ///
    /// # Errors
    ///
    /// Rejects more than 2^32 - 1 cells.
    pub fn of_least(
        rows: usize,
        columns: usize,
        counts: impl Iterator<Item = usize>,
        time: &[f64],
        most: usize,
    ) -> Result<Self, SolveError> {
        let cells = time.chunks(most.max(1)).zip(counts);
        let least: Vec<f64> = cells
            .map(|(cell, count)| {
                let alternatives = cell.iter().take(count);
                alternatives.fold(
                    f64::INFINITY,
                    |least, c| if *c < least { *c } else { least },
                )
            })
            .collect();
        let ones = std::iter::repeat_n(1, least.len());
        Self::ragged(rows, columns, ones, vec![0.0; least.len()], least)
    }

    /// Returns the alternatives of a cell as a range into `memory` and `time`.
    pub(crate) fn cell(&self, row: u32, column: u32) -> Range<usize> {
        self.at(row as usize * self.columns + column as usize)
    }

    /// Returns the alternatives of a cell, given its row-major number.
    pub(crate) fn at(&self, cell: usize) -> Range<usize> {
        self.starts[cell] as usize..self.starts[cell + 1] as usize
    }

    /// Returns whether every cell has an alternative and every alternative has both costs.
    fn is_sound(&self) -> bool {
        let cells = self.rows * self.columns;
        self.starts.len() == cells + 1
            && self.starts.windows(2).all(|w| w[0] < w[1])
            && self.starts[cells] as usize == self.memory.len()
            && self.memory.len() == self.time.len()
    }
}

/// One decision: one of several choices with different costs.
#[derive(Debug, Clone)]
pub struct Operator {
    pub name: String,
    pub costs: CostsId,
}

/// Two operators whose choices have a joint cost.
///
/// `rows` maps each source choice to a row of the table, `columns` each target choice to a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    pub source: OperatorId,
    pub target: OperatorId,
    pub table: TableId,
    pub rows: MapId,
    pub columns: MapId,
}

/// A graph of operators; the crate's example shows how to build one.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    pub(crate) costs: IdVec<CostsId, Costs>,
    pub(crate) operators: IdVec<OperatorId, Operator>,
    pub(crate) tables: IdVec<TableId, Table>,
    pub(crate) maps: IdVec<MapId, IdVec<ChoiceId, u32>>,
    pub(crate) edges: IdVec<EdgeId, Edge>,
    map_ids: HashMap<IdVec<ChoiceId, u32>, MapId>,
}

fn check_costs(values: &[f64], name: &str) -> Result<(), SolveError> {
    match values.iter().position(|v| !v.is_finite() || *v < 0.0) {
        Some(i) => Err(SolveError::Invalid(format!(
            "{name}[{i}] is {}: costs must be finite and not negative",
            values[i]
        ))),
        None => Ok(()),
    }
}

impl Problem {
    /// Adds the memory (bytes) and the time (seconds) of an operator's choices.
    ///
    /// # Errors
    ///
    /// Rejects empty lists, and costs that are negative or not finite.
    pub fn add_costs(&mut self, memory: Vec<f64>, time: Vec<f64>) -> Result<CostsId, SolveError> {
        if memory.is_empty() || memory.len() != time.len() {
            return Err(SolveError::Invalid(
                "an operator needs at least one choice, with memory and time".into(),
            ));
        }
        check_costs(&memory, "memory_bytes")?;
        check_costs(&time, "time_s")?;
        Ok(self.costs.push(Costs {
            memory: memory.into(),
            time: time.into(),
        }))
    }

    /// Adds an operator whose choices have these costs.
    ///
    /// # Errors
    ///
    /// Rejects an unknown id.
    pub fn add_operator(&mut self, name: String, costs: CostsId) -> Result<OperatorId, SolveError> {
        if self.costs.get(costs).is_none() {
            return Err(SolveError::Invalid(format!("no costs with id {costs}")));
        }
        Ok(self.operators.push(Operator { name, costs }))
    }

    /// Adds a table of costs for edges.
    ///
    /// # Errors
    ///
    /// Rejects a cell without alternatives, and costs that are negative or not finite.
    pub fn add_table(&mut self, table: Table) -> Result<TableId, SolveError> {
        check_costs(&table.memory, "memory_bytes")?;
        check_costs(&table.time, "time_s")?;
        if !table.is_sound() {
            return Err(SolveError::Invalid(
                "every cell of a table needs at least one alternative".into(),
            ));
        }
        Ok(self.tables.push(table))
    }

    /// Adds an edge: the joint cost of source choice i and target choice j is cell
    /// (`rows[i]`, `columns[j]`) of the table.
    ///
    /// # Errors
    ///
    /// Rejects ends that are equal or unknown, and rows and columns that do not fit the table.
    pub fn add_edge(
        &mut self,
        source: OperatorId,
        target: OperatorId,
        table: TableId,
        rows: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<EdgeId, SolveError> {
        let known = |o| self.operators.get(o).is_some();
        if !known(source) || !known(target) || source == target {
            return Err(SolveError::Invalid(format!(
                "an edge must join two different operators, got {source} and {target}"
            )));
        }
        let Some(costs) = self.tables.get(table) else {
            return Err(SolveError::Invalid(format!("no table with id {table}")));
        };
        let sound = rows.len() == self.choices(source)
            && columns.len() == self.choices(target)
            && rows.iter().all(|r| (*r as usize) < costs.rows)
            && columns.iter().all(|c| (*c as usize) < costs.columns);
        if !sound {
            return Err(SolveError::Invalid(format!(
                "the rows and columns of the edge {source} to {target} do not fit its table"
            )));
        }
        let (rows, columns) = (
            self.intern_map(rows.into()),
            self.intern_map(columns.into()),
        );
        Ok(self.edges.push(Edge {
            source,
            target,
            table,
            rows,
            columns,
        }))
    }

    /// Returns the id of a map; equal maps share one.
    fn intern_map(&mut self, rows: IdVec<ChoiceId, u32>) -> MapId {
        if let Some(id) = self.map_ids.get(&rows) {
            return *id;
        }
        let id = self.maps.push(rows.clone());
        self.map_ids.insert(rows, id);
        id
    }

    /// Returns the costs of an operator's choices.
    pub(crate) fn costs_of(&self, operator: OperatorId) -> &Costs {
        &self.costs[self.operators[operator].costs]
    }

    /// Returns how many choices an operator has.
    pub fn choices(&self, operator: OperatorId) -> usize {
        self.costs_of(operator).memory.len()
    }

    /// Returns the alternatives of an edge, given the choices at its ends.
    pub(crate) fn alternatives(&self, edge: &Edge, i: ChoiceId, j: ChoiceId) -> Range<usize> {
        self.tables[edge.table].cell(self.maps[edge.rows][i], self.maps[edge.columns][j])
    }

    /// Returns the memory and the time of a full strategy (TensorOpt Eq. 3).
    ///
    /// `edge_choices` names, per edge, one of the alternatives of the cell that the choices at its
    /// ends select.
    pub fn evaluate(
        &self,
        choices: &IdVec<OperatorId, ChoiceId>,
        edge_choices: &IdVec<EdgeId, u32>,
    ) -> (f64, f64) {
        let (mut memory, mut time) = (0.0, 0.0);
        for (operator, choice) in self.operators.iter().zip(choices) {
            memory += self.costs[operator.costs].memory[*choice];
            time += self.costs[operator.costs].time[*choice];
        }
        for (edge, alternative) in self.edges.iter().zip(edge_choices) {
            let cell = self.alternatives(edge, choices[edge.source], choices[edge.target]);
            let at = cell.start + *alternative as usize;
            memory += self.tables[edge.table].memory[at];
            time += self.tables[edge.table].time[at];
        }
        (memory, time)
    }
}
