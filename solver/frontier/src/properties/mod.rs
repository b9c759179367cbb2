//! Compares every method with brute force on random problems of every shape.

mod problems;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::bounds::certified::solve as certify;
use crate::bounds::exact::finish;
use crate::bounds::scalar::{minimise, Effort, EFFORT};
use crate::model::point::Point;
use crate::model::problem::Problem;
use crate::model::watch::Watch;
use crate::model::weights::Weights;
use crate::oracle;
use crate::solve::{solve, Method, Settings, Solution, Status};
use crate::tracking::schedule::Width;
use crate::tracking::track::{track, Style};

use problems::{build, costs, covers, exact_limits, problems, sketches, Shape, Sketch, SHAPES};

fn solved(problem: &Problem, method: Method) -> Solution {
    solve(problem, Settings::exactly(method), None).unwrap()
}

fn truth(problem: &Problem) -> Vec<Point> {
    oracle::enumerate(problem, &Watch::new(None, None)).unwrap()
}

fn is_staircase(points: &[Point]) -> bool {
    points
        .windows(2)
        .all(|w| w[0].memory < w[1].memory && w[0].time > w[1].time)
}

fn adds_up(problem: &Problem, points: &[Point]) -> bool {
    points
        .iter()
        .all(|p| problem.evaluate(&p.choices, &p.edge_choices) == (p.memory, p.time))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn exact_methods_equal_brute_force(problem in problems()) {
        let expected = solved(&problem, Method::BruteForce);
        for method in [Method::Elimination, Method::Ldp, Method::Auto] {
            let solution = solved(&problem, method);
            prop_assert_eq!(costs(&solution.points), costs(&expected.points), "{:?}", method);
            prop_assert_eq!(solution.status, Status::Exact);
            prop_assert!(adds_up(&problem, &solution.points));
            prop_assert!(is_staircase(&solution.points));
        }
    }

    #[test]
    fn bucket_elimination_is_exact(problem in problems()) {
        let watch = Watch::new(None, None);
        for linear in [false, true] {
            // Branch elimination never fits, so everything that is not linear goes into buckets.
            let style = Style { linear, heuristic: false, widest: 0 };
            let tracked = track(&problem, style, &exact_limits(&watch)).unwrap();
            prop_assert_eq!(costs(&tracked.points), costs(&truth(&problem)));
            prop_assert!(!tracked.heuristic);
            prop_assert!(adds_up(&problem, &tracked.points));
        }
    }

    #[test]
    fn heuristic_elimination_is_never_below_the_frontier(problem in problems()) {
        let watch = Watch::new(None, None);
        let style = Style { linear: true, heuristic: true, widest: 0 };
        let tracked = track(&problem, style, &exact_limits(&watch)).unwrap();
        prop_assert!(covers(&truth(&problem), &tracked.points, 0.0));
        prop_assert!(adds_up(&problem, &tracked.points));
        if !tracked.heuristic {
            prop_assert_eq!(costs(&tracked.points), costs(&truth(&problem)));
        }
    }

    #[test]
    fn weighted_minimum_is_the_least_of_all(problem in problems(), memory in 0u8..8, time in 0u8..8) {
        let weights = Weights { memory: f64::from(memory), time: f64::from(time) };
        let least = truth(&problem)
            .iter()
            .map(|p| weights.of(p.memory, p.time))
            .fold(f64::INFINITY, f64::min);
        // Directly, and starting from bounds with copied operators.
        let narrow = Width { step_work: 30.0, ..EFFORT.narrow };
        let stepwise = Effort { cheap: 0.0, close: 0.0, narrow };
        for effort in [EFFORT, stepwise] {
            let watch = Watch::new(None, None);
            let (value, point) = minimise(&problem, weights, effort, &watch).unwrap();
            prop_assert!((value - least).abs() <= 1e-9 * least, "{value} for {least}");
            prop_assert_eq!(weights.of(point.memory, point.time), least);
            prop_assert!(adds_up(&problem, &[point]));
        }
    }

    #[test]
    fn claimed_epsilon_holds(problem in problems(), percent in 0u8..40) {
        let watch = Watch::new(None, None);
        let epsilon = f64::from(percent) / 100.0;
        let certified = certify(&problem, epsilon, None, &watch).unwrap();
        let truth = truth(&problem);
        let epsilon = certified.epsilon;
        prop_assert!(covers(&certified.points, &truth, epsilon), "claims {epsilon}");
        prop_assert!(covers(&truth, &certified.points, 0.0));
        prop_assert!(adds_up(&problem, &certified.points));
        prop_assert!(is_staircase(&certified.points));
    }

    #[test]
    fn fixing_choices_keeps_the_frontier(problem in problems(), percent in 0u8..60) {
        let watch = Watch::new(None, None);
        let near = f64::from(percent) / 100.0;
        let certified = certify(&problem, near, None, &watch).unwrap();
        let (points, lines) = (&certified.points, &certified.lines);
        let all = finish(&problem, points, lines, 0.0, 1 << 40, &watch).unwrap();
        prop_assert_eq!(costs(&all), costs(&truth(&problem)));
        prop_assert!(adds_up(&problem, &all));
        for epsilon in [0.02, 0.2] {
            let most = finish(&problem, points, lines, epsilon, 1 << 40, &watch).unwrap();
            prop_assert!(covers(&most, &truth(&problem), epsilon));
            prop_assert!(adds_up(&problem, &most));
        }
    }

    #[test]
    fn claims_hold_where_memory_is_scarce(problem in problems(), bytes in 16u64..2000) {
        let watch = Watch::new(None, None).within(Some(bytes));
        let certified = certify(&problem, 0.0, None, &watch).unwrap();
        let truth = truth(&problem);
        let epsilon = certified.epsilon;
        prop_assert!(covers(&certified.points, &truth, epsilon), "claims {epsilon}");
        prop_assert!(covers(&truth, &certified.points, 0.0));
        prop_assert!(adds_up(&problem, &certified.points));
    }

    #[test]
    fn claimed_bound_at_a_memory_target_holds(problem in problems(), share in 0u8..100) {
        let truth = truth(&problem);
        let (low, high) = (truth[0].memory, truth[truth.len() - 1].memory);
        let target = low + (high - low) * f64::from(share) / 90.0;
        let certified = certify(&problem, 0.0, Some(target), &Watch::new(None, None)).unwrap();
        let best = truth.iter().rfind(|p| p.memory <= target).unwrap();
        prop_assert!(certified.time_lower_bound.unwrap() <= best.time);
        let reached = certified.points.iter().rfind(|p| p.memory <= target).unwrap();
        prop_assert!(reached.time >= best.time);
        prop_assert!(covers(&certified.points, &truth, certified.epsilon));
    }

    #[test]
    fn a_target_below_every_strategy_has_no_bound(problem in problems()) {
        let least = truth(&problem)[0].memory;
        prop_assume!(least > 0.0);
        let watch = Watch::new(None, None);
        let certified = certify(&problem, 0.0, Some(least / 2.0), &watch).unwrap();
        prop_assert!(certified.time_lower_bound.is_none());
        prop_assert_eq!(certified.points[0].memory, least);
    }

    #[test]
    fn more_memory_is_never_slower(problem in problems(), low in 0u16..200, more in 0u16..200) {
        let points = solved(&problem, Method::Auto).points;
        let fastest = |cap: u16| {
            let fitting = points.iter().filter(|p| p.memory <= f64::from(cap));
            fitting.map(|p| p.time).fold(f64::INFINITY, f64::min)
        };
        prop_assert!(fastest(low + more) <= fastest(low));
    }

    #[test]
    fn threads_do_not_change_the_answer(problem in problems()) {
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let exact = pool.install(|| solved(&problem, Method::Ldp).points);
            let watch = Watch::new(None, None);
            let near = pool.install(|| certify(&problem, 0.05, None, &watch).unwrap().points);
            (exact, near)
        };
        prop_assert_eq!(with(1), with(3));
    }
}

