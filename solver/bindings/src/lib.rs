//! The boundary to Python: extracts arguments, releases the GIL, calls the solver and converts the
//! result. Nothing is computed here.

mod attended;
mod cells;
mod error;
mod refill;
mod replay;

use std::collections::HashMap;
use std::time::Duration;

use ::frontier as core;
use ::frontier::rescheduling::{self, Change};
use ::frontier::{Method, Settings, Solution as Solved, SolveError, Status, Watch};
use numpy::ndarray::{Array2, Array3};
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArray3, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use attended::attended;
use error::to_python;
use replay::in_rows;

/// A problem under construction.
#[pyclass(module = "shardwise._core")]
#[derive(Default)]
struct Problem {
    inner: core::Problem,
}

#[pymethods]
impl Problem {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn add_costs(
        &mut self,
        memory_bytes: PyReadonlyArray1<f64>,
        time_s: PyReadonlyArray1<f64>,
    ) -> PyResult<usize> {
        let (memory, time) = (memory_bytes.as_array().to_vec(), time_s.as_array().to_vec());
        number(self.inner.add_costs(memory, time))
    }

    fn add_operator(&mut self, name: String, costs: usize) -> PyResult<usize> {
        number(self.inner.add_operator(name, costs.into()))
    }

    fn add_table(
        &mut self,
        memory_bytes: PyReadonlyArray3<f64>,
        time_s: PyReadonlyArray3<f64>,
        count: PyReadonlyArray2<u8>,
    ) -> PyResult<usize> {
        let (memory, time, count) = (memory_bytes.as_array(), time_s.as_array(), count.as_array());
        let (rows, columns) = count.dim();
        let (_, _, most) = memory.dim();
        if memory.dim() != time.dim() || memory.dim() != (rows, columns, most) {
            return Err(PyValueError::new_err(
                "memory_bytes and time_s must have the shape (R, C, A), count the shape (R, C)",
            ));
        }
        if count.iter().any(|n| *n as usize > most) {
            return Err(PyValueError::new_err(
                "count must not exceed the number of alternatives",
            ));
        }
        let counted = |from: numpy::ndarray::ArrayView3<f64>| -> Vec<f64> {
            let cells = count.indexed_iter();
            cells
                .flat_map(|((r, c), &n)| (0..n as usize).map(move |a| from[(r, c, a)]))
                .collect()
        };
        let (memory, time) = (counted(memory), counted(time));
        let counts = count.iter().map(|n| u32::from(*n));
        let table = core::Table::ragged(rows, columns, counts, memory, time).map_err(to_python)?;
        number(self.inner.add_table(table))
    }

    fn add_least_table(
        &mut self,
        time_s: PyReadonlyArray3<f64>,
        count: PyReadonlyArray2<u8>,
    ) -> PyResult<usize> {
        let (time, count) = (time_s.as_array(), count.as_array());
        let (rows, columns) = count.dim();
        if (time.dim().0, time.dim().1) != (rows, columns)
            || count.iter().any(|n| *n as usize > time.dim().2)
        {
            return Err(PyValueError::new_err(
                "time_s must have the shape (R, C, A), count the shape (R, C), each at most A",
            ));
        }
        let counts = count.iter().map(|n| *n as usize);
        let most = time.dim().2;
        let time = time.as_standard_layout();
        let time = time.as_slice().unwrap_or_default();
        let table = core::Table::of_least(rows, columns, counts, time, most);
        number(self.inner.add_table(table.map_err(to_python)?))
    }

    fn add_ragged_table(
        &mut self,
        memory_bytes: PyReadonlyArray1<f64>,
        time_s: PyReadonlyArray1<f64>,
        count: PyReadonlyArray2<u32>,
    ) -> PyResult<usize> {
        let count = count.as_array();
        let (rows, columns) = count.dim();
        let table = core::Table::ragged(
            rows,
            columns,
            count.iter().copied(),
            memory_bytes.as_array().to_vec(),
            time_s.as_array().to_vec(),
        );
        number(self.inner.add_table(table.map_err(to_python)?))
    }

