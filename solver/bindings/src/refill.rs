//! The cheapest alternatives of edges at the boundary to Python.

use ::frontier::refill::{refill, Cheapest, Owners};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::to_python;
use crate::replay::in_rows;

/// Rows, columns, and per cell the cheapest alternative and its costs.
type Table<'py> = (
    PyReadonlyArray1<'py, u32>,
    PyReadonlyArray1<'py, u32>,
    PyReadonlyArray2<'py, u32>,
    PyReadonlyArray2<'py, f64>,
);

/// Returns the cheapest alternatives, and what strategies cost; see `_core.pyi`.
#[pyfunction]
#[allow(clippy::type_complexity)] // the two arrays of the Python function
pub fn refilled<'py>(
    py: Python<'py>,
    choices: PyReadonlyArray2<u32>,
    constant: f64,
    groups: (Vec<PyReadonlyArray1<f64>>, PyReadonlyArray1<i64>),
    edges: (Vec<Table>, PyReadonlyArray2<i64>),
) -> PyResult<(Bound<'py, PyArray2<u32>>, Bound<'py, PyArray1<f64>>)> {
    let unknown = || PyValueError::new_err("there is no table of a group's or an edge's number");
    let costs: PyResult<Vec<&[f64]>> = groups.0.iter().map(|of| Ok(of.as_slice()?)).collect();
    let costs = costs?;
    let tables: PyResult<Vec<Cheapest>> = edges
        .0
        .iter()
        .map(|(rows, columns, which, least)| {
            Ok(Cheapest {
                rows: rows.as_slice()?,
                columns: columns.as_slice()?,
                width: which.as_array().ncols(),
                which: in_rows(which.as_array().to_slice())?,
                least: in_rows(least.as_array().to_slice())?,
            })
        })
        .collect();
    let tables = tables?;
    let of_groups: Option<Vec<&[f64]>> = groups
        .1
        .as_array()
        .iter()
        .map(|number| costs.get(usize::try_from(*number).ok()?).copied())
        .collect();
    let ends = edges.1.as_array();
    if ends.ncols() != 3 {
        return Err(PyValueError::new_err(
            "edges must have the shape (N, 3): source, target, table",
        ));
    }
    let of_edges: Option<Vec<(usize, usize, Cheapest)>> = ends
        .rows()
        .into_iter()
        .map(|end| {
            let number = |at: usize| usize::try_from(end[at]).ok();
            Some((number(0)?, number(1)?, *tables.get(number(2)?)?))
        })
        .collect();
    let owners = Owners {
        constant,
        groups: of_groups.ok_or_else(unknown)?,
        edges: of_edges.ok_or_else(unknown)?,
    };
    let shape = (choices.as_array().nrows(), owners.edges.len());
    let choices = in_rows(choices.as_array().to_slice())?;
    let (alternatives, totals) = py.detach(|| refill(choices, &owners)).map_err(to_python)?;
    let alternatives = Array2::from_shape_vec(shape, alternatives)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((alternatives.into_pyarray(py), totals.into_pyarray(py)))
}
