//! Derivations of tuples, so that they can be unrolled into strategies (TensorOpt 3.2, Unroll).

use crate::model::ids::{ChoiceId, EdgeId, Id, IdVec, OperatorId};

const KIND: u32 = 0b11 << 30;
const OPERATOR: u32 = 0b01 << 30;
const EDGE: u32 = 0b10 << 30;

/// A node of a derivation: empty, one choice, or two joined derivations.
#[derive(Debug, Clone, Copy)]
struct Node {
    left: u32,
    right: u32,
}

/// Names a derivation in an [`Arena`].
pub type Trace = u32;
/// The derivation without any choice.
pub const EMPTY: Trace = 0;

/// All derivations of one solve, at most 2^30; only tuples that survive a `reduce` are recorded.
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

    /// Records that an operator takes a choice.
    pub fn operator(&mut self, operator: OperatorId, choice: ChoiceId) -> Trace {
        self.push(OPERATOR | operator.index() as u32, choice.into())
    }

    /// Records that an edge takes an alternative.
    pub fn edge(&mut self, edge: EdgeId, alternative: u32) -> Trace {
        self.push(EDGE | edge.index() as u32, alternative)
    }

    /// Records the join of two derivations.
    pub fn join(&mut self, a: Trace, b: Trace) -> Trace {
        match (a, b) {
            (EMPTY, x) | (x, EMPTY) => x,
            _ => self.push(a, b),
        }
    }

    /// Writes the choices of a derivation into `choices` and `edge_choices`.
    pub fn unroll(
        &self,
        trace: Trace,
        choices: &mut IdVec<OperatorId, ChoiceId>,
        edge_choices: &mut IdVec<EdgeId, u32>,
    ) {
        let mut stack = vec![trace];
        while let Some(at) = stack.pop() {
            if at == EMPTY {
                continue;
            }
            let node = self.nodes[at as usize];
            let named = (node.left & !KIND) as usize;
            match node.left & KIND {
                OPERATOR => choices[OperatorId::new(named)] = node.right.into(),
                EDGE => edge_choices[EdgeId::new(named)] = node.right,
                _ => stack.extend([node.left, node.right]),
            }
        }
    }
}
