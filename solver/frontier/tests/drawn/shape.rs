//! The graphs of random problems, and their treewidth.

use super::bytes::Bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Chain,
    Tree,
    SeriesParallel,
    /// A partial k-tree, k from 2 to 4: the treewidth is at most 4.
    Treewidth,
    ParallelEdges,
    Disconnected,
    Single,
}

pub const SHAPES: [Shape; 7] = [
    Shape::Chain,
    Shape::Tree,
    Shape::SeriesParallel,
    Shape::Treewidth,
    Shape::ParallelEdges,
    Shape::Disconnected,
    Shape::Single,
];

/// The most operators of a drawn problem.
pub const MOST_OPERATORS: usize = 9;

/// Returns the number of operators and the pairs that edges join, in random directions and with
/// shuffled numbers.
pub fn draw(shape: Shape, bytes: &mut Bytes) -> (usize, Vec<(usize, usize)>) {
    let (n, mut edges) = match shape {
        Shape::Single => (1, Vec::new()),
        Shape::Chain => {
            let n = 2 + bytes.below(7);
            (n, (1..n).map(|o| (o - 1, o)).collect())
        }
        Shape::Tree => tree(bytes),
        Shape::SeriesParallel => series_parallel(bytes),
        Shape::Treewidth => partial_k_tree(bytes),
        Shape::ParallelEdges => {
            let (n, mut edges) = tree(bytes);
            for _ in 0..1 + bytes.below(3) {
                let duplicate = bytes.pick(&edges);
                edges.push(duplicate);
            }
            (n, edges)
        }
        Shape::Disconnected => {
            let n = 2 + bytes.below(6);
            // No edge joins operators 0 and 1, and every later operator is joined to at most one
            // earlier one.
            let joined = (2..n).map(|o| (bytes.below(o), o, bytes.once_in(4)));
            let kept = joined.filter(|(_, _, alone)| !alone);
            (n, kept.map(|(a, b, _)| (a, b)).collect())
        }
    };
    for (a, b) in &mut edges {
        if bytes.once_in(2) {
            std::mem::swap(a, b);
        }
    }
    let mut numbers: Vec<usize> = (0..n).collect();
    for at in (1..n).rev() {
        numbers.swap(at, bytes.below(at + 1));
    }
    let renumbered = edges.into_iter().map(|(a, b)| (numbers[a], numbers[b]));
    (n, renumbered.collect())
}

fn tree(bytes: &mut Bytes) -> (usize, Vec<(usize, usize)>) {
    let n = 3 + bytes.below(6);
    (n, (1..n).map(|o| (bytes.below(o), o)).collect())
}

/// Starts with one edge; repeatedly doubles an edge or puts an operator in the middle of one.
fn series_parallel(bytes: &mut Bytes) -> (usize, Vec<(usize, usize)>) {
    let mut edges = vec![(0, 1)];
    let mut n = 2;
    let most = 4 + bytes.below(4);
    while n < most && edges.len() < 12 {
        let at = bytes.below(edges.len());
        let (a, b) = edges[at];
        if bytes.once_in(3) {
            edges.push((a, b));
        } else {
            // A path parallel to the edge, or in its place.
            if bytes.once_in(2) {
                edges.swap_remove(at);
            }
            edges.extend([(a, n), (n, b)]);
            n += 1;
        }
    }
    (n, edges)
}

fn partial_k_tree(bytes: &mut Bytes) -> (usize, Vec<(usize, usize)>) {
    let k = 2 + bytes.below(3);
    let n = (k + 1 + bytes.below(4)).min(MOST_OPERATORS);
    let first: Vec<usize> = (0..k).collect();
    let mut edges: Vec<(usize, usize)> = (0..k).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    let mut cliques = vec![first];
    for o in k..n {
        let clique = cliques[bytes.below(cliques.len())].clone();
        edges.extend(clique.iter().map(|&a| (a, o)));
        cliques.extend((0..k).map(|at| {
            let mut next = clique.clone();
            next[at] = o;
            next
        }));
    }
    edges.retain(|_| !bytes.once_in(8));
    (n, edges)
}

/// Returns the exact treewidth: the least width over all orders of elimination, by dynamic
/// programming over subsets of operators.
pub fn treewidth(n: usize, edges: &[(usize, usize)]) -> usize {
    let mut near = vec![0usize; n];
    for &(a, b) in edges {
        near[a] |= 1 << b;
        near[b] |= 1 << a;
    }
    let mut best = vec![0usize; 1 << n];
    for gone in 1..1usize << n {
        let last = (0..n).filter(|o| gone >> o & 1 == 1);
        best[gone] = last
            .map(|o| {
                let before = gone & !(1 << o);
                best[before].max(neighbours_through(&near, before, o))
            })
            .min()
            .unwrap_or(0);
    }
    best[(1 << n) - 1]
}

/// Returns the number of operators outside `gone` that `o` reaches through operators in `gone`.
fn neighbours_through(near: &[usize], gone: usize, o: usize) -> usize {
    let mut seen = 1 << o;
    let mut open = vec![o];
    while let Some(at) = open.pop() {
        let fresh = near[at] & !seen;
        seen |= fresh;
        open.extend((0..near.len()).filter(|next| (fresh & gone) >> next & 1 == 1));
    }
    (seen & !gone & !(1 << o)).count_ones() as usize
}
