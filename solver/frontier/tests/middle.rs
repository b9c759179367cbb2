//! Chains with hubs of 20 to 42 operators against dynamic programming over memory, point by point.
//!
//! Small problems never fill the solver's buffers; these have frontiers of hundreds of points.

mod drawn;

use drawn::invariants::{is_exact, is_sound};
use drawn::shape::treewidth;
use drawn::units::HubChain;
use frontier::{solve, Method, Settings, Status};

const PROBLEMS: u64 = 45;

#[test]
fn whole_frontiers_equal_dynamic_programming() {
    let mut longest = 0;
    for number in 0..PROBLEMS {
        let middle = HubChain::numbered(number);
        let (problem, truth) = (middle.drawn.problem(), middle.frontier());
        longest = longest.max(truth.len());
        // With two hubs the paper's own orders of elimination may take minutes.
        let paper = [Method::Auto, Method::Elimination, Method::Ldp];
        for &method in &paper[..if number % 3 == 2 { 1 } else { 3 }] {
            let found = solve(&problem, Settings::exactly(method), None)
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
    let mut certified = 0;
    for number in 0..PROBLEMS {
        let middle = HubChain::numbered(number);
        let (problem, truth) = (middle.drawn.problem(), middle.frontier());
        let epsilon = [0.05, 0.01, 0.002][number as usize % 3];
        let asked = Settings {
            epsilon,
            ..Settings::exactly(Method::Auto)
        };
        let answer = solve(&problem, asked, None).unwrap();
        certified += usize::from(answer.status != Status::Exact);
        let admits = answer.status == Status::Budget;
        assert!(
            admits || answer.epsilon <= epsilon,
            "middle problem {number}"
        );
        if let Err(wrong) = is_sound(&middle.drawn, &truth, &answer) {
            panic!("middle problem {number} within {epsilon}: {wrong}");
        }
    }
    // Otherwise exact tracking answered, and nothing was tested here.
    assert!(certified >= 10, "{certified}");
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
