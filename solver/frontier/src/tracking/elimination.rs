//! Node, edge, branch and heuristic elimination (TensorOpt Section 3.2, Eq. 4 to 7).
//!
//! A [`Working`] graph has a frontier per choice of each operator and per pair of choices of each
//! pair of joined operators. Elimination makes it smaller; every elimination except the heuristic
//! one preserves the frontier of the whole.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, EdgeId, Id, IdVec, OperatorId};
use crate::model::problem::Problem;
use crate::tracking::gather::{product, Gather, Limits};
use crate::tracking::staircase::{alternatives, record, union, Candidate, Frontier, Tuple};
use crate::tracking::trace::Arena;

/// The frontiers F(e_ij, s_i, s_j) of one pair of operators `a < b`; rows are the choices of a.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub columns: usize,
    pub cells: Vec<Frontier>,
}

impl Matrix {
    fn transposed(&self) -> Self {
        let rows = self.cells.len() / self.columns;
        let cells = (0..self.columns)
            .flat_map(|c| (0..rows).map(move |r| (r, c)))
            .map(|(r, c)| self.cells[r * self.columns + c].clone())
            .collect();
        Self {
            columns: rows,
            cells,
        }
    }
}

/// Two joined operators in ascending order.
pub type Ends = (OperatorId, OperatorId);

/// The graph while it is being simplified.
///
/// Branch elimination turns an operator's choices into pairs, so choices are positions here, not
/// the problem's ids.
pub struct Working {
    /// Per operator, a frontier for each choice; `None` once it is eliminated.
    pub nodes: IdVec<OperatorId, Option<Vec<Frontier>>>,
    pub edges: BTreeMap<Ends, Matrix>,
    pub neighbours: IdVec<OperatorId, BTreeSet<OperatorId>>,
    pub arena: Arena,
}

impl Working {
    /// Initialises the graph (Algorithm 2, line 3); parallel edges are merged at once (Eq. 5).
    pub fn new(problem: &Problem, limits: &Limits) -> Result<Self, SolveError> {
        let mut arena = Arena::default();
        let nodes = problem
            .operators
            .enumerate()
            .map(|(o, operator)| {
                let costs = &problem.costs[operator.costs];
                let each = costs.memory.enumerate().zip(&costs.time);
                let frontiers = each.map(|((k, &memory), &time)| {
                    let trace = arena.operator(o, k);
                    vec![Tuple {
                        memory,
                        time,
                        trace,
                    }]
                });
                Some(frontiers.collect())
            })
            .collect();
        let mut working = Self {
            nodes,
            edges: BTreeMap::new(),
            neighbours: IdVec::filled(BTreeSet::new(), problem.operators.len()),
            arena,
        };
        for e in problem.edges.ids() {
            limits.watch.poll("initialising", 0.0)?;
            let (pair, matrix) = working.initial_matrix(problem, e);
            working.eliminate_parallel_edge(pair, matrix, limits)?;
        }
        Ok(working)
    }

    /// Returns the matrix of one edge of the problem, with reduced alternatives.
    fn initial_matrix(&mut self, problem: &Problem, e: EdgeId) -> (Ends, Matrix) {
        let edge = problem.edges[e];
        let forward = edge.source < edge.target;
        let (a, b) = if forward {
            (edge.source, edge.target)
        } else {
            (edge.target, edge.source)
        };
        let table = &problem.tables[edge.table];
        let (rows, columns) = (problem.choices(a), problem.choices(b));
        let mut cells = Vec::with_capacity(rows * columns);
        for i in (0..rows).map(ChoiceId::new) {
            for j in (0..columns).map(ChoiceId::new) {
                let (s, t) = if forward { (i, j) } else { (j, i) };
                let range = problem.alternatives(&edge, s, t);
                let reduced = alternatives(table, range);
                let cell = reduced.into_iter().map(|c| Tuple {
                    memory: c.memory,
                    time: c.time,
                    trace: self.arena.edge(e, c.left),
                });
                cells.push(cell.collect());
            }
        }
        ((a, b), Matrix { columns, cells })
    }

    /// Returns the number of an operator's choices; 0 once it is eliminated.
    pub fn choices(&self, node: OperatorId) -> usize {
        self.nodes[node].as_ref().map_or(0, Vec::len)
    }

