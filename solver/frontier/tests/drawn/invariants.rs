//! What every answer must obey, whatever was asked.

use std::time::Duration;

use frontier::methods::{certify, track, Limits, Style};
use frontier::{solve, Method, Problem, Settings, Solution, SolveError, Status, Watch};

use super::bytes::Bytes;
use super::problem::{Cost, Drawn, COSTS};
use super::shape::SHAPES;

/// What rounding may take: sums of some twenty costs in another order.
const ROUNDING: f64 = 1e-12;

fn costs(found: &Solution) -> Vec<Cost> {
    found.points.iter().map(|p| (p.memory, p.time)).collect()
}

/// Every one of `those` within (1 + epsilon) of some point in both costs.
fn covered(by: &[Cost], those: &[Cost], epsilon: f64) -> bool {
    let factor = (1.0 + epsilon) * (1.0 + ROUNDING);
    let within = |p: &Cost, q: &Cost| p.0 <= q.0 * factor && p.1 <= q.1 * factor;
    those.iter().all(|q| by.iter().any(|p| within(p, q)))
}

fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(what())
    }
}

/// An exact method's answer is the true frontier.
pub fn is_exact(drawn: &Drawn, truth: &[Cost], found: &Solution) -> Result<(), String> {
    let points = costs(found);
    demand(
        found.status == Status::Exact && found.epsilon == 0.0,
        || format!("{:?} with epsilon {}", found.status, found.epsilon),
    )?;
    if drawn.adds_exactly() {
        demand(points == truth, || {
            format!("found {points:?}\n  is not {truth:?}")
        })?;
    }
    is_sound(drawn, truth, found)
}

/// An answer is a staircase of real strategies that keeps what its certificate promises.
pub fn is_sound(drawn: &Drawn, truth: &[Cost], found: &Solution) -> Result<(), String> {
    let points = costs(found);
    demand(!points.is_empty(), || "no points".into())?;
    let ordered = points
        .windows(2)
        .all(|w| w[0].0 < w[1].0 && w[0].1 > w[1].1);
    demand(ordered, || format!("no staircase: {points:?}"))?;
    for p in &found.points {
        let choices: Vec<u32> = p.choices.iter().map(|k| (*k).into()).collect();
        let real = drawn.cost_of(&choices, p.edge_choices.as_slice());
        demand(real == (p.memory, p.time), || {
            format!("{choices:?} costs {real:?}, not {:?}", (p.memory, p.time))
        })?;
    }
    demand(covered(truth, &points, 0.0), || {
        format!("{points:?}\n  is below the true frontier {truth:?}")
    })?;
    demand(found.epsilon >= 0.0, || {
        format!("epsilon {}", found.epsilon)
    })?;
    let kept = found.epsilon.is_infinite() || covered(&points, truth, found.epsilon);
    demand(kept, || {
        let epsilon = found.epsilon;
        format!("epsilon {epsilon} does not hold: {points:?}\n  against {truth:?}")
    })?;
    let claims_all = matches!(found.status, Status::Exact);
    demand(!claims_all || covered(&points, truth, 0.0), || {
        format!("not exact: {points:?}\n  against {truth:?}")
    })
}

/// Who is asked: the front door, or what stands behind it and is tried there only on large problems.
#[derive(Debug, Clone, Copy)]
enum Way {
    Solve,
    Certified,
    Track(Style),
}