    fn add_edge(
        &mut self,
        source: usize,
        target: usize,
        table: usize,
        rows: PyReadonlyArray1<u32>,
        columns: PyReadonlyArray1<u32>,
    ) -> PyResult<usize> {
        let (rows, columns) = (rows.as_array().to_vec(), columns.as_array().to_vec());
        let (source, target) = (source.into(), target.into());
        number(
            self.inner
                .add_edge(source, target, table.into(), rows, columns),
        )
    }
}

/// The result of `solve`; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
struct Solution {
    solved: Solved,
}

#[pymethods]
impl Solution {
    #[getter]
    fn memory_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        let all: Vec<f64> = self.solved.points.iter().map(|p| p.memory).collect();
        all.into_pyarray(py)
    }

    #[getter]
    fn time_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        let all: Vec<f64> = self.solved.points.iter().map(|p| p.time).collect();
        all.into_pyarray(py)
    }

    #[getter]
    fn choices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let rows = self.solved.points.iter().map(|p| p.choices.iter());
        stacked(py, rows.map(|row| row.map(|choice| u32::from(*choice))))
    }

    #[getter]
    fn edge_choices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let rows = self.solved.points.iter().map(|p| p.edge_choices.iter());
        stacked(py, rows.map(Iterator::copied))
    }

    #[getter]
    fn exact(&self) -> bool {
        self.solved.status == Status::Exact
    }

    #[getter]
    fn epsilon(&self) -> f64 {
        self.solved.epsilon
    }

    #[getter]
    fn time_lower_bound_s(&self) -> Option<f64> {
        self.solved.time_lower_bound
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.solved.status.name()
    }

    #[getter]
    fn seconds(&self) -> f64 {
        self.solved.seconds
    }

    #[getter]
    fn method(&self) -> &'static str {
        self.solved.method
    }

    #[getter]
    fn statistics(&self) -> HashMap<&'static str, f64> {
        HashMap::from([
            ("candidates", self.solved.candidates as f64),
            ("work", self.solved.work as f64),
            ("optima", self.solved.optima as f64),
            ("kept_choices", self.solved.kept_choices),
        ])
    }
}

/// Returns the id of an added part as a plain number for Python.
fn number<I: Into<usize>>(added: Result<I, SolveError>) -> PyResult<usize> {
    added.map(I::into).map_err(to_python)
}

/// Returns rows of equal length as one array.
fn stacked<'py>(
    py: Python<'py>,
    rows: impl ExactSizeIterator<Item = impl ExactSizeIterator<Item = u32>>,
) -> PyResult<Bound<'py, PyArray2<u32>>> {
    let count = rows.len();
    let mut width = 0;
    let mut flat = Vec::new();
    for row in rows {
        width = row.len();
        flat.extend(row);
    }
    Array2::from_shape_vec((count, width), flat)
        .map(|array| array.into_pyarray(py))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pyfunction]
#[pyo3(signature = (problem, *, method="auto", epsilon=0.0, memory_target_bytes=None, time_limit_s=None, memory_limit_bytes=None, work_limit=None, threads=0, progress=None))]
#[allow(clippy::too_many_arguments)] // one per keyword of the Python function
fn solve(
    py: Python<'_>,
    problem: PyRef<'_, Problem>,
    method: &str,
    epsilon: f64,
    memory_target_bytes: Option<f64>,
    time_limit_s: Option<f64>,
    memory_limit_bytes: Option<u64>,
    work_limit: Option<u64>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Solution> {
    let method = Method::parse(method).ok_or_else(|| {
        PyValueError::new_err(format!(
            "unknown method {method:?} (expected {})",
            Method::NAMES.join(", ")
        ))
    })?;
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        return Err(PyValueError::new_err(
            "epsilon must be finite and not negative",
        ));
    }
    if memory_target_bytes.is_some_and(|target| target.is_nan() || target < 0.0) {
        return Err(PyValueError::new_err(
            "memory_target_bytes must not be negative",
        ));
    }
    let time_limit = duration(time_limit_s)?;
    let settings = Settings {
        method,
        epsilon,
        memory_target: memory_target_bytes,
        time_limit,
        memory_limit: memory_limit_bytes,
        work_limit,
    };
    let inner = &problem.inner;
    let solved = attended(py, threads, progress.as_ref(), |listener| {
        core::solve(inner, settings, Some(listener))
    })?;
    Ok(Solution {
        solved: solved.map_err(to_python)?,
    })
}

