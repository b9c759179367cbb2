//! Cancellation, time limits, budgets and invalid input.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use frontier::{solve, Method, Problem, Settings, SolveError, Status, Table};

/// Returns a chain of `n` operators with `k` choices each and costs that make nearly all sums
/// unique.
fn chain(n: usize, k: usize) -> Problem {
    let mut state = 1u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64
    };
    let mut problem = Problem::default();
    let mut operators = Vec::new();
    for o in 0..n {
        let memory = (0..k).map(|_| random()).collect();
        let time = (0..k).map(|_| random()).collect();
        let costs = problem.add_costs(memory, time).unwrap();
        operators.push(problem.add_operator(format!("{o}"), costs).unwrap());
    }
    for pair in operators.windows(2) {
        let costs = |random: &mut dyn FnMut() -> f64| (0..k * k).map(|_| random()).collect();
        let (memory, time) = (costs(&mut random), costs(&mut random));
        let counts = std::iter::repeat_n(1, k * k);
        let table = Table::ragged(k, k, counts, memory, time).unwrap();
        let table = problem.add_table(table).unwrap();
        let all: Vec<u32> = (0..k as u32).collect();
        problem
            .add_edge(pair[0], pair[1], table, all.clone(), all)
            .unwrap();
    }
    problem
}

#[test]
fn cancelling_stops_soon() {
    let problem = chain(300, 30);
    let calls = AtomicUsize::new(0);
    let listener = |_: &str, fraction: f64| {
        assert!((0.0..=1.0).contains(&fraction));
        calls.fetch_add(1, Ordering::Relaxed) < 2
    };
    let started = std::time::Instant::now();
    let result = solve(&problem, Settings::exactly(Method::Ldp), Some(&listener));
    assert_eq!(result.err(), Some(SolveError::Cancelled));
    assert!(calls.load(Ordering::Relaxed) <= 3);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_time_limit_leaves_a_certified_frontier() {
    let problem = chain(400, 40);
    let limited = Settings {
        time_limit: Some(Duration::from_secs(2)),
        ..Settings::exactly(Method::Auto)
    };
    let started = std::time::Instant::now();
    let solution = solve(&problem, limited, None).unwrap();
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(solution.status, Status::Budget);
    assert!(solution.epsilon.is_finite() && solution.epsilon > 0.0);
    for point in &solution.points {
        let (memory, time) = problem.evaluate(&point.choices, &point.edge_choices);
        assert_eq!((memory, time), (point.memory, point.time));
    }
}

#[test]
fn a_limit_of_work_ends_alike_every_time() {
    let problem = chain(200, 12);
    let within = |work| {
        let settings = Settings {
            work_limit: Some(work),
            epsilon: 1e-6,
            ..Settings::exactly(Method::Auto)
        };
        solve(&problem, settings, None)
    };
    let whole = within(u64::MAX).unwrap();
    let (once, again) = (within(whole.work / 2), within(whole.work / 2));
    let (once, again) = (once.unwrap(), again.unwrap());
    assert_eq!(once.status, Status::Budget);
    assert!(once.work < whole.work && once.epsilon > whole.epsilon);
    assert_eq!((once.work, once.epsilon), (whole.work / 2, again.epsilon));
    assert_eq!(again.work, once.work);
    assert_eq!(once.points, again.points);
    assert_eq!(within(1).err(), Some(SolveError::OutOfTime));
}

#[test]
fn cancelling_returns_the_points_so_far_with_their_certificate() {
    let problem = chain(200, 12);
    // Bounds come before the staircases that they certify.
    let bounded = AtomicBool::new(false);
    let listener = |stage: &str, _: f64| {
        bounded.fetch_or(stage == "bounding", Ordering::Relaxed);
        !(bounded.load(Ordering::Relaxed) && stage == "tracking")
    };
    let settings = Settings {
        epsilon: 1e-6,
        ..Settings::exactly(Method::Auto)
    };
    let solution = solve(&problem, settings, Some(&listener)).unwrap();
    assert_eq!(solution.status, Status::Cancelled);
    assert!(solution.epsilon > settings.epsilon && solution.epsilon.is_finite());
    assert!(solution.points.len() > 2);
}

#[test]
fn a_memory_limit_leaves_a_certified_frontier() {
    let problem = chain(200, 12);
    let within = |bytes| Settings {
        memory_limit: Some(bytes),
        epsilon: 1e-3,
        ..Settings::exactly(Method::Auto)
    };
    // This suffices for bounds, but not for fine staircases.
    let solution = solve(&problem, within(600_000), None).unwrap();
    assert_eq!(solution.status, Status::Budget);
    assert!(solution.epsilon > 1e-3 && solution.epsilon.is_finite());
    // This suffices only for bounds with copied operators.
    let coarse = solve(&problem, within(5_000), None).unwrap();
    assert_eq!(coarse.status, Status::Budget);
    assert!(coarse.epsilon > solution.epsilon && coarse.epsilon.is_finite());
}

#[test]
fn an_exact_method_says_that_time_is_up() {
    let limited = Settings {
        time_limit: Some(Duration::from_millis(200)),
        ..Settings::exactly(Method::Elimination)
    };
    let result = solve(&chain(300, 30), limited, None);
    assert_eq!(result.err(), Some(SolveError::OutOfTime));
}

#[test]
fn deep_problems_are_solved_within_epsilon() {
    let settings = Settings {
        epsilon: 0.01,
        ..Settings::exactly(Method::Auto)
    };
    let solution = solve(&chain(200, 8), settings, None).unwrap();
    assert_eq!(solution.status, Status::WithinEpsilon);
    assert!(solution.epsilon <= 0.01);
}

#[test]
fn brute_force_rejects_problems_that_are_too_large() {
    let result = solve(&chain(30, 4), Settings::exactly(Method::BruteForce), None);
    assert!(
        matches!(result.err(), Some(SolveError::OverBudget(text)) if text.contains("brute force"))
    );
}

#[test]
fn invalid_costs_and_edges_are_rejected() {
    let mut problem = Problem::default();
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(problem.add_costs(vec![bad], vec![1.0]).is_err());
        assert!(problem.add_costs(vec![1.0], vec![bad]).is_err());
    }
    assert!(problem.add_costs(vec![], vec![]).is_err());
    let costs = problem.add_costs(vec![1.0], vec![1.0]).unwrap();
    assert!(problem.add_operator("a".into(), 1.into()).is_err());
    let a = problem.add_operator("a".into(), costs).unwrap();
    let b = problem.add_operator("b".into(), costs).unwrap();
    let cell = |count| Table::ragged(1, 1, std::iter::once(count), vec![1.0], vec![1.0]).unwrap();
    assert!(problem.add_table(cell(0)).is_err());
    assert!(problem.add_table(cell(2)).is_err());
    let table = problem.add_table(cell(1)).unwrap();
    assert!(problem.add_edge(a, a, table, vec![0], vec![0]).is_err());
    assert!(problem
        .add_edge(a, 2.into(), table, vec![0], vec![0])
        .is_err());
    assert!(problem.add_edge(a, b, table, vec![1], vec![0]).is_err());
    assert!(problem.add_edge(a, b, table, vec![0, 0], vec![0]).is_err());
    assert!(problem.add_edge(a, b, 1.into(), vec![0], vec![0]).is_err());
    assert!(problem.add_edge(a, b, table, vec![0], vec![0]).is_ok());
}
