//! Chooses a method and determines the status of the solution.

use std::time::Duration;

use crate::bounds::certified::{solve as certify, Certified};
use crate::bounds::exact::finish;
use crate::bounds::scalar::{minimise, Effort, EFFORT};
use crate::model::error::SolveError;
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::selection::Selection;
use crate::model::watch::{Listener, Watch};
use crate::model::weights::Weights;
use crate::oracle;
use crate::tracking::gather::Limits;
use crate::tracking::repeated::{self, Fineness};
use crate::tracking::track::{track, Style};

/// The method by which a problem is solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Exact where that is little work, otherwise certified.
    Auto,
    /// FT-Elimination: eliminates until two operators are left.
    Elimination,
    /// FT-LDP: eliminates until a linear graph is left.
    Ldp,
    /// FT-LDP with the paper's heuristic elimination where exact elimination is too wide.
    Heuristic,
    /// Enumeration of all strategies.
    BruteForce,
}

impl Method {
    /// The names of all methods.
    pub const NAMES: [&'static str; 5] = ["auto", "elimination", "ldp", "heuristic", "brute-force"];

    /// Returns the method with this name.
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

/// What is known about the points of a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// They are exactly the frontier.
    Exact,
    /// They are within the requested epsilon.
    WithinEpsilon,
    /// Heuristic elimination was used, so that nothing is proven.
    Heuristic,
    /// A limit was reached before the requested epsilon.
    Budget,
    /// The listener cancelled the solve.
    Cancelled,
}

impl Status {
    /// Returns the name of the status in files and messages.
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

/// The requirements and limits of a solve.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub method: Method,
    /// Requires some point within a factor of 1 + epsilon of every strategy, in both costs.
    pub epsilon: f64,
    /// Restricts the search to the fastest strategy within this many bytes.
    pub memory_target: Option<f64>,
    pub time_limit: Option<Duration>,
    /// Limits the memory of tables and tuples, in bytes.
    pub memory_limit: Option<u64>,
    /// Limits the work, in polls of the watch: a limit that is met alike on every machine.
    pub work_limit: Option<u64>,
}

impl Settings {
    /// Requires the whole frontier exactly, without limits.
    pub fn exactly(method: Method) -> Self {
        Self {
            method,
            epsilon: 0.0,
            memory_target: None,
            time_limit: None,
            memory_limit: None,
            work_limit: None,
        }
    }

    /// Returns whether the whole frontier is required exactly.
    fn wants_all(&self) -> bool {
        self.epsilon == 0.0 && self.memory_target.is_none()
    }

