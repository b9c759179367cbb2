//! Replay at the boundary to Python: arrays in, arrays out.

use std::borrow::Cow;

use ::frontier::replay::{
    replay_all, Batch, Between, BufferId, DeviceClassId, Keep, LongestPaths, Order, Parts, Path,
    Peak, Program as Checked, Replayed, ResourceId, Settings, Span, Strategy, Urgency, Use,
};
use numpy::ndarray::{Array2, ArrayView1, ArrayView2, Axis};
use numpy::{Element, IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
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
    resources: usize,
    device_classes: usize,
    marks: usize,
}

/// One schedule; see `_core.pyi`.
#[pyclass(module = "shardwise._core", frozen)]
pub struct Timeline {
    inner: ::frontier::replay::Timeline,
    peak_class: DeviceClassId,
}

#[pymethods]
impl Program {
    #[new]
    #[allow(clippy::too_many_arguments)] // one per keyword of the Python class
    #[pyo3(signature = (*, tasks, resources, holds, dependencies, makers, lasting, uses, given_flags, both, marks, device_classes=1, buffer_classes=None, conditions=None, keeps=None))]
    fn new(
        tasks: usize,
        resources: Vec<String>,
        holds: PyReadonlyArray2<u32>,
        dependencies: PyReadonlyArray2<u32>,
        makers: PyReadonlyArray1<i32>,
        lasting: PyReadonlyArray1<bool>,
        uses: PyReadonlyArray2<i32>,
        given_flags: usize,
        both: PyReadonlyArray2<u32>,
        marks: PyReadonlyArray1<u32>,
        device_classes: usize,
        buffer_classes: Option<PyReadonlyArray1<u16>>,
        conditions: Option<PyReadonlyArray2<i32>>,
        keeps: Option<PyReadonlyArray2<i32>>,
    ) -> PyResult<Self> {
        let use_of = |[buffer, task, flag]: [i32; 3]| Use {
            buffer: id_of(buffer),
            task: id_of(task),
            flag,
        };
        let keep_of = |[buffer, kept, flag]: [i32; 3]| Keep {
            buffer: id_of(buffer),
            kept: id_of(kept),
            flag,
        };
        let uses = triples(&uses, "uses must be (buffer, task, flag)")?;
        let keeps = keeps.map_or_else(
            || Ok(Vec::new()),
            |given| triples(&given, "keeps must be (buffer, kept buffer, flag)"),
        )?;
        let orders: PyResult<Vec<Order>> = resources.iter().map(|name| order(name)).collect();
        let holds = pairs(&holds)?;
        let classes = buffer_classes.map_or_else(Vec::new, |given| given.as_array().to_vec());
        let parts = Parts {
            tasks,
            resources: orders?,
            holds: holds.iter().map(|&(t, r)| (t, resource(r))).collect(),
            dependencies: pairs(&dependencies)?,
            makers: makers.as_array().to_vec(),
            lasting: lasting.as_array().to_vec(),
            uses: uses.into_iter().map(use_of).collect(),
            keeps: keeps.into_iter().map(keep_of).collect(),
            given_flags,
            both: pairs(&both)?,
            conditions: conditions.map_or_else(|| Ok(Vec::new()), |given| flagged(&given))?,
            marks: marks.as_array().to_vec(),
            device_classes,
            buffer_classes: classes.into_iter().map(Into::into).collect(),
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

    #[getter]
    fn resources(&self) -> usize {
        self.inner.resources()
    }

    #[getter]
    fn device_classes(&self) -> usize {
        self.inner.device_classes()
    }

    #[allow(clippy::too_many_arguments)] // one per keyword of the Python function
    #[pyo3(signature = (durations_s, sizes_bytes, flags, *, block_bytes=512, limits_bytes=None, urgency="rank"))]
    fn replay(
        &self,
        py: Python<'_>,
        durations_s: PyReadonlyArray2<f64>,
        sizes_bytes: PyReadonlyArray2<f64>,
        flags: PyReadonlyArray2<bool>,
        block_bytes: u64,
        limits_bytes: Option<PyReadonlyArray1<f64>>,
        urgency: &str,
    ) -> PyResult<Replays> {
        let (durations, sizes) = (durations_s.as_array(), sizes_bytes.as_array());
        let flags = flags.as_array();
        let points = durations.nrows();
        if sizes.nrows() != points || flags.nrows() != points {
            return Err(PyValueError::new_err(
                "durations_s, sizes_bytes and flags must have one row per strategy",
            ));
        }
        let limits = limits_bytes.map(|given| given.as_array().to_vec());
        let urgency = urgency_of(urgency)?;
        let settings = Settings {
            block_bytes,
            limits_bytes: limits.as_deref(),
            urgency,
        };
        let (durations, sizes) = (Rows::of(durations), Rows::of(sizes));
        let flags = Rows::of(flags);
        let replayed = py.detach(|| {
            let strategies = (0..points).map(|point| Strategy {
                durations_s: durations.row(point),
                sizes_bytes: sizes.row(point),
                flags: flags.row(point),
            });
            let batch = Batch::of(&self.inner, &strategies.collect::<Vec<_>>())?;
            replay_all(&self.inner, &batch, &settings)
        });
        Ok(self.replays(replayed.map_err(to_python)?))
    }

    #[pyo3(signature = (*, chain=0))]
    #[allow(clippy::type_complexity)] // the two arrays of the Python method
    fn between<'py>(
        &self,
        py: Python<'py>,
        chain: u16,
    ) -> PyResult<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>)> {
        let chain = ResourceId::from(chain);
        LongestPaths::new(&self.inner, chain).map_err(to_python)?;
        let Between { after, before } = Between::of(&self.inner, chain);
        let numbers = |nodes: &[usize]| nodes.iter().map(|n| *n as i64).collect::<Vec<i64>>();
        let (after, before) = (numbers(after.as_slice()), numbers(before.as_slice()));
        Ok((after.into_pyarray(py), before.into_pyarray(py)))
    }

