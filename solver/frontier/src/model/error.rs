//! What can go wrong, as data.

use std::fmt;

/// Why a solve gave no full answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SolveError {
    /// The problem itself is refused; the text names the field.
    Invalid(String),
    /// The listener asked to stop.
    Cancelled,
    /// The time limit passed.
    OutOfTime,
    /// The method would have to do more work than it may; the text says which bound was met.
    OverBudget(String),
}

impl fmt::Display for SolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => write!(f, "{text}"),
            Self::Cancelled => write!(f, "cancelled"),
            Self::OutOfTime => write!(f, "the time limit passed before a first answer"),
            Self::OverBudget(text) => write!(f, "over budget: {text}"),
        }
    }
}

impl std::error::Error for SolveError {}