    /// Returns the matrix between two joined operators, with the choices of `a` as rows.
    fn oriented(&self, a: OperatorId, b: OperatorId) -> Matrix {
        if a < b {
            self.edges[&(a, b)].clone()
        } else {
            self.edges[&(b, a)].transposed()
        }
    }

    /// Removes an operator and its edges.
    fn remove_node(&mut self, node: OperatorId) {
        for other in std::mem::take(&mut self.neighbours[node]) {
            self.neighbours[other].remove(&node);
            self.edges.remove(&(node.min(other), node.max(other)));
        }
        self.nodes[node] = None;
    }

    /// Inserts an edge; if one exists, takes the product of both: edge elimination (Eq. 5).
    fn eliminate_parallel_edge(
        &mut self,
        pair: Ends,
        matrix: Matrix,
        limits: &Limits,
    ) -> Result<(), SolveError> {
        let merged = match self.edges.remove(&pair) {
            None => matrix,
            Some(existing) => {
                let mut cells = Vec::with_capacity(matrix.cells.len());
                for (a, b) in existing.cells.iter().zip(&matrix.cells) {
                    cells.push(product(a, b, limits, &mut self.arena)?);
                }
                Matrix {
                    columns: matrix.columns,
                    cells,
                }
            }
        };
        self.edges.insert(pair, merged);
        self.neighbours[pair.0].insert(pair.1);
        self.neighbours[pair.1].insert(pair.0);
        Ok(())
    }

    /// Turns an operator with two neighbours into an edge between them: node elimination (Eq. 4).
    pub fn eliminate_node(&mut self, node: OperatorId, limits: &Limits) -> Result<(), SolveError> {
        let ends: Vec<OperatorId> = self.neighbours[node].iter().copied().collect();
        match ends[..] {
            [only] => self.absorb_leaf(node, only, limits),
            [h, j] => {
                let into = self.oriented(h, node);
                let out = self.with_node_cost(node, j, limits)?;
                let (k, columns) = (self.choices(node), self.choices(j));
                let rows = self.choices(h);
                let settled: Vec<Vec<Candidate>> = (0..rows * columns)
                    .into_par_iter()
                    .map(|cell| {
                        let (w, p) = (cell / columns, cell % columns);
                        let mut gather = Gather::new(limits);
                        for s in 0..k {
                            gather.product(&into.cells[w * k + s], &out.cells[s * columns + p])?;
                        }
                        gather.settle()
                    })
                    .collect::<Result<_, SolveError>>()?;
                self.remove_node(node);
                let cells = self.record_all(settled);
                let matrix = Matrix { columns, cells };
                self.eliminate_parallel_edge((h, j), matrix, limits)
            }
            _ => unreachable!("node elimination needs one or two neighbours"),
        }
    }

    /// Returns F(o_i, s) x F(e_ij, s, p), so that the operator's cost is added once rather than per
    /// row of h.
    fn with_node_cost(
        &mut self,
        node: OperatorId,
        j: OperatorId,
        limits: &Limits,
    ) -> Result<Matrix, SolveError> {
        let out = self.oriented(node, j);
        let costs = self.nodes[node].clone().unwrap_or_default();
        let mut cells = Vec::with_capacity(out.cells.len());
        for (at, cell) in out.cells.iter().enumerate() {
            let own = &costs[at / out.columns];
            cells.push(product(own, cell, limits, &mut self.arena)?);
        }
        Ok(Matrix {
            columns: out.columns,
            cells,
        })
    }

    /// Merges an operator into its only neighbour: node elimination with one neighbour.
    fn absorb_leaf(
        &mut self,
        node: OperatorId,
        only: OperatorId,
        limits: &Limits,
    ) -> Result<(), SolveError> {
        let through = self.with_node_cost(node, only, limits)?;
        let k = self.choices(node);
        let own = self.nodes[only].clone().unwrap_or_default();
        let settled: Vec<Vec<Candidate>> = own
            .par_iter()
            .enumerate()
            .map(|(p, frontier)| {
                let mut gather = Gather::new(limits);
                for s in 0..k {
                    gather.product(frontier, &through.cells[s * through.columns + p])?;
                }
                gather.settle()
            })
            .collect::<Result<_, SolveError>>()?;
        self.remove_node(node);
        self.nodes[only] = Some(self.record_all(settled));
        Ok(())
    }

    fn record_all(&mut self, settled: Vec<Vec<Candidate>>) -> Vec<Frontier> {
        settled
            .into_iter()
            .map(|candidates| record(candidates, &mut self.arena))
            .collect()
    }

