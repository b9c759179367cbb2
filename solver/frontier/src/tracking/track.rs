//! Frontier Tracking (TensorOpt Algorithm 2).

use std::collections::BTreeSet;

use crate::model::error::SolveError;
use crate::model::ids::{ChoiceId, Id, IdVec, OperatorId};
use crate::model::point::{staircase, Point};
use crate::model::problem::Problem;
use crate::tracking::bucket;
use crate::tracking::elimination::Working;
use crate::tracking::gather::{product, Limits};
use crate::tracking::ldp;
use crate::tracking::staircase::{unit, Frontier};

/// How the graph is simplified before the final dynamic programming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether a linear graph is left for LDP (FT-LDP); otherwise operators are eliminated until
    /// two are left (FT-Elimination).
    pub linear: bool,
    /// Whether the paper's heuristic elimination is used where none of its exact eliminations
    /// applies; otherwise exact bucket elimination is.
    pub heuristic: bool,
    /// The most choices of an operator that branch elimination may produce.
    pub widest: usize,
}

/// The points of a frontier, and whether heuristic elimination was used.
#[derive(Debug, Clone)]
pub struct Tracked {
    pub points: Vec<Point>,
    pub heuristic: bool,
}

/// Returns the frontier of a problem by Algorithm 2: simplify, LDP, unroll.
///
/// # Errors
///
/// Returns `OverBudget` when exact elimination is too wide, and an error when a limit is reached.
pub fn track(problem: &Problem, style: Style, limits: &Limits) -> Result<Tracked, SolveError> {
    limits.watch.forget();
    let mut working = Working::new(problem, limits)?;
    let rank = topological_rank(problem);
    let mut marks = Marks::new(&rank, style.linear);
    let mut heuristic = false;
    let mut stuck = false;
    let total = problem.operators.len().max(1);
    while !stuck {
        let left = working.nodes.iter().flatten().count();
        limits
            .watch
            .poll("eliminating", 1.0 - left as f64 / total as f64)?;
        marks.extend(&working);
        if try_exact_eliminate(&mut working, &marks, style, limits)? {
            continue;
        }
        if marks.is_linear(&working) {
            break;
        }
        if style.heuristic {
            heuristic = true;
            heuristic_eliminate(&mut working, limits)?;
        } else {
            stuck = true;
        }
    }
    let frontier = if stuck {
        bucket::run(&mut working, limits)?
    } else {
        solve_components(&mut working, &rank, limits)?
    };
    let points = unroll(problem, &working, &frontier);
    Ok(Tracked { points, heuristic })
}

/// Positions of the operators in a topological order.
type Rank = IdVec<OperatorId, usize>;

/// The operators on the linear graph: the first one and those after it, as long as each has a
/// single downstream operator.
struct Marks<'a> {
    rank: &'a Rank,
    linear: bool,
    marked: IdVec<OperatorId, bool>,
    last: Option<OperatorId>,
}

impl<'a> Marks<'a> {
    /// Marks the first operator.
    fn new(rank: &'a Rank, linear: bool) -> Self {
        let first = rank.ids().min_by_key(|o| rank[*o]);
        let mut marked = IdVec::filled(false, rank.len());
        if let (true, Some(first)) = (linear, first) {
            marked[first] = true;
        }
        Self {
            rank,
            linear,
            marked,
            last: first,
        }
    }

    /// Marks the operators that elimination has brought onto the linear graph (line 5).
    fn extend(&mut self, working: &Working) {
        while let (true, Some(last)) = (self.linear, self.last) {
            let mut downstream = working.neighbours[last]
                .iter()
                .filter(|n| self.rank[**n] > self.rank[last]);
            match (downstream.next(), downstream.next()) {
                // It belongs to the chain only if no other operator can still come before it.
                (Some(&only), None) if self.feeds_only_from(working, only, last) => {
                    self.marked[only] = true;
                    self.last = Some(only);
                }
                _ => return,
            }
        }
    }

    /// Returns whether all neighbours of `node` except `last` come after it.
    fn feeds_only_from(&self, working: &Working, node: OperatorId, last: OperatorId) -> bool {
        working.neighbours[node]
            .iter()
            .all(|n| *n == last || self.rank[*n] > self.rank[node])
    }

    /// Returns whether every component is a path.
    fn is_linear(&self, working: &Working) -> bool {
        let ends = working.nodes.enumerate().filter(|(_, n)| n.is_some());
        let mut nodes = 0;
        for (o, _) in ends {
            nodes += 1;
            if working.neighbours[o].len() > 2 {
                return false;
            }
        }
        // A forest of paths has no cycle: fewer edges than nodes, component by component.
        components(working).len() + working.edges.len() == nodes
    }
}

