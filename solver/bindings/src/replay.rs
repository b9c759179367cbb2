//! Replay at the boundary to Python: arrays in, arrays out.

use ::frontier::replay::{
    Between, LongestPaths, Parts, Path, Program as Checked, Replayed, Replayer, Span, Strategy, Use,
};
use numpy::ndarray::{Array2, ArrayView1, Axis};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::error::to_python;

/// A step program; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
pub struct Program {
    inner: Checked,
}

/// The results of replays; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
pub struct Replays {
    replayed: Vec<Replayed>,
}

/// One schedule; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
pub struct Timeline {
    inner: ::frontier::replay::Timeline,
}

#[pymethods]
impl Program {
    #[new]
    #[allow(clippy::too_many_arguments)] // one per keyword of the Python class
    #[pyo3(signature = (*, streams, dependencies, makers, lasting, uses, given_flags, both, marks))]
    fn new(
        streams: PyReadonlyArray1<u8>,
        dependencies: PyReadonlyArray2<u32>,
        makers: PyReadonlyArray1<i32>,
        lasting: PyReadonlyArray1<bool>,
        uses: PyReadonlyArray2<i32>,
        given_flags: usize,
        both: PyReadonlyArray2<u32>,
        marks: PyReadonlyArray1<u32>,
    ) -> PyResult<Self> {
        let uses = triples(&uses)?;
        let parts = Parts {
            streams: streams.as_array().to_vec(),
            dependencies: pairs(&dependencies)?,
            makers: makers.as_array().to_vec(),
            lasting: lasting.as_array().to_vec(),
            uses,
            given_flags,
            both: pairs(&both)?,
            marks: marks.as_array().to_vec(),
        };
        let inner = Checked::new(parts).map_err(to_python)?;
        Ok(Self { inner })
    }

    #[getter]
    fn tasks(&self) -> usize {
        self.inner.tasks()
    }

    #[getter]
    fn buffers(&self) -> usize {
        self.inner.buffers()
    }

    #[getter]
    fn flags(&self) -> usize {
        self.inner.flags()
    }

    #[pyo3(signature = (durations_s, sizes_bytes, flags, *, block_bytes=512))]
    fn replay(
        &self,
        py: Python<'_>,
        durations_s: PyReadonlyArray2<f64>,
        sizes_bytes: PyReadonlyArray2<f64>,
        flags: PyReadonlyArray2<bool>,
        block_bytes: u64,
    ) -> PyResult<Replays> {
        let (durations, sizes) = (durations_s.as_array(), sizes_bytes.as_array());
        let flags = flags.as_array();
        let points = durations.nrows();
        if sizes.nrows() != points || flags.nrows() != points {
            return Err(PyValueError::new_err(
                "durations_s, sizes_bytes and flags must have one row per strategy",
            ));
        }
        let replayed: Result<Vec<Replayed>, _> = py.detach(|| {
            (0..points)
                .into_par_iter()
                .map_init(
                    || Replayer::new(&self.inner, block_bytes),
                    |replayer, point| {
                        let rows = (
                            row(durations.index_axis(Axis(0), point)),
                            row(sizes.index_axis(Axis(0), point)),
                            row(flags.index_axis(Axis(0), point)),
                        );
                        match replayer {
                            Ok(replayer) => replayer.replay(Strategy {
                                durations_s: &rows.0,
                                sizes_bytes: &rows.1,
                                flags: &rows.2,
                            }),
                            Err(error) => Err(error.clone()),
                        }
                    },
                )
                .collect()
        });
        let replayed = replayed.map_err(to_python)?;
        Ok(Replays { replayed })
    }

