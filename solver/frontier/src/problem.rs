//! The solver's input: a graph of operators with costs per choice and edges with costs per pair.
//!
//! Cost arrays, tables and row maps are shared by id, so that repeated layers are recognised.

use std::collections::HashMap;

use crate::error::SolveError;

/// Costs of one operator's choices: equal lengths, bytes and seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    pub memory: Vec<f64>,
    pub time: Vec<f64>,
}

/// Costs of an edge between `rows` kinds of source choice and `columns` kinds of target choice.
///
/// The alternatives of cell (r, c) stand at `starts[r * columns + c] ..` the next start.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub rows: usize,
    pub columns: usize,
    pub starts: Vec<u32>,
    pub memory: Vec<f64>,
    pub time: Vec<f64>,
}

impl Table {
    /// A table from the number of alternatives of each cell, row by row, and all their costs.
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

    /// The alternatives of a cell as a range into `memory` and `time`.
    pub fn cell(&self, row: u32, column: u32) -> std::ops::Range<usize> {
        self.at(row as usize * self.columns + column as usize)
    }

    /// The same for a cell by its number, row-major.
    pub fn at(&self, cell: usize) -> std::ops::Range<usize> {
        self.starts[cell] as usize..self.starts[cell + 1] as usize
    }
}

#[derive(Debug, Clone)]
pub struct Operator {
    pub name: String,
    pub costs: usize,
}

/// `rows` and `columns` index [`Problem::maps`]: the row of each source choice, the column of each target choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    pub source: usize,
    pub target: usize,
    pub table: usize,
    pub rows: usize,
    pub columns: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Problem {
    pub costs: Vec<Costs>,
    pub operators: Vec<Operator>,
    pub tables: Vec<Table>,
    pub maps: Vec<Vec<u32>>,
    pub edges: Vec<Edge>,
    map_ids: HashMap<Vec<u32>, usize>,
}

fn check(values: &[f64], what: &str) -> Result<(), SolveError> {
    match values.iter().position(|v| !v.is_finite() || *v < 0.0) {
        Some(i) => Err(SolveError::Invalid(format!(
            "{what}[{i}] is {}: costs are finite and not negative",
            values[i]
        ))),
        None => Ok(()),
    }
}

impl Problem {
    pub fn add_costs(&mut self, memory: Vec<f64>, time: Vec<f64>) -> Result<usize, SolveError> {
        if memory.is_empty() || memory.len() != time.len() {
            return Err(SolveError::Invalid(
                "an operator needs at least one choice, with memory and time".into(),
            ));
        }
        check(&memory, "memory_bytes")?;
        check(&time, "time_s")?;
        self.costs.push(Costs { memory, time });
        Ok(self.costs.len() - 1)
    }

    pub fn add_operator(&mut self, name: String, costs: usize) -> Result<usize, SolveError> {
        if costs >= self.costs.len() {
            return Err(SolveError::Invalid(format!("no costs with id {costs}")));
        }
        self.operators.push(Operator { name, costs });
        Ok(self.operators.len() - 1)
    }

    pub fn add_table(&mut self, table: Table) -> Result<usize, SolveError> {
        check(&table.memory, "memory_bytes")?;
        check(&table.time, "time_s")?;
        let cells = table.rows * table.columns;
        let sound = table.starts.len() == cells + 1
            && table.starts.windows(2).all(|w| w[0] < w[1])
            && table.starts[cells] as usize == table.memory.len()
            && table.memory.len() == table.time.len();
        if !sound {
            return Err(SolveError::Invalid(
                "every cell of a table needs at least one alternative".into(),
            ));
        }
        self.tables.push(table);
        Ok(self.tables.len() - 1)
    }

    pub fn add_edge(
        &mut self,
        source: usize,
        target: usize,
        table: usize,
        rows: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<usize, SolveError> {
        let n = self.operators.len();
        if source >= n || target >= n || source == target {
            return Err(SolveError::Invalid(format!(
                "an edge joins two different operators, not {source} and {target}"
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
        let (rows, columns) = (self.map(rows), self.map(columns));
        self.edges.push(Edge {
            source,
            target,
            table,
            rows,
            columns,
        });
        Ok(self.edges.len() - 1)
    }

    fn map(&mut self, rows: Vec<u32>) -> usize {
        if let Some(id) = self.map_ids.get(&rows) {
            return *id;
        }
        self.maps.push(rows.clone());
        self.map_ids.insert(rows, self.maps.len() - 1);
        self.maps.len() - 1
    }

    /// How many choices an operator has.
    pub fn choices(&self, operator: usize) -> usize {
        self.costs[self.operators[operator].costs].memory.len()
    }

    /// The alternatives of an edge for a choice at both ends.
    pub fn alternatives(&self, edge: &Edge, i: usize, j: usize) -> std::ops::Range<usize> {
        self.tables[edge.table].cell(self.maps[edge.rows][i], self.maps[edge.columns][j])
    }

    /// Memory and time of a full strategy (TensorOpt Eq. 3).
    pub fn evaluate(&self, choices: &[u32], edge_choices: &[u32]) -> (f64, f64) {
        let (mut memory, mut time) = (0.0, 0.0);
        for (operator, choice) in self.operators.iter().zip(choices) {
            memory += self.costs[operator.costs].memory[*choice as usize];
            time += self.costs[operator.costs].time[*choice as usize];
        }
        for (edge, alternative) in self.edges.iter().zip(edge_choices) {
            let at = self
                .alternatives(
                    edge,
                    choices[edge.source] as usize,
                    choices[edge.target] as usize,
                )
                .start
                + *alternative as usize;
            memory += self.tables[edge.table].memory[at];
            time += self.tables[edge.table].time[at];
        }
        (memory, time)
    }
}