/// Eliminates one operator exactly if possible (line 6): by node elimination where that applies,
/// the cheapest first, otherwise by branch elimination. Returns whether an operator was eliminated.
fn try_exact_eliminate(
    working: &mut Working,
    marks: &Marks,
    style: Style,
    limits: &Limits,
) -> Result<bool, SolveError> {
    let keep = |working: &Working, o: OperatorId| {
        marks.marked[o] || (!style.linear && working.nodes.iter().flatten().count() <= 2)
    };
    let node = working
        .nodes
        .ids()
        .filter(|o| working.nodes[*o].is_some() && !keep(working, *o))
        .filter(|o| (1..=2).contains(&working.neighbours[*o].len()))
        .min_by_key(|o| (elimination_cost(working, *o), *o));
    if let Some(node) = node {
        working.eliminate_node(node, limits)?;
        return Ok(true);
    }
    if marks.is_linear(working) {
        return Ok(false);
    }
    let branch = working
        .edges
        .keys()
        .flat_map(|&(a, b)| [(a, b), (b, a)])
        .filter(|(node, _)| !marks.marked[*node])
        .map(|(node, into)| (working.choices(node) * working.choices(into), node, into))
        .filter(|(width, _, _)| *width <= style.widest)
        .min();
    if let Some((_, node, into)) = branch {
        working.eliminate_branch(node, into, limits)?;
        return Ok(true);
    }
    Ok(false)
}

/// Returns the number of sums of a node elimination if every frontier were a single tuple.
fn elimination_cost(working: &Working, node: OperatorId) -> usize {
    working.neighbours[node]
        .iter()
        .fold(working.choices(node), |cost, n| {
            cost.saturating_mul(working.choices(*n))
        })
}

/// Fixes the operator with the most neighbours, such as the attention mask that all layers read
/// (line 7).
fn heuristic_eliminate(working: &mut Working, limits: &Limits) -> Result<(), SolveError> {
    let hub = working
        .nodes
        .ids()
        .filter(|o| working.nodes[*o].is_some())
        .max_by_key(|o| (working.neighbours[*o].len(), std::cmp::Reverse(*o)));
    match hub {
        Some(hub) => working.eliminate_heuristically(hub, limits),
        None => Ok(()),
    }
}

/// Solves each component's chain by LDP and takes the product over components (lines 12 and 13).
fn solve_components(
    working: &mut Working,
    rank: &Rank,
    limits: &Limits,
) -> Result<Frontier, SolveError> {
    let mut whole = unit();
    for component in components(working) {
        let part = if component.len() == 1 {
            working.close(component[0])
        } else {
            let chain = chain_order(working, &component, rank);
            ldp::run(working, &chain, limits)?
        };
        whole = product(&whole, &part, limits, &mut working.arena)?;
    }
    Ok(whole)
}

/// Returns the connected components of the remaining graph, each in ascending order.
fn components(working: &Working) -> Vec<Vec<OperatorId>> {
    let mut seen = IdVec::filled(false, working.nodes.len());
    let mut all = Vec::new();
    for start in working.nodes.ids() {
        if working.nodes[start].is_none() || seen[start] {
            continue;
        }
        seen[start] = true;
        let (mut stack, mut members) = (vec![start], Vec::new());
        while let Some(at) = stack.pop() {
            members.push(at);
            for &n in &working.neighbours[at] {
                if !seen[n] {
                    seen[n] = true;
                    stack.push(n);
                }
            }
        }
        members.sort_unstable();
        all.push(members);
    }
    all
}

/// Returns the operators of a path, starting from the end that comes first.
fn chain_order(working: &Working, component: &[OperatorId], rank: &Rank) -> Vec<OperatorId> {
    let start = component
        .iter()
        .copied()
        .filter(|o| working.neighbours[*o].len() == 1)
        .min_by_key(|o| rank[*o])
        .unwrap_or(component[0]);
    let mut chain = vec![start];
    while chain.len() < component.len() {
        let last = chain[chain.len() - 1];
        let before = chain.len().checked_sub(2).map(|i| chain[i]);
        match working.neighbours[last]
            .iter()
            .find(|n| Some(**n) != before)
        {
            Some(&next) => chain.push(next),
            None => break,
        }
    }
    chain
}

/// Returns the strategies behind the tuples (line 14).
///
/// Costs are summed again in the order of the problem, so that they do not depend on the order of
/// elimination; points that differed only by rounding become one.
fn unroll(problem: &Problem, working: &Working, frontier: &Frontier) -> Vec<Point> {
    let points = frontier
        .iter()
        .map(|tuple| {
            let mut choices = IdVec::filled(ChoiceId::new(0), problem.operators.len());
            let mut edge_choices = IdVec::filled(0, problem.edges.len());
            working
                .arena
                .unroll(tuple.trace, &mut choices, &mut edge_choices);
            Point::of(problem, choices, edge_choices)
        })
        .collect();
    staircase(points)
}

/// Returns the position of each operator in a topological order; operators that are on or behind a
/// cycle come last, by number.
fn topological_rank(problem: &Problem) -> Rank {
    let n = problem.operators.len();
    let mut incoming = IdVec::filled(0usize, n);
    let mut outgoing = IdVec::filled(Vec::new(), n);
    for edge in &problem.edges {
        incoming[edge.target] += 1;
        outgoing[edge.source].push(edge.target);
    }
    let operators = problem.operators.ids();
    let mut ready: BTreeSet<OperatorId> = operators.filter(|o| incoming[*o] == 0).collect();
    let mut rank = IdVec::filled(usize::MAX, n);
    let mut next = 0;
    while let Some(o) = ready.pop_first() {
        rank[o] = next;
        next += 1;
        for &t in &outgoing[o] {
            incoming[t] -= 1;
            if incoming[t] == 0 {
                ready.insert(t);
            }
        }
    }
    for place in rank.iter_mut().filter(|r| **r == usize::MAX) {
        *place = next;
        next += 1;
    }
    rank
}