/// Draw a problem and a question from bytes, ask it, check the answer. Errs with what is wrong.
pub fn holds(data: &[u8]) -> Result<(), String> {
    let mut bytes = Bytes::of(data);
    let (shape, kind) = (bytes.pick(&SHAPES), bytes.pick(&COSTS));
    let (way, asked) = question(&mut bytes);
    let share = f64::from(bytes.byte()) / 200.0;
    let targeted = bytes.once_in(3);
    let drawn = Drawn::draw(shape, kind, &mut bytes);
    let truth = drawn.frontier();
    let (low, high) = (truth[0].0, truth[truth.len() - 1].0);
    let asked = Settings {
        memory_target: targeted.then_some(low * 0.9 + (high - low * 0.9) * share),
        ..asked
    };
    let found = match answer(&drawn.problem(), way, asked) {
        Ok(found) => found,
        // Only a time limit lets these problems go without an answer.
        Err(SolveError::OutOfTime) if asked.time_limit.is_some() => return Ok(()),
        Err(other) => return Err(format!("{way:?} {asked:?}: {other:?}\n{}", drawn.json())),
    };
    is_sound(&drawn, &truth, &found)
        .and_then(|()| is_promised(&truth, way, asked, &found))
        .map_err(|wrong| format!("{way:?} {asked:?}: {wrong}\n{}", drawn.json()))
}

fn question(bytes: &mut Bytes) -> (Way, Settings) {
    let way = match bytes.below(4) {
        0 | 1 => Way::Certified,
        2 => Way::Track(Style {
            linear: bytes.once_in(2),
            heuristic: bytes.once_in(4),
            widest: bytes.pick(&[0, 4, 16, 4096]),
        }),
        _ => Way::Solve,
    };
    let asked = Settings {
        epsilon: bytes.pick(&[0.0, 0.0, 1e-9, 1e-3, 0.01, 0.05, 0.3, 2.0]),
        time_limit: bytes
            .once_in(8)
            .then(|| Duration::from_micros(bytes.byte().into())),
        ..Settings::exactly(Method::parse(bytes.pick(&Method::NAMES)).unwrap())
    };
    (way, asked)
}

fn answer(problem: &Problem, way: Way, asked: Settings) -> Result<Solution, SolveError> {
    let watch = Watch::new(asked.time_limit, None);
    let (points, epsilon, status, bound) = match way {
        Way::Solve => return solve(problem, asked, None),
        Way::Certified => {
            let found = certify(problem, asked.epsilon, asked.memory_target, &watch)?;
            let bound = found.time_lower_bound;
            (found.points, found.epsilon, Status::Budget, bound)
        }
        Way::Track(style) => {
            let limits = Limits {
                candidates: u64::MAX,
                watch: &watch,
            };
            let found = track(problem, style, &limits)?;
            match found.heuristic {
                false => (found.points, 0.0, Status::Exact, None),
                true => (found.points, f64::INFINITY, Status::Heuristic, None),
            }
        }
    };
    Ok(Solution {
        points,
        epsilon,
        status,
        time_lower_bound: bound,
        seconds: watch.seconds(),
        method: "asked directly",
        candidates: watch.candidates(),
        optima: 0,
        kept_choices: 0.0,
    })
}

/// The answer says what it is, and its lower bound is one.
fn is_promised(truth: &[Cost], way: Way, asked: Settings, found: &Solution) -> Result<(), String> {
    let heuristic = match way {
        Way::Solve => asked.method == Method::Heuristic,
        Way::Certified => false,
        Way::Track(style) => style.heuristic,
    };
    let promised = match found.status {
        Status::Exact => found.epsilon == 0.0,
        Status::WithinEpsilon => asked.memory_target.is_some() || found.epsilon <= asked.epsilon,
        Status::Heuristic => heuristic,
        Status::Budget => true,
        Status::Cancelled => false,
    };
    demand(promised, || {
        format!("{:?} with epsilon {}", found.status, found.epsilon)
    })?;
    let (Some(target), Some(bound)) = (asked.memory_target, found.time_lower_bound) else {
        return Ok(());
    };
    let fitting = truth.iter().rfind(|p| p.0 <= target);
    let best = fitting.map_or(f64::INFINITY, |p| p.1);
    demand(bound <= best * (1.0 + ROUNDING), || {
        format!("bound {bound} within memory {target}, but {best} is possible")
    })
}