/// Returns the cheapest strategy; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (problem, *, price=0.0, time_limit_s=None, memory_limit_bytes=None, threads=0, progress=None))]
#[allow(clippy::type_complexity)] // the four values of the Python function
fn least_time<'py>(
    py: Python<'py>,
    problem: PyRef<'_, Problem>,
    price: f64,
    time_limit_s: Option<f64>,
    memory_limit_bytes: Option<u64>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(
    f64,
    (f64, f64),
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u32>>,
)> {
    let time_limit = duration(time_limit_s)?;
    let inner = &problem.inner;
    let least = attended(py, threads, progress.as_ref(), |listener| {
        let watch = Watch::new(time_limit, Some(listener)).within(memory_limit_bytes);
        core::least_time(inner, price, &watch)
    })?
    .map_err(to_python)?;
    let choices: Vec<u32> = least.point.choices.iter().map(|c| u32::from(*c)).collect();
    let edges: Vec<u32> = least.point.edge_choices.iter().copied().collect();
    Ok((
        least.bound,
        (least.point.memory, least.point.time),
        choices.into_pyarray(py),
        edges.into_pyarray(py),
    ))
}

/// Returns the equilibrium of a game; see `_core.pyi`.
#[pyfunction]
#[allow(clippy::type_complexity)] // the four values of the Python function
fn equilibrium<'py>(
    py: Python<'py>,
    times: PyReadonlyArray2<f64>,
    over: PyReadonlyArray2<f64>,
    max_price: f64,
) -> PyResult<(
    f64,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
)> {
    let rows = |array: &PyReadonlyArray2<f64>| -> Vec<Vec<f64>> {
        let rows = array.as_array();
        rows.rows().into_iter().map(|row| row.to_vec()).collect()
    };
    let (times, over) = (rows(&times), rows(&over));
    let solved = py
        .detach(|| core::equilibrium(&times, &over, max_price))
        .map_err(to_python)?;
    Ok((
        solved.value,
        solved.paths.into_pyarray(py),
        solved.prices.into_pyarray(py),
        solved.strategies.into_pyarray(py),
    ))
}

fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds
        .map(Duration::try_from_secs_f64)
        .transpose()
        .map_err(|_| PyValueError::new_err("time_limit_s must be finite and not negative"))
}

#[pyfunction]
#[allow(clippy::type_complexity)] // the two arrays of the Python function
fn shortest_paths<'py>(
    py: Python<'py>,
    node_count: usize,
    sources: PyReadonlyArray1<u32>,
    targets: PyReadonlyArray1<u32>,
    weights: PyReadonlyArray1<f64>,
) -> PyResult<(Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<i32>>)> {
    let (sources, targets, weights) = (sources.as_array(), targets.as_array(), weights.as_array());
    if sources.len() != targets.len() || sources.len() != weights.len() {
        return Err(PyValueError::new_err(
            "sources, targets and weights must have the same length",
        ));
    }
    let arcs: Vec<rescheduling::Arc> = sources
        .iter()
        .zip(&targets)
        .zip(&weights)
        .map(|((&source, &target), &weight)| rescheduling::Arc {
            source,
            target,
            weight,
        })
        .collect();
    let paths = attended(py, 0, None, |listener| {
        rescheduling::shortest_paths(node_count, &arcs, &Watch::new(None, Some(listener)))
    })?
    .map_err(to_python)?;
    let shape = (node_count, node_count);
    let shaped = |error: numpy::ndarray::ShapeError| PyValueError::new_err(error.to_string());
    let distance = Array2::from_shape_vec(shape, paths.distance).map_err(shaped)?;
    let last_arc = Array2::from_shape_vec(shape, paths.last_arc).map_err(shaped)?;
    Ok((distance.into_pyarray(py), last_arc.into_pyarray(py)))
}

