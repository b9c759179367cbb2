//! The invariants of every solution, for all settings.

use std::time::Duration;

use frontier::methods::{certify, track, Limits, Style};
use frontier::{solve, Method, Problem, Settings, Solution, SolveError, Status, Watch};

use super::bytes::Bytes;
use super::problem::{Cost, Drawn, COSTS};
use super::shape::SHAPES;

/// A bound on relative rounding errors: sums of about twenty costs in different orders.
const ROUNDING: f64 = 1e-12;

fn costs(solution: &Solution) -> Vec<Cost> {
    solution.points.iter().map(|p| (p.memory, p.time)).collect()
}

/// Returns whether every target is within a factor of 1 + epsilon of some point in both costs.
fn covers(points: &[Cost], targets: &[Cost], epsilon: f64) -> bool {
    let factor = (1.0 + epsilon) * (1.0 + ROUNDING);
    let within = |p: &Cost, q: &Cost| p.0 <= q.0 * factor && p.1 <= q.1 * factor;
    targets.iter().all(|q| points.iter().any(|p| within(p, q)))
}

/// Returns the message as an error unless the condition holds.
fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if condition {
        Ok(())
    } else {
        Err(message())
    }
}

/// Checks that the solution of an exact method is the true frontier.
pub fn is_exact(drawn: &Drawn, truth: &[Cost], solution: &Solution) -> Result<(), String> {
    let points = costs(solution);
    ensure(
        solution.status == Status::Exact && solution.epsilon == 0.0,
        || format!("{:?} with epsilon {}", solution.status, solution.epsilon),
    )?;
    if drawn.adds_exactly() {
        ensure(points == truth, || {
            format!("expected {truth:?}\n  got {points:?}")
        })?;
    }
    is_sound(drawn, truth, solution)
}

/// Checks that a solution is a staircase of real strategies and that its certificate holds.
pub fn is_sound(drawn: &Drawn, truth: &[Cost], solution: &Solution) -> Result<(), String> {
    let points = costs(solution);
    ensure(!points.is_empty(), || "no points".into())?;
    let ordered = points
        .windows(2)
        .all(|w| w[0].0 < w[1].0 && w[0].1 > w[1].1);
    ensure(ordered, || format!("not a staircase: {points:?}"))?;
    for p in &solution.points {
        let choices: Vec<u32> = p.choices.iter().map(|k| (*k).into()).collect();
        let real = drawn.cost_of(&choices, p.edge_choices.as_slice());
        ensure(real == (p.memory, p.time), || {
            format!("{choices:?} costs {real:?}, not {:?}", (p.memory, p.time))
        })?;
    }
    ensure(covers(truth, &points, 0.0), || {
        format!("{points:?}\n  is below the true frontier {truth:?}")
    })?;
    ensure(solution.epsilon >= 0.0, || {
        format!("epsilon {}", solution.epsilon)
    })?;
    let holds = solution.epsilon.is_infinite() || covers(&points, truth, solution.epsilon);
    ensure(holds, || {
        let epsilon = solution.epsilon;
        format!("epsilon {epsilon} does not hold: {points:?}\n  against {truth:?}")
    })?;
    let claims_all = matches!(solution.status, Status::Exact);
    ensure(!claims_all || covers(&points, truth, 0.0), || {
        format!("not exact: {points:?}\n  against {truth:?}")
    })
}

/// The function under test: [`solve`], or a method that it uses only on large problems.
#[derive(Debug, Clone, Copy)]
enum EntryPoint {
    Solve,
    Certified,
    Track(Style),
}

