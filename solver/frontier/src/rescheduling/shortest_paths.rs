//! Shortest paths between all layouts of a tensor (TensorOpt Section 4.2, tensor re-scheduling).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::watch::Watch;

/// Sums with a smaller relative difference count as equal, so that rounding does not choose the
/// path.
const TIE: f64 = 1e-12;

/// An arc from one layout to another, weighted by the time of its collective in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Arc {
    pub source: u32,
    pub target: u32,
    pub weight: f64,
}

/// Per pair (row, column), the distance in seconds and the last arc of the path, or -1.
pub struct Paths {
    pub distance: Vec<f64>,
    pub last_arc: Vec<i32>,
}

#[derive(PartialEq)]
struct Visit {
    distance: f64,
    arcs: u32,
    node: u32,
}

impl Eq for Visit {}

impl Ord for Visit {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed, so that a max-heap returns the nearest visit with the fewest arcs first.
        other
            .distance
            .total_cmp(&self.distance)
            .then(other.arcs.cmp(&self.arcs))
            .then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Visit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the shortest paths between all pairs, by Dijkstra's algorithm from every node.
///
/// Ties go to the path with fewer arcs, then to the lower arc.
///
/// # Errors
///
/// Rejects arcs with unknown ends or invalid weights; returns an error when the solve must stop.
pub fn shortest_paths(nodes: usize, arcs: &[Arc], watch: &Watch) -> Result<Paths, SolveError> {
    for (i, arc) in arcs.iter().enumerate() {
        let inside = (arc.source as usize) < nodes && (arc.target as usize) < nodes;
        if !inside || !arc.weight.is_finite() || arc.weight < 0.0 {
            return Err(SolveError::Invalid(format!(
                "arc {i} must have known ends and a finite weight that is not negative"
            )));
        }
    }
    let out = Leaving::new(nodes, arcs);
    let rows: Vec<(Vec<f64>, Vec<i32>)> = (0..nodes)
        .into_par_iter()
        .map_with(Scratch::default(), |scratch, from| {
            watch.poll("re-scheduling", from as f64 / nodes as f64)?;
            Ok(from_one(from, nodes, &out, scratch))
        })
        .collect::<Result<_, SolveError>>()?;
    let mut paths = Paths {
        distance: Vec::with_capacity(nodes * nodes),
        last_arc: Vec::with_capacity(nodes * nodes),
    };
    for (distance, last_arc) in rows {
        paths.distance.extend(distance);
        paths.last_arc.extend(last_arc);
    }
    Ok(paths)
}

/// The arcs by source: those of node n are at `starts[n]..starts[n + 1]`.
struct Leaving {
    starts: Vec<u32>,
    /// (target, number of the arc, weight)
    arcs: Vec<(u32, u32, f64)>,
}

impl Leaving {
    fn new(nodes: usize, arcs: &[Arc]) -> Self {
        let mut order: Vec<u32> = (0..arcs.len() as u32).collect();
        order.sort_by_key(|i| arcs[*i as usize].source);
        let mut starts = vec![0u32; nodes + 1];
        for arc in arcs {
            starts[arc.source as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let sorted = order.iter().map(|i| {
            let arc = &arcs[*i as usize];
            (arc.target, *i, arc.weight)
        });
        Self {
            starts,
            arcs: sorted.collect(),
        }
    }

    fn of(&self, node: u32) -> &[(u32, u32, f64)] {
        let at = node as usize;
        &self.arcs[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

#[derive(Default, Clone)]
struct Scratch {
    count: Vec<u32>,
}

/// Returns one row of [`Paths`]: the paths from one node.
fn from_one(
    from: usize,
    nodes: usize,
    out: &Leaving,
    scratch: &mut Scratch,
) -> (Vec<f64>, Vec<i32>) {
    let mut distance = vec![f64::INFINITY; nodes];
    let mut last = vec![-1i32; nodes];
    let count = &mut scratch.count;
    count.clear();
    count.resize(nodes, u32::MAX);
    let mut heap = BinaryHeap::new();
    distance[from] = 0.0;
    count[from] = 0;
    heap.push(Visit {
        distance: 0.0,
        arcs: 0,
        node: from as u32,
    });
    while let Some(visit) = heap.pop() {
        let at = visit.node as usize;
        if visit.distance > distance[at] * (1.0 + TIE) || visit.arcs > count[at] {
            continue;
        }
        for &(target, arc, weight) in out.of(visit.node) {
            let to = target as usize;
            let through = visit.distance + weight;
            // Most arcs lead to nodes that a shorter path already reaches.
            if through > distance[to] * (1.0 + 2.0 * TIE) {
                continue;
            }
            let tie = (through - distance[to]).abs() <= TIE * through;
            let shorter = !tie && through < distance[to];
            if shorter || (tie && visit.arcs + 1 < count[to]) {
                distance[to] = through;
                count[to] = visit.arcs + 1;
                last[to] = arc as i32;
                heap.push(Visit {
                    distance: through,
                    arcs: visit.arcs + 1,
                    node: target,
                });
            }
        }
    }
    (distance, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arc(source: u32, target: u32, weight: f64) -> Arc {
        Arc {
            source,
            target,
            weight,
        }
    }

    #[test]
    fn takes_a_detour_when_that_is_cheaper() {
        let arcs = [arc(0, 2, 5.0), arc(0, 1, 1.0), arc(1, 2, 1.0)];
        let paths = shortest_paths(3, &arcs, &Watch::new(None, None)).unwrap();
        assert_eq!(paths.distance[2], 2.0);
        assert_eq!(paths.last_arc[2], 2);
        assert_eq!(paths.distance[3 * 2], f64::INFINITY);
        assert_eq!(paths.last_arc[4], -1);
    }

    #[test]
    fn fewer_arcs_win_a_tie() {
        let arcs = [arc(0, 1, 0.0), arc(1, 2, 1.0), arc(0, 2, 1.0)];
        assert_eq!(
            shortest_paths(3, &arcs, &Watch::new(None, None))
                .unwrap()
                .last_arc[2],
            2
        );
    }

    #[test]
    fn rejects_negative_weights() {
        assert!(shortest_paths(2, &[arc(0, 1, -1.0)], &Watch::new(None, None)).is_err());
    }
}
