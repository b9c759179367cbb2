//! The errors of a solve.

use std::fmt;

/// Why a solve returned no complete solution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SolveError {
    /// The problem is invalid; the text names the field.
    Invalid(String),
    /// The listener cancelled the solve.
    Cancelled,
    /// The time limit passed.
    OutOfTime,
    /// The method needs more work than its budget allows; the text names the limit.
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
