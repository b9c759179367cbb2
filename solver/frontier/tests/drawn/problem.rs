//! A random problem as plain data, its true frontier by enumeration, and its problem file.

use std::fmt::Write;

use frontier::{Problem, Table};

use super::bytes::Bytes;
use super::shape::{self, Shape, SHAPES};

/// Memory and time.
pub type Cost = (f64, f64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    /// Small whole numbers: sums are exact in any order, ties are frequent.
    Whole,
    /// Fractions of 2^20: sums are exact in any order, ties are rare.
    Binary,
    /// Arbitrary digits, gigabytes and milliseconds: sums are rounded.
    Real,
    /// The same costs for every choice and every alternative.
    Equal,
    /// Mostly zeros.
    Zero,
    /// A few whole units of memory, fractions of 2^10 of time: for `units.rs`.
    Units,
    /// Magnitudes so far apart that the smaller ones vanish in sums.
    Extreme,
}

pub const COSTS: [Costs; 6] = [
    Costs::Whole,
    Costs::Binary,
    Costs::Real,
    Costs::Equal,
    Costs::Zero,
    Costs::Extreme,
];

pub struct DrawnTable {
    pub rows: usize,
    pub columns: usize,
    /// The alternatives of each cell, row by row.
    pub cells: Vec<Vec<Cost>>,
}

pub struct DrawnEdge {
    pub source: usize,
    pub target: usize,
    pub table: usize,
    pub row_of: Vec<u32>,
    pub column_of: Vec<u32>,
}

pub struct Drawn {
    pub shape: Shape,
    pub kind: Costs,
    pub costs: Vec<Vec<Cost>>,
    /// The position of each operator's costs in `costs`.
    pub operators: Vec<usize>,
    pub tables: Vec<DrawnTable>,
    pub edges: Vec<DrawnEdge>,
}

/// The most combinations of the operators' choices. Both limits keep the enumeration below about
/// 40,000 strategies.
const STRATEGIES: usize = 1500;
/// The most edges whose cells have several alternatives.
const RICH_EDGES: usize = 3;

fn cost(kind: Costs, bytes: &mut Bytes) -> Cost {
    match kind {
        Costs::Whole => (bytes.below(24) as f64, bytes.below(24) as f64),
        Costs::Binary => {
            let mut one = || (bytes.fraction() * f64::from(1 << 20)).floor() / 1024.0;
            (one(), one())
        }
        Costs::Real => {
            if bytes.once_in(16) {
                (0.0, bytes.fraction() * 1e-2)
            } else {
                (bytes.fraction() * 1e10, bytes.fraction() * 1e-2)
            }
        }
        Costs::Equal => (3.0, 5.0),
        Costs::Zero => {
            let mut one = || bytes.below(6).saturating_sub(4) as f64;
            (one(), one())
        }
        Costs::Units => {
            let memory = bytes.below(20);
            // More memory is faster; otherwise the frontier would be short.
            let time = 1024 * (20 - memory) + 40 * bytes.below(256) + bytes.below(256);
            (memory as f64, time as f64 / 1024.0)
        }
        Costs::Extreme => {
            // Beyond these (1e-300, 1e300, subnormal numbers) the certified search loses its
            // bounds.
            let ends = [0.0, 1e-30, 1e-9, 1.0, 1e9, 1e18, 1e30];
            (bytes.pick(&ends), bytes.pick(&ends))
        }
    }
}

impl Drawn {
    /// Returns problem number `number`; numbers cycle through all pairs of shape and costs.
    pub fn numbered(number: u64) -> Self {
        let shape = SHAPES[number as usize % SHAPES.len()];
        let kind = COSTS[number as usize / SHAPES.len() % COSTS.len()];
        Self::draw(shape, kind, &mut Bytes::numbered(number))
    }

    pub fn empty(shape: Shape, kind: Costs) -> Self {
        Self {
            shape,
            kind,
            costs: Vec::new(),
            operators: Vec::new(),
            tables: Vec::new(),
            edges: Vec::new(),
        }
    }