    /// Merges `node` into `into`, whose choices become pairs: branch elimination (Eq. 6).
    pub fn eliminate_branch(
        &mut self,
        node: OperatorId,
        into: OperatorId,
        limits: &Limits,
    ) -> Result<(), SolveError> {
        let between = self.oriented(into, node);
        let (own, merged) = (
            self.nodes[into].clone().unwrap_or_default(),
            self.nodes[node].clone().unwrap_or_default(),
        );
        let mut pairs = Vec::with_capacity(own.len() * merged.len());
        for (p, a) in own.iter().enumerate() {
            for (k, b) in merged.iter().enumerate() {
                let edge = &between.cells[p * merged.len() + k];
                let both = product(a, b, limits, &mut self.arena)?;
                pairs.push(product(&both, edge, limits, &mut self.arena)?);
            }
        }
        let own_edges: Vec<(OperatorId, Matrix)> = self.neighbours[into]
            .iter()
            .filter(|n| **n != node)
            .map(|n| (*n, self.oriented(into, *n)))
            .collect();
        let merged_edges: Vec<(OperatorId, Matrix)> = self.neighbours[node]
            .iter()
            .filter(|n| **n != into)
            .map(|n| (*n, self.oriented(node, *n)))
            .collect();
        self.remove_node(node);
        self.remove_node(into);
        self.nodes[into] = Some(pairs);
        let k = merged.len();
        for (n, matrix) in own_edges {
            let widened = spread(&matrix, own.len() * k, |pair| pair / k);
            self.insert_oriented(into, n, widened, limits)?;
        }
        for (n, matrix) in merged_edges {
            let widened = spread(&matrix, own.len() * k, |pair| pair % k);
            self.insert_oriented(into, n, widened, limits)?;
        }
        Ok(())
    }

    fn insert_oriented(
        &mut self,
        a: OperatorId,
        b: OperatorId,
        matrix: Matrix,
        limits: &Limits,
    ) -> Result<(), SolveError> {
        if a < b {
            self.eliminate_parallel_edge((a, b), matrix, limits)
        } else {
            self.eliminate_parallel_edge((b, a), matrix.transposed(), limits)
        }
    }

    /// Fixes `node`'s choice and adds its costs to the neighbours: heuristic elimination (Eq. 7).
    ///
    /// The choice is the one with the least memory, then the least time (one of the paper's
    /// heuristics). This does not preserve the frontier.
    pub fn eliminate_heuristically(
        &mut self,
        node: OperatorId,
        limits: &Limits,
    ) -> Result<(), SolveError> {
        let own = self.nodes[node].clone().unwrap_or_default();
        let key = |k: &usize| (own[*k][0].memory, own[*k][0].time);
        let fixed = (0..own.len())
            .min_by(|a, b| {
                let (x, y) = (key(a), key(b));
                x.0.total_cmp(&y.0).then(x.1.total_cmp(&y.1))
            })
            .unwrap_or(0);
        let neighbours: Vec<OperatorId> = self.neighbours[node].iter().copied().collect();
        for (position, n) in neighbours.into_iter().enumerate() {
            let matrix = self.oriented(node, n);
            let mut updated = self.nodes[n].clone().unwrap_or_default();
            for (p, frontier) in updated.iter_mut().enumerate() {
                let edge = &matrix.cells[fixed * matrix.columns + p];
                *frontier = product(frontier, edge, limits, &mut self.arena)?;
                if position == 0 {
                    // The operator's own cost is added once.
                    *frontier = product(frontier, &own[fixed], limits, &mut self.arena)?;
                }
            }
            self.nodes[n] = Some(updated);
        }
        self.remove_node(node);
        Ok(())
    }

    /// Returns the frontier of an operator without neighbours: the union over its choices.
    pub fn close(&mut self, node: OperatorId) -> Frontier {
        let own = self.nodes[node].take().unwrap_or_default();
        union(own.iter().map(|f| &f[..]), &mut self.arena)
    }
}

/// Returns a matrix of `rows` rows; row r is row `from(r)` of `matrix`.
fn spread(matrix: &Matrix, rows: usize, from: impl Fn(usize) -> usize) -> Matrix {
    let cells = (0..rows)
        .flat_map(|r| {
            let row = from(r) * matrix.columns;
            matrix.cells[row..row + matrix.columns].iter().cloned()
        })
        .collect();
    Matrix {
        columns: matrix.columns,
        cells,
    }
}
