//! Choosing a method, and saying what the answer is worth.

use std::time::Duration;

use crate::bounds::certified::{self, Certified};
use crate::bounds::exact::finish;
use crate::model::error::SolveError;
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::selection::Selection;
use crate::model::watch::{Listener, Watch};
use crate::oracle;
use crate::tracking::gather::Limits;
use crate::tracking::repeated::{self, Fineness};
use crate::tracking::track::{track, Style};

/// How a problem is solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Exact while that is little work, else certified.
    Auto,
    /// FT-Elimination: down to two operators.
    Elimination,
    /// FT-LDP: down to a linear graph.
    Ldp,
    /// FT-LDP with the paper's heuristic elimination where exact elimination is too wide.
    Heuristic,
    /// Every strategy, one by one.
    BruteForce,
}

impl Method {
    /// The names of all methods.
    pub const NAMES: [&'static str; 5] = ["auto", "elimination", "ldp", "heuristic", "brute-force"];

    /// Returns the method of a name.
    pub fn parse(name: &str) -> Option<Self> {
        let all = [
            Self::Auto,
            Self::Elimination,
            Self::Ldp,
            Self::Heuristic,
            Self::BruteForce,
        ];
        Self::NAMES
            .iter()
            .position(|n| *n == name)
            .map(|at| all[at])
    }
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The whole frontier, and nothing but it.
    Exact,
    /// Within the epsilon that was asked.
    WithinEpsilon,
    /// Heuristic elimination was used: nothing is proven.
    Heuristic,
    /// A limit was met before the epsilon that was asked.
    Budget,
    /// The listener asked to stop.
    Cancelled,
}

impl Status {
    /// Returns the name that files and people know the status by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::WithinEpsilon => "within_epsilon",
            Self::Heuristic => "heuristic",
            Self::Budget => "budget",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What is asked of a solve.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub method: Method,
    /// Every strategy shall be within (1 + epsilon) of some point in both costs.
    pub epsilon: f64,
    /// Asks for the fastest strategy within so many bytes alone.
    pub memory_target: Option<f64>,
    pub time_limit: Option<Duration>,
    /// What tables and tuples may take, in bytes.
    pub memory_limit: Option<u64>,
}

impl Settings {
    /// Asks for the whole frontier exactly, without limits.
    pub fn exactly(method: Method) -> Self {
        Self {
            method,
            epsilon: 0.0,
            memory_target: None,
            time_limit: None,
            memory_limit: None,
        }
    }

    /// Returns whether the whole frontier is asked exactly.
    fn wants_all(&self) -> bool {
        self.epsilon == 0.0 && self.memory_target.is_none()
    }