    #[allow(clippy::type_complexity)] // the two arrays of the Python method
    fn between<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>) {
        let Between { after, before } = Between::of(&self.inner);
        let numbers = |nodes: &[usize]| nodes.iter().map(|n| *n as i64).collect::<Vec<i64>>();
        let (after, before) = (numbers(after.as_slice()), numbers(before.as_slice()));
        (after.into_pyarray(py), before.into_pyarray(py))
    }

    #[pyo3(signature = (durations_s, *, between=None))]
    #[allow(clippy::type_complexity)] // the two arrays of the Python method
    fn longest_paths<'py>(
        &self,
        py: Python<'py>,
        durations_s: PyReadonlyArray2<f64>,
        between: Option<(u32, u32)>,
    ) -> PyResult<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray2<bool>>)> {
        let durations = durations_s.as_array();
        let points = durations.nrows();
        let span = between.map_or(Span::Step, |(begin, end)| {
            Span::Between(begin.into(), end.into())
        });
        let found: Result<Vec<Path>, _> = py.detach(|| {
            let paths = LongestPaths::new(&self.inner);
            (0..points)
                .into_par_iter()
                .map(|point| paths.longest(&row(durations.index_axis(Axis(0), point)), span))
                .collect()
        });
        let found = found.map_err(to_python)?;
        let lengths: Vec<f64> = found.iter().map(|path| path.length_s).collect();
        let members = found.into_iter().flat_map(|path| path.members).collect();
        let members = Array2::from_shape_vec((points, self.inner.tasks()), members)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((lengths.into_pyarray(py), members.into_pyarray(py)))
    }

    #[pyo3(signature = (durations_s, sizes_bytes, flags, *, block_bytes=512))]
    fn trace(
        &self,
        durations_s: PyReadonlyArray1<f64>,
        sizes_bytes: PyReadonlyArray1<f64>,
        flags: PyReadonlyArray1<bool>,
        block_bytes: u64,
    ) -> PyResult<(Replays, Timeline)> {
        let rows = (
            row(durations_s.as_array()),
            row(sizes_bytes.as_array()),
            row(flags.as_array()),
        );
        let strategy = Strategy {
            durations_s: &rows.0,
            sizes_bytes: &rows.1,
            flags: &rows.2,
        };
        let traced = Replayer::new(&self.inner, block_bytes)
            .and_then(|mut replayer| replayer.trace(strategy));
        let (replayed, inner) = traced.map_err(to_python)?;
        let replayed = vec![replayed];
        Ok((Replays { replayed }, Timeline { inner }))
    }
}

#[pymethods]
impl Replays {
    #[getter]
    fn peak_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.peak_bytes)
    }

    #[getter]
    fn peak_task<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let all = self
            .replayed
            .iter()
            .map(|r| r.peak_task.map_or(-1, |task| u32::from(task).into()));
        all.collect::<Vec<i64>>().into_pyarray(py)
    }

    #[getter]
    fn time_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.time_s)
    }

    #[getter]
    fn compute_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.compute_s)
    }

    #[getter]
    fn communication_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.communication_s)
    }

    #[getter]
    fn exposed_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.exposed_s)
    }

    #[getter]
    fn mark_end_s<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let marks = self.replayed.first().map_or(0, |r| r.marks_s.len());
        let all = self.replayed.iter().flat_map(|r| r.marks_s.iter().copied());
        Array2::from_shape_vec((self.replayed.len(), marks), all.collect())
            .map(|array| array.into_pyarray(py))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

impl Replays {
    fn column<'py>(&self, py: Python<'py>, of: fn(&Replayed) -> f64) -> Bound<'py, PyArray1<f64>> {
        self.replayed
            .iter()
            .map(of)
            .collect::<Vec<f64>>()
            .into_pyarray(py)
    }
}

#[pymethods]
impl Timeline {
    #[getter]
    fn start_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.inner.start_s.clone().into_pyarray(py)
    }

    #[getter]
    fn end_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.inner.end_s.clone().into_pyarray(py)
    }

    #[getter]
    fn held_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.inner.held_bytes.clone().into_pyarray(py)
    }

    #[getter]
    fn at_peak<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        let all = self.inner.at_peak.iter().map(|b| u32::from(*b));
        all.collect::<Vec<u32>>().into_pyarray(py)
    }
}

fn row<T: Copy>(from: ArrayView1<T>) -> Vec<T> {
    from.iter().copied().collect()
}

fn pairs(array: &PyReadonlyArray2<u32>) -> PyResult<Vec<(u32, u32)>> {
    let array = array.as_array();
    if array.ncols() != 2 {
        return Err(PyValueError::new_err(
            "dependencies and both must have the shape (N, 2)",
        ));
    }
    Ok(array.rows().into_iter().map(|r| (r[0], r[1])).collect())
}

fn triples(array: &PyReadonlyArray2<i32>) -> PyResult<Vec<Use>> {
    let array = array.as_array();
    if array.ncols() != 3 || array.iter().any(|n| *n < -1) {
        return Err(PyValueError::new_err(
            "uses must be (buffer, task, flag) in the shape (N, 3), with flag -1 for no flag",
        ));
    }
    let number = |n: i32| u32::try_from(n).unwrap_or(u32::MAX);
    let rows = array.rows().into_iter();
    Ok(rows
        .map(|r| Use {
            buffer: number(r[0]),
            task: number(r[1]),
            flag: r[2],
        })
        .collect())
}
