//! Choosing a method, and saying what the answer is worth.

use std::time::Duration;

use crate::brute_force;
use crate::certified;
use crate::error::SolveError;
use crate::exact::finish;
use crate::gather::Limits;
use crate::problem::Problem;
use crate::repeated::{self, Fineness};
use crate::selection::Selection;
use crate::tracking::{track, Point, Style};
use crate::watch::{Listener, Watch};

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
    BruteForce,
}

impl Method {
    pub const NAMES: [&'static str; 5] = ["auto", "elimination", "ldp", "heuristic", "brute-force"];

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
    Exact,
    WithinEpsilon,
    /// Heuristic elimination was used: nothing is proven.
    Heuristic,
    /// A limit was met before the epsilon that was asked.
    Budget,
    Cancelled,
}

impl Status {
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

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub method: Method,
    pub epsilon: f64,
    pub memory_target: Option<f64>,
    pub time_limit: Option<Duration>,
    /// What tables and tuples may take, in bytes.
    pub memory_limit: Option<u64>,
}

impl Settings {
    /// The whole frontier exactly, without limits.
    pub fn exactly(method: Method) -> Self {
        Self {
            method,
            epsilon: 0.0,
            memory_target: None,
            time_limit: None,
            memory_limit: None,
        }
    }
}

pub struct Solution {
    pub points: Vec<Point>,
    pub status: Status,
    /// Infinite when nothing is proven.
    pub epsilon: f64,
    pub time_lower_bound: Option<f64>,
    pub seconds: f64,
    pub method: &'static str,
    pub candidates: u64,
    pub optima: usize,
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

/// Solve a problem; cancelling and limits give what was found so far where there is anything.
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
            let points = brute_force::enumerate(problem, &watch)?;
            Ok(exact(points, "brute-force", &watch))
        }
        Method::Elimination => exactly(problem, style(false, false), "elimination", &watch),
        Method::Ldp => exactly(problem, style(true, false), "ldp", &watch),
        Method::Heuristic => exactly(problem, style(true, true), "heuristic", &watch),
        Method::Auto => auto(problem, settings, &watch),
    }
}

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

fn auto(problem: &Problem, settings: Settings, watch: &Watch) -> Result<Solution, SolveError> {
    // A small problem is answered exactly in less time than bounds would take.
    let limits = Limits {
        candidates: QUICK_CANDIDATES,
        watch,
    };
    if repeated::looks_quick(problem, QUICK_CANDIDATES) {
        let everything = Selection::all(problem);
        match repeated::track(problem, &everything, Fineness::Exact, &limits) {
            Ok(points) => return Ok(exact(points, "repeated", watch)),
            Err(SolveError::OverBudget(_)) => {}
            Err(other) => return Err(other),
        }
    }
    let wants_all = settings.epsilon == 0.0 && settings.memory_target.is_none();
    let aim = if wants_all {
        FIRST_EPSILON
    } else {
        settings.epsilon
    };
    let mut found = certified::solve(problem, aim, settings.memory_target, watch)?;
    let unproven = settings.memory_target.is_none() && found.epsilon > settings.epsilon;
    if (wants_all || unproven) && found.stopped.is_none() {
        let (points, lines) = (&found.points, &found.lines);
        let candidates = if wants_all {
            EXACT_CANDIDATES
        } else {
            CLOSING_CANDIDATES
        };
        match finish(problem, points, lines, settings.epsilon, candidates, watch) {
            Ok(points) if wants_all => {
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
    let whole_proven = found.epsilon <= settings.epsilon;
    let target_proven = match (settings.memory_target, found.time_lower_bound) {
        (Some(target), Some(bound)) => found
            .points
            .iter()
            .rfind(|p| p.memory <= target)
            .is_some_and(|p| p.time <= bound * (1.0 + settings.epsilon)),
        (Some(_), None) => true,
        _ => whole_proven,
    };
    let status = match &found.stopped {
        Some(SolveError::Cancelled) => Status::Cancelled,
        _ if target_proven => Status::WithinEpsilon,
        _ => Status::Budget,
    };
    Ok(Solution {
        points: found.points,
        status,
        epsilon: found.epsilon,
        time_lower_bound: found.time_lower_bound,
        seconds: watch.seconds(),
        method: "certified",
        candidates: watch.candidates(),
        optima: found.optima,
        kept_choices: found.kept_choices,
    })
}
