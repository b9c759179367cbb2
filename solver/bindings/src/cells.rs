//! Values of strategies at the boundary to Python: taken from tables, and replayed from there.

use ::frontier::replay::{replay_all, Batch, Cells as Indexed, Chosen, Picks, Settings};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_python;
use crate::replay::{in_rows, urgency_of, Program, Replays};

/// Where values are; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
pub struct Cells {
    inner: Indexed,
    /// The numbers of its tables.
    tables: Vec<i64>,
}

/// The cells of one table: its number, then item, owner and column of each.
type Picked<'py> = (
    i64,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
);

/// A table and the rows that owners chose.
type Taken<'py> = (PyReadonlyArray2<'py, f64>, PyReadonlyArray2<'py, i64>);

#[pymethods]
impl Cells {
    #[new]
    fn new(constants: PyReadonlyArray1<f64>, picks: Vec<Picked>) -> PyResult<Self> {
        let of_tables: PyResult<Vec<Picks>> = picks
            .iter()
            .map(|(_, items, owners, columns)| {
                Ok(Picks {
                    items: items.as_slice()?,
                    owners: owners.as_slice()?,
                    columns: columns.as_slice()?,
                })
            })
            .collect();
        let constants = constants.as_array().iter().copied().collect();
        Ok(Self {
            inner: Indexed::new(constants, &of_tables?).map_err(to_python)?,
            tables: picks.iter().map(|(number, ..)| *number).collect(),
        })
    }

    fn fill<'py>(
        &self,
        py: Python<'py>,
        points: usize,
        tables: &Bound<'py, PyDict>,
        rows: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let taken = self.taken(tables, rows)?;
        let chosen = chosen(&taken)?;
        let filled = py.detach(|| self.inner.fill(points, &chosen));
        let shape = (points, self.inner.items());
        Array2::from_shape_vec(shape, filled.map_err(to_python)?)
            .map(|array| array.into_pyarray(py))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

impl Cells {
    /// Returns its tables with the rows that were chosen in them.
    fn taken<'py>(
        &self,
        tables: &Bound<'py, PyDict>,
        rows: &Bound<'py, PyDict>,
    ) -> PyResult<Vec<Taken<'py>>> {
        let find = |of: &Bound<'py, PyDict>, number: i64| {
            let found = of.get_item(number)?;
            found.ok_or_else(|| PyKeyError::new_err(format!("there is no table {number}")))
        };
        let numbers = self.tables.iter();
        numbers
            .map(|&n| Ok((find(tables, n)?.extract()?, find(rows, n)?.extract()?)))
            .collect()
    }
}

fn chosen<'a>(taken: &'a [Taken]) -> PyResult<Vec<Chosen<'a>>> {
    taken
        .iter()
        .map(|(values, rows)| {
            Ok(Chosen {
                values: in_rows(values.as_array().to_slice())?,
                width: values.as_array().ncols(),
                rows: in_rows(rows.as_array().to_slice())?,
                owners: rows.as_array().ncols(),
            })
        })
        .collect()
}

/// Replays the strategies whose rows are chosen; see `_core.pyi`.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per parameter of the Python function
#[pyo3(signature = (program, cells, points, tables, rows, *, block_bytes=512, urgency="rank"))]
pub fn replay_chosen<'py>(
    py: Python<'py>,
    program: &Program,
    cells: (PyRef<'py, Cells>, PyRef<'py, Cells>, PyRef<'py, Cells>),
    points: usize,
    tables: &Bound<'py, PyDict>,
    rows: &Bound<'py, PyDict>,
    block_bytes: u64,
    urgency: &str,
) -> PyResult<Replays> {
    let settings = Settings {
        block_bytes,
        limits_bytes: None,
        urgency: urgency_of(urgency)?,
    };
    let cells = [&*cells.0, &*cells.1, &*cells.2];
    let [durations, sizes, flags] = cells.map(|of| &of.inner);
    let taken = [
        cells[0].taken(tables, rows)?,
        cells[1].taken(tables, rows)?,
        cells[2].taken(tables, rows)?,
    ];
    let of = [chosen(&taken[0])?, chosen(&taken[1])?, chosen(&taken[2])?];
    let replayed = py.detach(|| {
        if points == 0 {
            return Ok(Vec::new());
        }
        let batch = Batch {
            durations_s: durations.sheet(points, &of[0])?,
            sizes_bytes: sizes.sheet(points, &of[1])?,
            flags: flags.sheet(points, &of[2])?,
        };
        replay_all(program.checked(), &batch, &settings)
    });
    Ok(program.replays(replayed.map_err(to_python)?))
}