    /// Returns the epsilon to which bounds are sought; an exact answer starts from coarser ones.
    fn first_epsilon(&self) -> f64 {
        if self.wants_all() {
            FIRST_EPSILON
        } else {
            self.epsilon
        }
    }
}

/// An answer, and what is known about it.
pub struct Solution {
    /// Ascending in memory, descending in time.
    pub points: Vec<Point>,
    pub status: Status,
    /// What is proven for the points; infinite when nothing is.
    pub epsilon: f64,
    /// With a memory target: no strategy within it is faster (seconds).
    pub time_lower_bound: Option<f64>,
    /// How long the solve took.
    pub seconds: f64,
    /// What found the answer in the end.
    pub method: &'static str,
    /// Tuples that were considered.
    pub candidates: u64,
    /// Weighted optima that were found.
    pub optima: usize,
    /// The mean number of choices per operator to which staircases were restricted.
    pub kept_choices: f64,
}

/// The most choices that branch elimination may give an operator in exact tracking.
const WIDEST: usize = 4096;
/// `Auto` tracks exactly at once where so many candidates are enough.
const QUICK_CANDIDATES: u64 = 2_000_000;
/// Where an exact answer is asked, it starts from a frontier certified to this,
const FIRST_EPSILON: f64 = 0.01;
/// and may consider so many candidates more.
const EXACT_CANDIDATES: u64 = 20_000_000_000;
/// Notches that lines cannot close are searched exactly with so many.
const CLOSING_CANDIDATES: u64 = 1_000_000_000;

/// Solves a problem; cancelling and limits give what was found so far where there is anything.
///
/// # Errors
///
/// Errs when there is no answer yet at a limit or when the listener asks to stop, and when the
/// method cannot answer such a problem.
pub fn solve(
    problem: &Problem,
    settings: Settings,
    listener: Option<&Listener>,
) -> Result<Solution, SolveError> {
    let watch = Watch::new(settings.time_limit, listener).within(settings.memory_limit);
    let style = |linear, heuristic| Style {
        linear,
        heuristic,
        widest: WIDEST,
    };
    match settings.method {
        Method::BruteForce => {
            let points = oracle::enumerate(problem, &watch)?;
            Ok(exact(points, "brute-force", &watch))
        }
        Method::Elimination => exactly(problem, style(false, false), "elimination", &watch),
        Method::Ldp => exactly(problem, style(true, false), "ldp", &watch),
        Method::Heuristic => exactly(problem, style(true, true), "heuristic", &watch),
        Method::Auto => auto(problem, settings, &watch),
    }
}

/// Returns the solution of an exact answer.
fn exact(points: Vec<Point>, method: &'static str, watch: &Watch) -> Solution {
    Solution {
        points,
        status: Status::Exact,
        epsilon: 0.0,
        time_lower_bound: None,
        seconds: watch.seconds(),
        method,
        candidates: watch.candidates(),
        optima: 0,
        kept_choices: 0.0,
    }
}

/// Tracks the frontier operator by operator, as the paper does.
fn exactly(
    problem: &Problem,
    style: Style,
    method: &'static str,
    watch: &Watch,
) -> Result<Solution, SolveError> {
    let limits = Limits {
        candidates: u64::MAX,
        watch,
    };
    let tracked = track(problem, style, &limits)?;
    let mut solution = exact(tracked.points, method, watch);
    if tracked.heuristic {
        solution.status = Status::Heuristic;
        solution.epsilon = f64::INFINITY;
    }
    Ok(solution)
}

/// Answers exactly where that is little work, else with bounds, closed as far as is asked.
fn auto(problem: &Problem, settings: Settings, watch: &Watch) -> Result<Solution, SolveError> {
    if let Some(points) = track_at_once(problem, watch)? {
        return Ok(exact(points, "repeated", watch));
    }
    let aim = settings.first_epsilon();
    let mut found = certified::solve(problem, aim, settings.memory_target, watch)?;
    if is_left_open(settings, &found) {
        match close_notches(problem, settings, &found, watch) {
            Ok(points) if settings.wants_all() => {
                let mut solution = exact(points, "fixed", watch);
                solution.optima = found.optima;
                return Ok(solution);
            }
            Ok(points) => {
                found.points = points;
                found.epsilon = settings.epsilon;
            }
            Err(stopped) => found.stopped = Some(stopped),
        }
    }
    let status = status_of(settings, &found);
    Ok(with_certificate(found, status, watch))
}

/// Tracks the whole frontier exactly; returns none where that is too much work to try first.
///
/// A small problem is answered exactly in less time than bounds would take.
fn track_at_once(problem: &Problem, watch: &Watch) -> Result<Option<Vec<Point>>, SolveError> {
    if !repeated::looks_quick(problem, QUICK_CANDIDATES) {
        return Ok(None);
    }
    let limits = Limits {
        candidates: QUICK_CANDIDATES,
        watch,
    };
    let everything = Selection::all(problem);
    match repeated::track(problem, &everything, Fineness::Exact, &limits) {
        Ok(points) => Ok(Some(points)),
        Err(SolveError::OverBudget(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Returns whether a certified answer without a memory target proves less than was asked, though no
/// limit was met.
fn is_left_open(settings: Settings, found: &Certified) -> bool {
    let unproven = settings.memory_target.is_none() && found.epsilon > settings.epsilon;
    (settings.wants_all() || unproven) && found.stopped.is_none()
}

/// Searches exactly what lines cannot prove: the notches of the staircase that are still open.
fn close_notches(
    problem: &Problem,
    settings: Settings,
    found: &Certified,
    watch: &Watch,
) -> Result<Vec<Point>, SolveError> {
    let candidates = if settings.wants_all() {
        EXACT_CANDIDATES
    } else {
        CLOSING_CANDIDATES
    };
    let (points, lines) = (&found.points, &found.lines);
    finish(problem, points, lines, settings.epsilon, candidates, watch)
}

/// Returns what a certified answer is worth.
fn status_of(settings: Settings, found: &Certified) -> Status {
    match &found.stopped {
        Some(SolveError::Cancelled) => Status::Cancelled,
        _ if is_proven(settings, found) => Status::WithinEpsilon,
        _ => Status::Budget,
    }
}

/// Returns whether the epsilon that was asked is proven: for the fastest point within the memory
/// target where there is one, else for the whole frontier.
fn is_proven(settings: Settings, found: &Certified) -> bool {
    match (settings.memory_target, found.time_lower_bound) {
        (Some(target), Some(bound)) => found
            .points
            .iter()
            .rfind(|p| p.memory <= target)
            .is_some_and(|p| p.time <= bound * (1.0 + settings.epsilon)),
        (Some(_), None) => true,
        _ => found.epsilon <= settings.epsilon,
    }
}

/// Returns the solution of a certified answer.
fn with_certificate(found: Certified, status: Status, watch: &Watch) -> Solution {
    Solution {
        points: found.points,
        status,
        epsilon: found.epsilon,
        time_lower_bound: found.time_lower_bound,
        seconds: watch.seconds(),
        method: "certified",
        candidates: watch.candidates(),
        optima: found.optima,
        kept_choices: found.kept_choices,
    }
}
