//! Progress, cancellation and limits, polled by every long loop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::model::error::SolveError;

/// Receives the stage and the fraction done; returns false to cancel the solve.
pub type Listener<'a> = dyn Fn(&str, f64) -> bool + Sync + 'a;

const BETWEEN_CALLS: Duration = Duration::from_millis(20);

/// The clock, the listener and the counters of one solve, shared by all its threads.
pub struct Watch<'a> {
    started: Instant,
    deadline: Option<Instant>,
    listener: Option<&'a Listener<'a>>,
    last_call: Mutex<Instant>,
    cancelled: AtomicBool,
    candidates: AtomicU64,
    kept: AtomicU64,
    most_bytes: Option<u64>,
    polls: AtomicU64,
    most_polls: Option<u64>,
}

impl<'a> Watch<'a> {
    /// Starts the clock of a solve.
    pub fn new(time_limit: Option<Duration>, listener: Option<&'a Listener<'a>>) -> Self {
        let now = Instant::now();
        Self {
            started: now,
            deadline: time_limit.and_then(|limit| now.checked_add(limit)),
            listener,
            last_call: Mutex::new(now),
            cancelled: AtomicBool::new(false),
            candidates: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            most_bytes: None,
            polls: AtomicU64::new(0),
            most_polls: None,
        }
    }

    /// Limits the tables and tuples of the solve to `most_bytes` in all.
    pub fn within(mut self, most_bytes: Option<u64>) -> Self {
        self.most_bytes = most_bytes;
        self
    }

    /// Limits the work of the solve: it is out of time after this many polls, on every machine
    /// alike.
    pub fn working(mut self, most_polls: Option<u64>) -> Self {
        self.most_polls = most_polls;
        self
    }

    /// Returns the polls so far. Those that found the limit reached are not counted: there is one
    /// for each thread that polls before it hears of the limit.
    pub fn polls(&self) -> u64 {
        let polls = self.polls.load(Ordering::Relaxed);
        self.most_polls.map_or(polls, |most| polls.min(most))
    }

    /// Returns how many items of `size` bytes one stage may hold at once, at most `most`.
    ///
    /// A stage may fill half of the memory limit, because two stages overlap briefly.
    pub(crate) fn room(&self, most: f64, size: usize) -> f64 {
        self.most_bytes
            .map_or(most, |bytes| most.min(bytes as f64 / 2.0 / size as f64))
    }

    /// Returns the seconds since the solve began.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns the number of tuples considered so far, over all products.
    pub fn candidates(&self) -> u64 {
        self.candidates.load(Ordering::Relaxed)
    }

    /// Counts tuples that are about to be considered.
    pub(crate) fn count(&self, candidates: usize) {
        self.candidates
            .fetch_add(candidates as u64, Ordering::Relaxed);
    }

    /// Counts stored tuples and returns their number since the last [`Watch::forget`].
    pub(crate) fn keep(&self, tuples: usize) -> u64 {
        let tuples = tuples as u64;
        self.kept.fetch_add(tuples, Ordering::Relaxed) + tuples
    }

    /// Resets the count of stored tuples: the previous tracking has ended and its tuples are freed.
    pub(crate) fn forget(&self) {
        self.kept.store(0, Ordering::Relaxed);
    }

    /// Reports progress to the listener. It is cheap; every long loop calls it about once per
    /// millisecond.
    ///
    /// # Errors
    ///
    /// Returns an error when the solve must stop.
    pub(crate) fn poll(&self, stage: &str, fraction: f64) -> Result<(), SolveError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(SolveError::Cancelled);
        }
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        if self.most_polls.is_some_and(|most| polls >= most) {
            return Err(SolveError::OutOfTime);
        }
        let now = Instant::now();
        if let Some(listener) = self.listener {
            // If another thread holds the clock, it makes the call.
            if let Ok(mut last) = self.last_call.try_lock() {
                if now.duration_since(*last) >= BETWEEN_CALLS {
                    *last = now;
                    if !listener(stage, fraction) {
                        self.cancelled.store(true, Ordering::Relaxed);
                        return Err(SolveError::Cancelled);
                    }
                }
            }
        }
        match self.deadline {
            Some(deadline) if now >= deadline => Err(SolveError::OutOfTime),
            _ => Ok(()),
        }
    }
}