/// Returns the weighted time of every alternative of an edge; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (kept, once, there, back, *, column_flags, row_flags, there_again, back_again))]
#[allow(clippy::too_many_arguments)] // one per argument of the Python function
fn weighted_cells<'py>(
    py: Python<'py>,
    kept: PyReadonlyArray3<i8>,
    once: PyReadonlyArray2<f64>,
    there: PyReadonlyArray2<f64>,
    back: PyReadonlyArray2<f64>,
    column_flags: PyReadonlyArray1<bool>,
    row_flags: PyReadonlyArray1<bool>,
    there_again: PyReadonlyArray2<f64>,
    back_again: PyReadonlyArray2<f64>,
) -> PyResult<Bound<'py, PyArray3<f64>>> {
    let shape = kept.as_array().dim();
    let (there_again, back_again) = (
        in_rows(there_again.as_array().to_slice())?,
        in_rows(back_again.as_array().to_slice())?,
    );
    let halves = |weights: &'static str, of: &[f64]| -> PyResult<usize> {
        (of.len() % 2 == 0)
            .then_some(of.len() / 2)
            .ok_or_else(|| PyValueError::new_err(format!("{weights} must have two rows")))
    };
    let table = rescheduling::Kept {
        rows: shape.0,
        columns: shape.1,
        kept: in_rows(kept.as_array().to_slice())?,
        once: in_rows(once.as_array().to_slice())?,
        there: in_rows(there.as_array().to_slice())?,
        back: in_rows(back.as_array().to_slice())?,
    };
    let again = rescheduling::Again {
        column_flags: column_flags.as_slice()?,
        row_flags: row_flags.as_slice()?,
        there: there_again
            .split_at(halves("there_again", there_again)?)
            .into(),
        back: back_again
            .split_at(halves("back_again", back_again)?)
            .into(),
    };
    let costs = rescheduling::weighted_cells(&table, &again).map_err(to_python)?;
    Array3::from_shape_vec(shape, costs)
        .map(|array| array.into_pyarray(py))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the changes between layouts as arrays; see `_core.pyi`.
#[pyfunction]
#[allow(clippy::type_complexity)] // the five arrays of the Python function
fn layout_changes<'py>(
    py: Python<'py>,
    layouts: PyReadonlyArray2<i8>,
) -> PyResult<(
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i8>>,
    Bound<'py, PyArray1<i8>>,
    Bound<'py, PyArray1<i64>>,
)> {
    let layouts = layouts.as_array();
    let axes = layouts.ncols();
    let rows: Vec<i8> = layouts.iter().copied().collect();
    let changes = py
        .detach(|| rescheduling::layout_changes(&rows, axes))
        .map_err(to_python)?;
    let numbers =
        |of: fn(&Change) -> u32| -> Vec<i64> { changes.iter().map(|c| i64::from(of(c))).collect() };
    let before: Vec<i8> = changes.iter().map(|c| c.before).collect();
    let after: Vec<i8> = changes.iter().map(|c| c.after).collect();
    Ok((
        numbers(|c| c.source).into_pyarray(py),
        numbers(|c| c.target).into_pyarray(py),
        before.into_pyarray(py),
        after.into_pyarray(py),
        numbers(|c| c.axes).into_pyarray(py),
    ))
}

/// Returns the solver's version, which is part of the key of every cached answer.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Cancelled", m.py().get_type::<error::Cancelled>())?;
    m.add_class::<Problem>()?;
    m.add_class::<Solution>()?;
    m.add_class::<cells::Cells>()?;
    m.add_class::<replay::Program>()?;
    m.add_class::<replay::Replays>()?;
    m.add_class::<replay::Timeline>()?;
    m.add_function(wrap_pyfunction!(solve, m)?)?;
    m.add_function(wrap_pyfunction!(equilibrium, m)?)?;
    m.add_function(wrap_pyfunction!(least_time, m)?)?;
    m.add_function(wrap_pyfunction!(shortest_paths, m)?)?;
    m.add_function(wrap_pyfunction!(layout_changes, m)?)?;
    m.add_function(wrap_pyfunction!(weighted_cells, m)?)?;
    m.add_function(wrap_pyfunction!(cells::replay_chosen, m)?)?;
    m.add_function(wrap_pyfunction!(refill::refilled, m)?)?;
    m.add_function(wrap_pyfunction!(version, m)?)?;
    Ok(())
}