#[test]
fn the_generator_makes_every_shape() {
    let mut runner = TestRunner::deterministic();
    let sketches: Vec<Sketch> = (0..400)
        .map(|_| sketches().new_tree(&mut runner).unwrap().current())
        .collect();
    for shape in SHAPES {
        assert!(sketches.iter().any(|s| s.shape == shape), "{shape:?}");
    }
    let any = |test: &dyn Fn(&Sketch) -> bool| sketches.iter().any(test);
    assert!(any(&|s| s.alike && s.costs.len() > 3));
    assert!(any(&|s| s.costs.iter().flatten().any(|c| *c == (0, 0))));
    assert!(any(&|s| s
        .costs
        .iter()
        .any(|c| c.len() > 1 && c[0] == c[1])));
    let problems: Vec<Problem> = sketches.iter().map(build).collect();
    assert!(problems
        .iter()
        .any(|p| p.tables.iter().any(|t| t.memory.len() > t.rows * t.columns)));
    let used = |shape: Shape| {
        let of = sketches
            .iter()
            .zip(&problems)
            .filter(move |(s, _)| s.shape == shape);
        of.map(|(_, p)| p).collect::<Vec<_>>()
    };
    assert!(used(Shape::Single).iter().all(|p| p.edges.is_empty()));
    assert!(used(Shape::Dense).iter().any(|p| p.edges.len() >= 6));
    // Enough frontiers have several points to make comparisons meaningful.
    let rich = problems.iter().filter(|p| truth(p).len() > 3).count();
    assert!(rich * 4 > problems.len(), "{rich} of {}", problems.len());
}

#[test]
fn nothing_to_decide_costs_nothing() {
    for method in [
        Method::Auto,
        Method::Ldp,
        Method::Elimination,
        Method::BruteForce,
    ] {
        let solution = solved(&Problem::default(), method);
        assert_eq!(costs(&solution.points), [(0.0, 0.0)]);
    }
}
