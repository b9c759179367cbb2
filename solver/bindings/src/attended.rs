//! Long work in the background while the calling thread handles Ctrl-C and progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Mutex;
use std::time::Duration;

use frontier::Listener;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

const PERIOD: Duration = Duration::from_millis(40);

/// Runs `work` on `threads` threads (0: one per core) without the GIL.
///
/// `progress(stage, fraction)` is called from the calling thread until it returns false, which
/// makes the listener that `work` receives return false. An exception from `progress` or from a
/// signal handler does the same and is raised once `work` has stopped.
pub fn attended<T: Send>(
    py: Python<'_>,
    threads: usize,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Listener) -> T + Send,
) -> PyResult<T> {
    let runtime_error = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| runtime_error(&error))?;
    let keep_going = AtomicBool::new(true);
    let stage: Mutex<Option<(String, f64)>> = Mutex::new(None);
    let listener = |name: &str, fraction: f64| {
        if let Ok(mut slot) = stage.lock() {
            *slot = Some((name.to_owned(), fraction));
        }
        keep_going.load(Ordering::Relaxed)
    };
    let mut raised: Option<PyErr> = None;
    let result = py.detach(|| {
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let (pool, listener) = (&pool, &listener);
            scope.spawn(move || {
                // The receiver lives until the scope ends.
                let _ = sender.send(pool.install(|| work(listener)));
            });
            loop {
                match receiver.recv_timeout(PERIOD) {
                    Ok(result) => return Some(result),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                let latest = stage.lock().ok().and_then(|slot| slot.clone());
                let callback = progress.filter(|_| keep_going.load(Ordering::Relaxed));
                match Python::attach(|py| report_progress(py, callback, latest)) {
                    Ok(true) => {}
                    Ok(false) => keep_going.store(false, Ordering::Relaxed),
                    Err(error) => {
                        keep_going.store(false, Ordering::Relaxed);
                        raised.get_or_insert(error);
                    }
                }
            }
        })
    });
    match (raised, result) {
        (Some(error), _) => Err(error),
        (None, Some(result)) => Ok(result),
        (None, None) => Err(runtime_error(&"the solver stopped without an answer")),
    }
}

/// Handles signals and calls `progress` with the latest stage; returns whether to keep going.
fn report_progress(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    latest: Option<(String, f64)>,
) -> PyResult<bool> {
    py.check_signals()?;
    match (progress, latest) {
        (Some(callback), Some((name, fraction))) => {
            callback.call1(py, (name, fraction))?.extract(py)
        }
        _ => Ok(true),
    }
}
