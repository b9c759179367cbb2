//! Solver errors as Python exceptions.

use frontier::SolveError;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::PyErr;

pyo3::create_exception!(
    _core,
    Cancelled,
    PyRuntimeError,
    "The listener did not want the answer any more, and there was none yet."
);

/// `ValueError` for bad input, `TimeoutError` for time, `Cancelled`, `RuntimeError` for the rest.
pub fn to_python(error: SolveError) -> PyErr {
    let text = error.to_string();
    match error {
        SolveError::Invalid(_) => PyValueError::new_err(text),
        SolveError::OutOfTime => PyTimeoutError::new_err(text),
        SolveError::Cancelled => Cancelled::new_err(text),
        SolveError::OverBudget(_) => PyRuntimeError::new_err(text),
    }
}