    #[pyo3(signature = (durations_s, *, between=None, chain=0))]
    #[allow(clippy::type_complexity)] // the two arrays of the Python method
    fn longest_paths<'py>(
        &self,
        py: Python<'py>,
        durations_s: PyReadonlyArray2<f64>,
        between: Option<(u32, u32)>,
        chain: u16,
    ) -> PyResult<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray2<bool>>)> {
        let durations = durations_s.as_array();
        let points = durations.nrows();
        let span = between.map_or(Span::Step, |(begin, end)| {
            Span::Between(begin.into(), end.into())
        });
        let paths: Result<Vec<Path>, _> = py.detach(|| {
            let of = LongestPaths::new(&self.inner, chain.into())?;
            (0..points)
                .into_par_iter()
                .map(|point| of.longest(&row(durations.index_axis(Axis(0), point)), span))
                .collect()
        });
        let paths = paths.map_err(to_python)?;
        let lengths: Vec<f64> = paths.iter().map(|path| path.length_s).collect();
        let members = paths.into_iter().flat_map(|path| path.members).collect();
        let members = Array2::from_shape_vec((points, self.inner.tasks()), members)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((lengths.into_pyarray(py), members.into_pyarray(py)))
    }

    #[pyo3(signature = (durations_s, sizes_bytes, flags, *, block_bytes=512, limits_bytes=None, urgency="rank"))]
    fn trace(
        &self,
        durations_s: PyReadonlyArray1<f64>,
        sizes_bytes: PyReadonlyArray1<f64>,
        flags: PyReadonlyArray1<bool>,
        block_bytes: u64,
        limits_bytes: Option<PyReadonlyArray1<f64>>,
        urgency: &str,
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
        let limits = limits_bytes.map(|given| given.as_array().to_vec());
        let urgency = urgency_of(urgency)?;
        let settings = Settings {
            block_bytes,
            limits_bytes: limits.as_deref(),
            urgency,
        };
        let traced = settings
            .replayer(&self.inner)
            .and_then(|mut replayer| replayer.trace(strategy));
        let (replayed, inner) = traced.map_err(to_python)?;
        let peak_class = replayed.peak_class();
        let replays = self.replays(vec![replayed]);
        Ok((replays, Timeline { inner, peak_class }))
    }
}

impl Program {
    /// Returns the checked program.
    pub fn checked(&self) -> &Checked {
        &self.inner
    }

    /// Returns results of its replays.
    pub fn replays(&self, replayed: Vec<Replayed>) -> Replays {
        Replays {
            replayed,
            resources: self.inner.resources(),
            device_classes: self.inner.device_classes(),
            marks: self.inner.marks(),
        }
    }
}

#[pymethods]
impl Replays {
    #[getter]
    fn peak_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.peak().bytes)
    }

    #[getter]
    fn peak_task<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.column(py, |r| number(r.peak()))
    }

    #[getter]
    fn class_peak_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.rows(py, self.device_classes, |r| {
            r.peaks.iter().map(|peak| peak.bytes)
        })
    }

    #[getter]
    fn class_peak_task<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        self.rows(py, self.device_classes, |r| {
            r.peaks.iter().map(|peak| number(*peak))
        })
    }

    #[getter]
    fn time_s<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.column(py, |r| r.time_s)
    }

    #[getter]
    fn busy_s<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.rows(py, self.resources, |r| r.busy_s.iter().copied())
    }

    #[getter]
    fn mark_end_s<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.rows(py, self.marks, |r| r.marks_s.iter().copied())
    }
}

