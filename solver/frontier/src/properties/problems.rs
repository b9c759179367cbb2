//! Random problems of every shape, small enough for brute force.

use proptest::prelude::*;

use crate::model::ids::{Id, OperatorId};
use crate::model::point::Point;
use crate::model::problem::{Problem, Table};
use crate::model::watch::Watch;
use crate::tracking::gather::Limits;

/// The shapes that a problem may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Single,
    Chain,
    Tree,
    SeriesParallel,
    /// Every pair joined at random.
    Dag,
    /// A complete graph: nothing but branch or bucket elimination applies.
    Dense,
    Disconnected,
    ParallelEdges,
    /// A chain whose operators all read the first one.
    Hub,
}

pub const SHAPES: [Shape; 9] = [
    Shape::Single,
    Shape::Chain,
    Shape::Tree,
    Shape::SeriesParallel,
    Shape::Dag,
    Shape::Dense,
    Shape::Disconnected,
    Shape::ParallelEdges,
    Shape::Hub,
];

/// A problem as plain data, so that failures are readable.
#[derive(Debug, Clone)]
pub struct Sketch {
    pub shape: Shape,
    /// The (memory, time) of each operator's choices.
    pub costs: Vec<Vec<(u8, u8)>>,
    pub edges: Vec<(usize, usize)>,
    /// The stream from which the edges' alternatives are read.
    pub stream: Vec<(u8, u8)>,
    /// Whether all operators have the costs of the first, like repeated layers.
    pub alike: bool,
}

fn ends(shape: Shape, n: usize, bits: &[bool]) -> Vec<(usize, usize)> {
    let chain = |from: usize| (from..n.saturating_sub(1)).map(|i| (i, i + 1));
    let bit = |i: usize| bits[i % bits.len()];
    match shape {
        Shape::Single => Vec::new(),
        Shape::Chain => chain(0).collect(),
        Shape::Tree => (1..n)
            .map(|i| (if bit(i) { i - 1 } else { (i - 1) / 2 }, i))
            .collect(),
        Shape::SeriesParallel => chain(0)
            .chain(
                (0..n.saturating_sub(2))
                    .filter(|i| i % 2 == 0)
                    .map(|i| (i, i + 2)),
            )
            .collect(),
        Shape::Dag => (0..n)
            .flat_map(|i| (i + 1..n).map(move |j| (i, j)))
            .enumerate()
            .filter(|(at, _)| bit(*at))
            .map(|(_, pair)| pair)
            .collect(),
        Shape::Dense => (0..n)
            .flat_map(|i| (i + 1..n).map(move |j| (i, j)))
            .collect(),
        Shape::Disconnected => chain(0).filter(|(i, _)| i % 2 == 0).collect(),
        // The second edge of each pair runs backwards.
        Shape::ParallelEdges => chain(0).flat_map(|(i, j)| [(i, j), (j, i)]).collect(),
        Shape::Hub => chain(0).chain((2..n).map(|i| (0, i))).collect(),
    }
}

pub fn sketches() -> impl Strategy<Value = Sketch> {
    (
        prop::sample::select(&SHAPES[..]),
        prop::collection::vec(prop::collection::vec((0u8..24, 0u8..24), 1..4), 1..7),
        prop::collection::vec((0u8..12, 0u8..12), 1..40),
        prop::collection::vec(any::<bool>(), 1..20),
        prop::bool::weighted(0.3),
        any::<bool>(),
    )
        .prop_map(|(shape, mut costs, stream, bits, alike, backwards)| {
            if shape == Shape::Single {
                costs.truncate(1);
            } else if costs.len() < 3 {
                costs.resize(3, vec![(3, 5), (5, 3)]);
            }
            let mut edges = ends(shape, costs.len(), &bits);
            if backwards {
                // The last operator comes first, so that numbers do not reveal the order.
                edges.iter_mut().for_each(|(a, b)| (*a, *b) = (*b, *a));
            }
            if alike {
                let first = costs[0].clone();
                costs.fill(first);
            }
            Sketch {
                shape,
                costs,
                edges,
                stream,
                alike,
            }
        })
}

/// Builds the problem of a sketch; costs are whole numbers, so that sums are exact in any order.
pub fn build(sketch: &Sketch) -> Problem {
    let mut problem = Problem::default();
    let mut shared = None;
    for (o, choices) in sketch.costs.iter().enumerate() {
        let memory = choices.iter().map(|c| f64::from(c.0)).collect();
        let time = choices.iter().map(|c| f64::from(c.1)).collect();
        let id = match (sketch.alike, shared) {
            (true, Some(id)) => id,
            _ => problem.add_costs(memory, time).unwrap(),
        };
        shared = Some(id);
        problem.add_operator(format!("operator {o}"), id).unwrap();
    }
    let mut at = 0;
    let mut next = || {
        at += 1;
        sketch.stream[at % sketch.stream.len()]
    };
    let mut tables = std::collections::HashMap::new();
    for (e, &(source, target)) in sketch.edges.iter().enumerate() {
        let (source, target) = (OperatorId::new(source), OperatorId::new(target));
        let (k, l) = (problem.choices(source), problem.choices(target));
        // Every other edge has fewer rows than its source has choices.
        let rows = if e % 2 == 1 { k.div_ceil(2) } else { k };
        let key = if sketch.alike {
            (rows, l, 0)
        } else {
            (rows, l, e)
        };
        let table = *tables.entry(key).or_insert_with(|| {
            let counts: Vec<u32> = (0..rows * l)
                .map(|_| 1 + u32::from(next().0 % 3 == 0))
                .collect();
            let total: u32 = counts.iter().sum();
            let costs: Vec<(u8, u8)> = (0..total).map(|_| next()).collect();
            let table = Table::ragged(
                rows,
                l,
                counts.into_iter(),
                costs.iter().map(|c| f64::from(c.0)).collect(),
                costs.iter().map(|c| f64::from(c.1)).collect(),
            );
            problem.add_table(table.unwrap()).unwrap()
        });
        let row_of = (0..k as u32).map(|i| i % rows as u32).collect();
        problem
            .add_edge(source, target, table, row_of, (0..l as u32).collect())
            .unwrap();
    }
    problem
}

pub fn problems() -> impl Strategy<Value = Problem> {
    sketches().prop_map(|sketch| build(&sketch))
}

pub fn costs(points: &[Point]) -> Vec<(f64, f64)> {
    points.iter().map(|p| (p.memory, p.time)).collect()
}

pub fn exact_limits<'a>(watch: &'a Watch<'a>) -> Limits<'a> {
    Limits {
        candidates: u64::MAX,
        watch,
    }
}

/// Returns whether every strategy is within a factor of 1 + epsilon of some point in both costs;
/// `truth` is the true frontier.
pub fn covers(points: &[Point], truth: &[Point], epsilon: f64) -> bool {
    let bound = (1.0 + epsilon) * (1.0 + 1e-12);
    truth.iter().all(|t| {
        points
            .iter()
            .any(|p| p.memory <= t.memory * bound && p.time <= t.time * bound)
    })
}
