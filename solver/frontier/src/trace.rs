//! How a tuple came about, so that it can be unrolled into a strategy (TensorOpt 3.2, Unroll).

const KIND: u32 = 0b11 << 30;
const OPERATOR: u32 = 0b01 << 30;
const EDGE: u32 = 0b10 << 30;

/// A node of the derivation: nothing, one choice, or two derivations together.
#[derive(Debug, Clone, Copy)]
struct Node {
    left: u32,
    right: u32,
}

/// Names a derivation in an [`Arena`]. `EMPTY` chose nothing.
pub type Trace = u32;
pub const EMPTY: Trace = 0;

/// All derivations of one solve; only tuples that survive a reduce are recorded.
#[derive(Debug)]
pub struct Arena {
    nodes: Vec<Node>,
}

impl Default for Arena {
    fn default() -> Self {
        Self {
            nodes: vec![Node { left: 0, right: 0 }],
        }
    }
}

impl Arena {
    fn push(&mut self, left: u32, right: u32) -> Trace {
        self.nodes.push(Node { left, right });
        (self.nodes.len() - 1) as Trace
    }

    pub fn operator(&mut self, operator: usize, choice: usize) -> Trace {
        self.push(OPERATOR | operator as u32, choice as u32)
    }

    pub fn edge(&mut self, edge: usize, alternative: usize) -> Trace {
        self.push(EDGE | edge as u32, alternative as u32)
    }

    pub fn join(&mut self, a: Trace, b: Trace) -> Trace {
        match (a, b) {
            (EMPTY, x) | (x, EMPTY) => x,
            _ => self.push(a, b),
        }
    }

    /// How many derivations are held; the arena's limit is 2^30.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Write the choices of a derivation into `choices` and `edge_choices`.
    pub fn unroll(&self, trace: Trace, choices: &mut [u32], edge_choices: &mut [u32]) {
        let mut stack = vec![trace];
        while let Some(at) = stack.pop() {
            if at == EMPTY {
                continue;
            }
            let node = self.nodes[at as usize];
            match node.left & KIND {
                OPERATOR => choices[(node.left & !KIND) as usize] = node.right,
                EDGE => edge_choices[(node.left & !KIND) as usize] = node.right,
                _ => stack.extend([node.left, node.right]),
            }
        }
    }
}