    /// Returns the epsilon for bounds; an exact search starts from coarser ones.
    fn first_epsilon(&self) -> f64 {
        if self.wants_all() {
            FIRST_EPSILON
        } else {
            self.epsilon
        }
    }
}

/// A frontier and what is known about it.
pub struct Solution {
    /// Ascending in memory, descending in time.
    pub points: Vec<Point>,
    pub status: Status,
    /// The epsilon that is proven for the points; infinite when nothing is proven.
    pub epsilon: f64,
    /// With a memory target: a lower bound on the time of any strategy within it (seconds).
    pub time_lower_bound: Option<f64>,
    /// The duration of the solve.
    pub seconds: f64,
    /// The method that produced the points.
    pub method: &'static str,
    /// The number of tuples that were considered.
    pub candidates: u64,
    /// The work of the solve, in polls of its watch.
    pub work: u64,
    /// The number of weighted optima that were computed.
    pub optima: usize,
    /// The mean number of choices per operator to which staircases were restricted.
    pub kept_choices: f64,
}

/// The most choices that branch elimination may give an operator in exact tracking.
const WIDEST: usize = 4096;
/// `Auto` first tries exact tracking with at most this many candidates.
const QUICK_CANDIDATES: u64 = 2_000_000;
/// An exact search starts from a frontier that is certified to this epsilon.
const FIRST_EPSILON: f64 = 0.01;
/// An exact search of notches may consider this many further candidates.
const EXACT_CANDIDATES: u64 = 20_000_000_000;
/// A search of the notches that lines cannot close may consider this many further candidates.
const CLOSING_CANDIDATES: u64 = 1_000_000_000;

/// Solves a problem; on cancellation or at a limit, returns the points so far if there are any.
///
/// # Errors
///
/// Returns an error when the solve is cancelled or a limit is reached before there are any points,
/// and when the method cannot solve such a problem.
pub fn solve(
    problem: &Problem,
    settings: Settings,
    listener: Option<&Listener>,
) -> Result<Solution, SolveError> {
    let watch = Watch::new(settings.time_limit, listener)
        .within(settings.memory_limit)
        .working(settings.work_limit);
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

/// A strategy of least cost, and the bound that proves it.
#[derive(Debug, Clone)]
pub struct Least {
    pub point: Point,
    /// No strategy costs less.
    pub bound: f64,
}

/// Returns a strategy with the least time, where a byte of memory costs `price` seconds.
///
/// Where the graph is wide, it is found with copies of the widest operators and may cost more than
/// the bound.
///
/// # Errors
///
/// Returns an error when the search is cancelled or a limit is reached, and for a price that is
/// negative or not finite.
pub fn least_time(problem: &Problem, price: f64, watch: &Watch) -> Result<Least, SolveError> {
    if !price.is_finite() || price < 0.0 {
        return Err(SolveError::Invalid(format!(
            "a price must be finite and not negative, got {price}"
        )));
    }
    let weights = Weights {
        memory: price,
        time: 1.0,
    };
    let quick = Effort {
        close: f64::INFINITY,
        ..EFFORT
    };
    let (bound, point) = minimise(problem, weights, quick, watch)?;
    Ok(Least { point, bound })
}

/// Returns the solution with an exact frontier.
fn exact(points: Vec<Point>, method: &'static str, watch: &Watch) -> Solution {
    Solution {
        points,
        status: Status::Exact,
        epsilon: 0.0,
        time_lower_bound: None,
        seconds: watch.seconds(),
        method,
        candidates: watch.candidates(),
        work: watch.polls(),
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

/// Tracks exactly where that is little work; otherwise certifies a frontier by bounds and closes
/// the notches that remain open.
fn auto(problem: &Problem, settings: Settings, watch: &Watch) -> Result<Solution, SolveError> {
    if let Some(points) = track_at_once(problem, watch)? {
        return Ok(exact(points, "repeated", watch));
    }
    let epsilon = settings.first_epsilon();
    let mut certified = certify(problem, epsilon, settings.memory_target, watch)?;
    if is_left_open(settings, &certified) {
        match close_notches(problem, settings, &certified, watch) {
            Ok(points) if settings.wants_all() => {
                return Ok(Solution {
                    optima: certified.optima,
                    ..exact(points, "fixed", watch)
                });
            }
            Ok(points) => {
                certified.points = points;
                certified.epsilon = settings.epsilon;
            }
            Err(error) => certified.stopped = Some(error),
        }
    }
    Ok(with_certificate(settings, certified, watch))
}

/// Returns the exact frontier; `None` where that is too much work to try first.
///
/// Tracking a small problem exactly takes less time than bounds would.
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

/// Returns whether, without a memory target, lines prove less than is required although no limit
/// was reached.
fn is_left_open(settings: Settings, certified: &Certified) -> bool {
    let unproven = settings.memory_target.is_none() && certified.epsilon > settings.epsilon;
    (settings.wants_all() || unproven) && certified.stopped.is_none()
}

/// Searches exactly where lines cannot prove enough: in the open notches of the staircase.
fn close_notches(
    problem: &Problem,
    settings: Settings,
    certified: &Certified,
    watch: &Watch,
) -> Result<Vec<Point>, SolveError> {
    let candidates = if settings.wants_all() {
        EXACT_CANDIDATES
    } else {
        CLOSING_CANDIDATES
    };
    let (points, lines) = (&certified.points, &certified.lines);
    finish(problem, points, lines, settings.epsilon, candidates, watch)
}

/// Returns the status of a certified frontier.
fn status_of(settings: Settings, certified: &Certified) -> Status {
    match &certified.stopped {
        Some(SolveError::Cancelled) => Status::Cancelled,
        _ if is_proven(settings, certified) => Status::WithinEpsilon,
        _ => Status::Budget,
    }
}

/// Returns whether the requested epsilon is proven: with a memory target for the fastest point
/// within it, otherwise for the whole frontier.
fn is_proven(settings: Settings, certified: &Certified) -> bool {
    match (settings.memory_target, certified.time_lower_bound) {
        (Some(target), Some(bound)) => certified
            .points
            .iter()
            .rfind(|p| p.memory <= target)
            .is_some_and(|p| p.time <= bound * (1.0 + settings.epsilon)),
        (Some(_), None) => true,
        _ => certified.epsilon <= settings.epsilon,
    }
}

/// Returns the solution with a certified frontier.
fn with_certificate(settings: Settings, certified: Certified, watch: &Watch) -> Solution {
    let status = status_of(settings, &certified);
    Solution {
        points: certified.points,
        status,
        epsilon: certified.epsilon,
        time_lower_bound: certified.time_lower_bound,
        seconds: watch.seconds(),
        method: "certified",
        candidates: watch.candidates(),
        work: watch.polls(),
        optima: certified.optima,
        kept_choices: certified.kept_choices,
    }
}
