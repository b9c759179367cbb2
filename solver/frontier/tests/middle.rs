//! Chains with hubs of 20 to 42 operators against dynamic programming over memory, point by point.
//!
//! Small problems never fill the solver's buffers; these have frontiers of hundreds of points.

mod drawn;

use drawn::invariants::{is_exact, is_sound, settings};
use drawn::shape::treewidth;
use drawn::units::HubChain;
use frontier::certified;
use frontier::solve::{solve, Method, Settings, Status};
use frontier::watch::Watch;

const PROBLEMS: u64 = 45;

#[test]
fn whole_frontiers_equal_dynamic_programming() {
    let mut longest = 0;
    for number in 0..PROBLEMS {
        let middle = HubChain::numbered(number);
        let (problem, truth) = (middle.drawn.problem(), middle.frontier());
        longest = longest.max(truth.len());
        for method in [Method::Auto, Method::Elimination, Method::Ldp] {
            let found = solve(&problem, settings(method), None)
                .map_err(|error| error.to_string())
                .and_then(|found| is_exact(&middle.drawn, &truth, &found));
            if let Err(wrong) = found {
                panic!("middle problem {number} by {method:?}: {wrong}");
            }
        }
    }
    assert!(longest > 300, "{longest}");
}

#[test]
fn certificates_hold_at_size() {
    for number in 0..PROBLEMS {
        let middle = HubChain::numbered(number);
        let (problem, truth) = (middle.drawn.problem(), middle.frontier());
        let epsilon = [0.05, 0.01, 0.002][number as usize % 3];
        let watch = Watch::new(None, None);
        let found = certified::solve(&problem, epsilon, None, &watch).unwrap();
        assert!(found.epsilon <= epsilon, "middle problem {number}");
        let asked = Settings {
            epsilon,
            ..settings(Method::Auto)
        };
        let mut answer = solve(&problem, asked, None).unwrap();
        answer.points = found.points;
        answer.epsilon = found.epsilon;
        answer.status = Status::WithinEpsilon;
        if let Err(wrong) = is_sound(&middle.drawn, &truth, &answer) {
            panic!("middle problem {number} within {epsilon}: {wrong}");
        }
    }
}

/// The dynamic programming is right where enumeration can tell.
#[test]
fn the_oracle_equals_enumeration_on_short_chains() {
    for number in 0..200 {
        let short = HubChain::shortened(number);
        assert_eq!(short.frontier(), short.drawn.frontier(), "problem {number}");
        let pairs: Vec<(usize, usize)> = (short.drawn.edges.iter())
            .map(|e| (e.source, e.target))
            .collect();
        let width = treewidth(short.drawn.operators.len(), &pairs);
        assert!(width <= 1 + number as usize % 3);
    }
}