/// Draws a problem and settings from bytes, solves it and checks the solution.
///
/// Returns a description of the first violation as an error.
pub fn check(data: &[u8]) -> Result<(), String> {
    let mut bytes = Bytes::of(data);
    let (shape, kind) = (bytes.pick(&SHAPES), bytes.pick(&COSTS));
    let (entry, settings) = draw_settings(&mut bytes);
    let share = f64::from(bytes.byte()) / 200.0;
    let targeted = bytes.once_in(3);
    let drawn = Drawn::draw(shape, kind, &mut bytes);
    let truth = drawn.frontier();
    let (low, high) = (truth[0].0, truth[truth.len() - 1].0);
    let settings = Settings {
        memory_target: targeted.then_some(low * 0.9 + (high - low * 0.9) * share),
        ..settings
    };
    let solution = match solve_by(entry, &drawn.problem(), settings) {
        Ok(solution) => solution,
        // Only a time limit leaves these problems without a solution.
        Err(SolveError::OutOfTime) if settings.time_limit.is_some() => return Ok(()),
        Err(error) => {
            return Err(format!(
                "{entry:?} {settings:?}: {error:?}\n{}",
                drawn.json()
            ))
        }
    };
    is_sound(&drawn, &truth, &solution)
        .and_then(|()| is_promised(&truth, entry, settings, &solution))
        .map_err(|violation| format!("{entry:?} {settings:?}: {violation}\n{}", drawn.json()))
}

fn draw_settings(bytes: &mut Bytes) -> (EntryPoint, Settings) {
    let entry = match bytes.below(4) {
        0 | 1 => EntryPoint::Certified,
        2 => EntryPoint::Track(Style {
            linear: bytes.once_in(2),
            heuristic: bytes.once_in(4),
            widest: bytes.pick(&[0, 4, 16, 4096]),
        }),
        _ => EntryPoint::Solve,
    };
    let settings = Settings {
        epsilon: bytes.pick(&[0.0, 0.0, 1e-9, 1e-3, 0.01, 0.05, 0.3, 2.0]),
        time_limit: bytes
            .once_in(8)
            .then(|| Duration::from_micros(bytes.byte().into())),
        ..Settings::exactly(Method::parse(bytes.pick(&Method::NAMES)).unwrap())
    };
    (entry, settings)
}

fn solve_by(
    entry: EntryPoint,
    problem: &Problem,
    settings: Settings,
) -> Result<Solution, SolveError> {
    let watch = Watch::new(settings.time_limit, None);
    let (points, epsilon, status, bound) = match entry {
        EntryPoint::Solve => return solve(problem, settings, None),
        EntryPoint::Certified => {
            let certified = certify(problem, settings.epsilon, settings.memory_target, &watch)?;
            let bound = certified.time_lower_bound;
            (certified.points, certified.epsilon, Status::Budget, bound)
        }
        EntryPoint::Track(style) => {
            let limits = Limits {
                candidates: u64::MAX,
                watch: &watch,
            };
            let tracked = track(problem, style, &limits)?;
            match tracked.heuristic {
                false => (tracked.points, 0.0, Status::Exact, None),
                true => (tracked.points, f64::INFINITY, Status::Heuristic, None),
            }
        }
    };
    Ok(Solution {
        points,
        epsilon,
        status,
        time_lower_bound: bound,
        seconds: watch.seconds(),
        method: "called directly",
        candidates: watch.candidates(),
        work: watch.polls(),
        optima: 0,
        kept_choices: 0.0,
    })
}

/// Checks that the status fits the settings, and that the lower bound is one.
fn is_promised(
    truth: &[Cost],
    entry: EntryPoint,
    settings: Settings,
    solution: &Solution,
) -> Result<(), String> {
    let heuristic = match entry {
        EntryPoint::Solve => settings.method == Method::Heuristic,
        EntryPoint::Certified => false,
        EntryPoint::Track(style) => style.heuristic,
    };
    let promised = match solution.status {
        Status::Exact => solution.epsilon == 0.0,
        Status::WithinEpsilon => {
            settings.memory_target.is_some() || solution.epsilon <= settings.epsilon
        }
        Status::Heuristic => heuristic,
        Status::Budget => true,
        Status::Cancelled => false,
    };
    ensure(promised, || {
        format!("{:?} with epsilon {}", solution.status, solution.epsilon)
    })?;
    let (Some(target), Some(bound)) = (settings.memory_target, solution.time_lower_bound) else {
        return Ok(());
    };
    let fitting = truth.iter().rfind(|p| p.0 <= target);
    let best = fitting.map_or(f64::INFINITY, |p| p.1);
    ensure(bound <= best * (1.0 + ROUNDING), || {
        format!("bound {bound} within memory {target}, but {best} is possible")
    })
}