impl Replays {
    /// Returns one value per strategy.
    fn column<'py, T: Element>(
        &self,
        py: Python<'py>,
        of: fn(&Replayed) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        let all = self.replayed.iter().map(of);
        all.collect::<Vec<T>>().into_pyarray(py)
    }

    /// Returns one row per strategy.
    fn rows<'py, 's, T: Element, I: Iterator<Item = T>>(
        &'s self,
        py: Python<'py>,
        width: usize,
        of: impl Fn(&'s Replayed) -> I,
    ) -> PyResult<Bound<'py, PyArray2<T>>> {
        let all = self.replayed.iter().flat_map(of);
        Array2::from_shape_vec((self.replayed.len(), width), all.collect())
            .map(|array| array.into_pyarray(py))
            .map_err(|error| PyValueError::new_err(error.to_string()))
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
        let classes = self.inner.at_peak.len();
        let held = self.inner.held_bytes.chunks_exact(classes);
        held.map(|of_classes| of_classes.iter().sum())
            .collect::<Vec<f64>>()
            .into_pyarray(py)
    }

    #[getter]
    fn class_held_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let shape = (self.inner.start_s.len(), self.inner.at_peak.len());
        Array2::from_shape_vec(shape, self.inner.held_bytes.clone())
            .map(|array| array.into_pyarray(py))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn at_peak<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        numbers(&self.inner.at_peak[self.peak_class]).into_pyarray(py)
    }

    #[getter]
    fn class_at_peak<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<u32>>> {
        let of_classes = self.inner.at_peak.iter();
        of_classes.map(|b| numbers(b).into_pyarray(py)).collect()
    }
}

/// Returns what lies in memory row by row; `None`, an array in another order, is an error.
pub fn in_rows<T>(slice: Option<T>) -> PyResult<T> {
    slice.ok_or_else(|| PyValueError::new_err("arrays must lie in memory row by row"))
}

/// Returns the number of the task that reached a peak; -1 if it was reached before the first task.
fn number(peak: Peak) -> i64 {
    peak.task.map_or(-1, |task| u32::from(task).into())
}

fn numbers(buffers: &[BufferId]) -> Vec<u32> {
    buffers.iter().map(|buffer| u32::from(*buffer)).collect()
}

fn order(name: &str) -> PyResult<Order> {
    Order::parse(name).ok_or_else(|| {
        let names = Order::NAMES.map(|(known, _)| known).join(", ");
        PyValueError::new_err(format!(
            "unknown order {name:?} in resources (expected {names})"
        ))
    })
}

/// Returns the urgency with a name.
pub fn urgency_of(name: &str) -> PyResult<Urgency> {
    Urgency::parse(name).ok_or_else(|| {
        let names = Urgency::NAMES.map(|(known, _)| known).join(", ");
        PyValueError::new_err(format!("unknown urgency {name:?} (expected {names})"))
    })
}

/// Returns the id of a resource; numbers that no id has become one that no program has.
fn resource(number: u32) -> ResourceId {
    u16::try_from(number).unwrap_or(u16::MAX).into()
}

/// Rows of an array that lie in memory one after another, copied where they do not.
struct Rows<'a, T: Copy> {
    items: Cow<'a, [T]>,
    width: usize,
}

impl<'a, T: Copy> Rows<'a, T> {
    fn of(array: ArrayView2<'a, T>) -> Self {
        let items = array.to_slice();
        Self {
            items: items.map_or_else(|| array.iter().copied().collect(), Cow::Borrowed),
            width: array.ncols(),
        }
    }

    fn row(&self, at: usize) -> &[T] {
        &self.items[at * self.width..][..self.width]
    }
}

fn row<T: Copy>(from: ArrayView1<T>) -> Vec<T> {
    from.iter().copied().collect()
}

fn pairs(array: &PyReadonlyArray2<u32>) -> PyResult<Vec<(u32, u32)>> {
    let array = array.as_array();
    if array.ncols() != 2 {
        return Err(PyValueError::new_err(
            "holds, dependencies and both must have the shape (N, 2)",
        ));
    }
    Ok(array.rows().into_iter().map(|r| (r[0], r[1])).collect())
}

fn flagged(array: &PyReadonlyArray2<i32>) -> PyResult<Vec<(u32, i32)>> {
    let array = array.as_array();
    if array.ncols() != 2 || array.iter().any(|n| *n < 0) {
        return Err(PyValueError::new_err(
            "conditions must be (task, flag) in the shape (N, 2), with numbers of at least 0",
        ));
    }
    let rows = array.rows().into_iter();
    Ok(rows.map(|r| (r[0].unsigned_abs(), r[1])).collect())
}

fn triples(array: &PyReadonlyArray2<i32>, expected: &str) -> PyResult<Vec<[i32; 3]>> {
    let array = array.as_array();
    if array.ncols() != 3 || array.iter().any(|n| *n < -1) {
        return Err(PyValueError::new_err(format!(
            "{expected} in the shape (N, 3), with flag -1 for no flag"
        )));
    }
    let rows = array.rows().into_iter();
    Ok(rows.map(|r| [r[0], r[1], r[2]]).collect())
}

/// Returns the number of a task or buffer; one that no program has for -1.
fn id_of(given: i32) -> u32 {
    u32::try_from(given).unwrap_or(u32::MAX)
}
