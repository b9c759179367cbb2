//! Chains with hubs, too large to enumerate, and their frontier by dynamic programming over memory.
//!
//!   f[k][v] = least time of the chain so far that takes exactly v units and ends in choice k
//!
//! for each assignment of the hubs: operators to which any operator of the chain may be joined.
//! Without hubs the treewidth is 1, with two of them 3. Memory comes in whole units, so this is
//! exact. It is independent of the solver: it uses neither staircases nor elimination.

use super::bytes::Bytes;
use super::problem::{Cost, Costs, Drawn};
use super::shape::Shape;

pub struct HubChain {
    pub drawn: Drawn,
    /// The operators of the chain in order, and the hubs.
    chain: Vec<usize>,
    hubs: Vec<usize>,
}

fn sums(a: &[Cost], b: &[Cost]) -> Vec<Cost> {
    let with = |x: &Cost| {
        let x = *x;
        b.iter().map(move |y| (x.0 + y.0, x.1 + y.1))
    };
    a.iter().flat_map(with).collect()
}

impl HubChain {
    /// Returns chain number `number`, with 20 to 40 operators and up to two hubs.
    pub fn numbered(number: u64) -> Self {
        let mut bytes = Bytes::numbered(number + (1 << 40));
        let length = 20 + bytes.below(21);
        Self::draw(number as usize % 3, length, 9, &mut bytes)
    }

    /// Returns a chain that is short enough to be enumerated.
    pub fn shortened(number: u64) -> Self {
        let mut bytes = Bytes::numbered(number + (1 << 41));
        let length = 1 + bytes.below(5);
        Self::draw(number as usize % 3, length, 3, &mut bytes)
    }

    fn draw(hubs: usize, length: usize, most_choices: usize, bytes: &mut Bytes) -> Self {
        let alike = bytes.once_in(3);
        let mut drawn = Drawn::empty(Shape::Chain, Costs::Units);
        // Hubs may be anywhere in the order of operators.
        let mut places: Vec<usize> = (0..length + hubs).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, bytes.below(at + 1));
        }
        let (hubs, chain) = (places[..hubs].to_vec(), places[hubs..].to_vec());
        for o in 0..places.len() {
            let most = if hubs.contains(&o) { 3 } else { most_choices };
            drawn.add_operator(2 + bytes.below(most - 1), alike, bytes);
        }
        let mut join = |a: usize, b: usize, bytes: &mut Bytes| {
            let (a, b) = if bytes.once_in(2) { (a, b) } else { (b, a) };
            drawn.add_edge(a, b, bytes.once_in(6), alike, bytes);
        };
        for pair in chain.windows(2) {
            join(pair[0], pair[1], bytes);
            if bytes.once_in(12) {
                join(pair[0], pair[1], bytes);
            }
        }
        for (h, &hub) in hubs.iter().enumerate() {
            for &other in chain.iter().chain(&hubs[..h]) {
                if bytes.once_in(3) {
                    join(hub, other, bytes);
                }
            }
        }
        Self { drawn, chain, hubs }
    }

    /// Returns the possible costs of the edges between two operators, given their choices i and j.
    fn between(&self, (a, i): (usize, usize), (b, j): (usize, usize)) -> Vec<Cost> {
        let mut all = vec![(0.0, 0.0)];
        for e in &self.drawn.edges {
            if (e.source, e.target) == (a, b) {
                all = sums(&all, self.drawn.cell(e, i, j));
            } else if (e.source, e.target) == (b, a) {
                all = sums(&all, self.drawn.cell(e, j, i));
            }
        }
        all
    }

    /// Returns the possible costs of an operator in choice i and of its edges to `others`.
    fn alone(&self, (o, i): (usize, usize), others: &[(usize, usize)]) -> Vec<Cost> {
        let own = vec![self.drawn.choices(o)[i]];
        let join =
            |all: Vec<Cost>, other: &(usize, usize)| sums(&all, &self.between((o, i), *other));
        others.iter().fold(own, join)
    }

    /// Returns the true frontier.
    pub fn frontier(&self) -> Vec<Cost> {
        let mut best: Vec<f64> = Vec::new();
        self.over_hubs(&mut Vec::new(), &[(0.0, 0.0)], &mut best);
        let mut frontier: Vec<Cost> = Vec::new();
        for (v, &time) in best.iter().enumerate() {
            if time < frontier.last().map_or(f64::INFINITY, |p| p.1) {
                frontier.push((v as f64, time));
            }
        }
        frontier
    }

    fn over_hubs(&self, taken: &mut Vec<(usize, usize)>, so_far: &[Cost], best: &mut Vec<f64>) {
        let Some(&hub) = self.hubs.get(taken.len()) else {
            for row in self.over_chain(taken, so_far) {
                lower(best, &row, &[(0.0, 0.0)]);
            }
            return;
        };
        for i in 0..self.drawn.choices(hub).len() {
            let with = sums(so_far, &self.alone((hub, i), taken));
            taken.push((hub, i));
            self.over_hubs(taken, &with, best);
            taken.pop();
        }
    }

    /// Returns f after the last operator of the chain, for one assignment of the hubs.
    fn over_chain(&self, hubs: &[(usize, usize)], start: &[Cost]) -> Vec<Vec<f64>> {
        let mut f: Vec<Vec<f64>> = Vec::new();
        for (at, &o) in self.chain.iter().enumerate() {
            let before = std::mem::take(&mut f);
            for i in 0..self.drawn.choices(o).len() {
                let own = self.alone((o, i), hubs);
                let mut row = Vec::new();
                if at == 0 {
                    lower(&mut row, &[0.0], &sums(start, &own));
                }
                for (j, previous) in before.iter().enumerate() {
                    let between = self.between((self.chain[at - 1], j), (o, i));
                    lower(&mut row, previous, &sums(&own, &between));
                }
                f.push(row);
            }
        }
        f
    }
}

/// Sets `row[v + m] = min(row[v + m], from[v] + t)` for every step (m, t).
fn lower(row: &mut Vec<f64>, from: &[f64], steps: &[Cost]) {
    for &(memory, time) in steps {
        let shift = memory as usize;
        if row.len() < from.len() + shift {
            row.resize(from.len() + shift, f64::INFINITY);
        }
        for (to, &earlier) in row[shift..].iter_mut().zip(from) {
            *to = to.min(earlier + time);
        }
    }
}
