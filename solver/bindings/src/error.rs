//! Solver errors as Python exceptions.

use frontier::SolveError;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::PyErr;

pyo3::create_exception!(
    _core,
    Cancelled,
    PyRuntimeError,
    "The listener cancelled the solve before there was an answer."
);

/// Returns a `ValueError` for invalid input, a `TimeoutError` for the time limit, `Cancelled`, and
/// a `RuntimeError` for an exceeded budget.
pub fn to_python(error: SolveError) -> PyErr {
    let text = error.to_string();
    match error {
        SolveError::Invalid(_) => PyValueError::new_err(text),
        SolveError::OutOfTime => PyTimeoutError::new_err(text),
        SolveError::Cancelled => Cancelled::new_err(text),
        SolveError::OverBudget(_) => PyRuntimeError::new_err(text),
    }
}