    pub fn draw(shape: Shape, kind: Costs, bytes: &mut Bytes) -> Self {
        let (n, pairs) = shape::draw(shape, bytes);
        // Repeated layers: operators and edges of the same form share their costs.
        let alike = bytes.once_in(3);
        let mut drawn = Self::empty(shape, kind);
        let mut strategies = 1;
        for _ in 0..n {
            let most = (STRATEGIES / strategies).clamp(1, if n < 3 { 12 } else { 4 });
            let number = 1 + bytes.below(most);
            strategies *= number;
            drawn.add_operator(number, alike, bytes);
        }
        for (e, (source, target)) in pairs.into_iter().enumerate() {
            drawn.add_edge(source, target, e < RICH_EDGES, alike, bytes);
        }
        drawn
    }

    pub fn add_operator(&mut self, choices: usize, alike: bool, bytes: &mut Bytes) {
        let known = self.costs.iter().position(|c| c.len() == choices);
        let id = known.filter(|_| alike).unwrap_or_else(|| {
            let fresh = (0..choices).map(|_| cost(self.kind, bytes)).collect();
            self.costs.push(fresh);
            self.costs.len() - 1
        });
        self.operators.push(id);
    }

    pub fn add_edge(
        &mut self,
        source: usize,
        target: usize,
        rich: bool,
        alike: bool,
        bytes: &mut Bytes,
    ) {
        let (k, l) = (self.choices(source).len(), self.choices(target).len());
        // Several choices may share a row or a column of the table.
        let (rows, columns) = (k - bytes.below(k) / 2, l - bytes.below(l) / 2);
        let plain = |t: &DrawnTable| t.cells.iter().all(|cell| cell.len() == 1);
        let fits = |t: &DrawnTable| (t.rows, t.columns) == (rows, columns) && (rich || plain(t));
        let known = self.tables.iter().position(fits);
        let table = known.filter(|_| alike).unwrap_or_else(|| {
            let cells = (0..rows * columns)
                .map(|_| {
                    let several = rich && bytes.once_in(3);
                    let number = if several { 2 + bytes.below(2) } else { 1 };
                    (0..number).map(|_| cost(self.kind, bytes)).collect()
                })
                .collect();
            self.tables.push(DrawnTable {
                rows,
                columns,
                cells,
            });
            self.tables.len() - 1
        });
        let mut map = |choices: usize, kinds: usize| {
            let kind = |i: usize, bytes: &mut Bytes| {
                (if i < kinds { i } else { bytes.below(kinds) }) as u32
            };
            (0..choices).map(|i| kind(i, bytes)).collect::<Vec<_>>()
        };
        let (row_of, column_of) = (map(k, rows), map(l, columns));
        self.edges.push(DrawnEdge {
            source,
            target,
            table,
            row_of,
            column_of,
        });
    }

    pub fn choices(&self, operator: usize) -> &[Cost] {
        &self.costs[self.operators[operator]]
    }

    pub fn cell(&self, edge: &DrawnEdge, i: usize, j: usize) -> &[Cost] {
        let table = &self.tables[edge.table];
        &table.cells[edge.row_of[i] as usize * table.columns + edge.column_of[j] as usize]
    }

    /// Returns whether sums are exact in any order, so that frontiers can be compared point by
    /// point.
    pub fn adds_exactly(&self) -> bool {
        !matches!(self.kind, Costs::Real | Costs::Extreme)
    }

    /// Returns the problem in the solver's form.
    pub fn problem(&self) -> Problem {
        let mut problem = Problem::default();
        for costs in &self.costs {
            let (memory, time) = costs.iter().copied().unzip();
            problem.add_costs(memory, time).unwrap();
        }
        for (o, costs) in self.operators.iter().enumerate() {
            problem
                .add_operator(format!("o{o}"), (*costs).into())
                .unwrap();
        }
        for table in &self.tables {
            let counts = table.cells.iter().map(|cell| cell.len() as u32);
            let (memory, time) = table.cells.iter().flatten().copied().unzip();
            let table = Table::ragged(table.rows, table.columns, counts, memory, time);
            problem.add_table(table.unwrap()).unwrap();
        }
        for e in &self.edges {
            let (rows, columns) = (e.row_of.clone(), e.column_of.clone());
            let (source, target) = (e.source.into(), e.target.into());
            let edge = problem.add_edge(source, target, e.table.into(), rows, columns);
            edge.unwrap();
        }
        problem
    }

