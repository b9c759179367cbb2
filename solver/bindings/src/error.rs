//! Solver errors as Python exceptions.

use frontier::error::SolveError;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::PyErr;

/// `ValueError` for bad input, `TimeoutError` for time, `RuntimeError` for the rest.
pub fn to_python(error: SolveError) -> PyErr {
    let text = error.to_string();
    match error {
        SolveError::Invalid(_) => PyValueError::new_err(text),
        SolveError::OutOfTime => PyTimeoutError::new_err(text),
        SolveError::Cancelled | SolveError::OverBudget(_) => PyRuntimeError::new_err(text),
    }
}