    /// Returns the cost of a strategy, summed over operators before edges, as the solver promises.
    pub fn cost_of(&self, choices: &[u32], alternatives: &[u32]) -> Cost {
        let taken = choices.iter().enumerate();
        let nodes = taken.map(|(o, &i)| self.choices(o)[i as usize]);
        let joined = self.edges.iter().zip(alternatives).map(|(e, &a)| {
            let (i, j) = (choices[e.source] as usize, choices[e.target] as usize);
            self.cell(e, i, j)[a as usize]
        });
        let sum = |(m, t): Cost, (more_m, more_t): Cost| (m + more_m, t + more_t);
        nodes.chain(joined).fold((0.0, 0.0), sum)
    }

    /// Returns the true frontier: all strategies, sorted and reduced.
    pub fn frontier(&self) -> Vec<Cost> {
        let mut every = Vec::new();
        self.enumerate(&mut Vec::new(), (0.0, 0.0), &mut every);
        every.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut best: Vec<Cost> = Vec::new();
        for point in every {
            if best.last().is_none_or(|last| point.1 < last.1) {
                best.push(point);
            }
        }
        best
    }

    fn enumerate(&self, choices: &mut Vec<usize>, sum: Cost, every: &mut Vec<Cost>) {
        let o = choices.len();
        if o == self.operators.len() {
            every.push(sum);
            return;
        }
        for (i, own) in self.choices(o).iter().enumerate() {
            choices.push(i);
            let mut sums = vec![(sum.0 + own.0, sum.1 + own.1)];
            for e in &self.edges {
                if e.source.max(e.target) == o {
                    let cell = self.cell(e, choices[e.source], choices[e.target]);
                    let with = |s: &Cost| {
                        let s = *s;
                        cell.iter().map(move |c| (s.0 + c.0, s.1 + c.1))
                    };
                    sums = sums.iter().flat_map(with).collect();
                }
            }
            for sum in sums {
                self.enumerate(choices, sum, every);
            }
            choices.pop();
        }
    }

    /// Returns the problem as a `shardwise.problem/1` file, so that a failure can be examined by
    /// hand.
    pub fn json(&self) -> String {
        let list = |costs: &[Cost]| {
            let each = costs
                .iter()
                .map(|(m, t)| format!("{{\"memory_bytes\": {m:?}, \"time_s\": {t:?}}}"));
            format!("[{}]", each.collect::<Vec<_>>().join(", "))
        };
        let mut text = String::from("{\"schema\": \"shardwise.problem/1\",\n \"operators\": [");
        for o in 0..self.operators.len() {
            let comma = if o > 0 { ",\n  " } else { "" };
            let choices = list(self.choices(o));
            let _ = write!(
                text,
                "{comma}{{\"name\": \"o{o}\", \"choices\": {choices}}}"
            );
        }
        text.push_str("],\n \"edges\": [");
        for (at, e) in self.edges.iter().enumerate() {
            let rows = (0..e.row_of.len()).map(|i| {
                let cells = (0..e.column_of.len()).map(|j| list(self.cell(e, i, j)));
                format!("[{}]", cells.collect::<Vec<_>>().join(", "))
            });
            let _ = write!(
                text,
                "{}{{\"source\": \"o{}\", \"target\": \"o{}\", \"choices\": [{}]}}",
                if at > 0 { ",\n  " } else { "" },
                e.source,
                e.target,
                rows.collect::<Vec<_>>().join(",\n    ")
            );
        }
        text.push_str("]}\n");
        text
    }
}
