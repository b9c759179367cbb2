//! Compares the solver with enumeration on a thousand numbered problems of all families, point by
//! point.
//!
//! A failure names its problem; `Drawn::numbered(N).json()` writes it as a problem file.

mod drawn;

use drawn::invariants::is_exact;
use drawn::problem::{Costs, Drawn, COSTS};
use drawn::shape::{treewidth, Shape, SHAPES};
use frontier::{solve, Method, Settings};

const PROBLEMS: u64 = 1000;

fn pairs(drawn: &Drawn) -> Vec<(usize, usize)> {
    drawn.edges.iter().map(|e| (e.source, e.target)).collect()
}

#[test]
fn a_thousand_problems_equal_enumeration() {
    for number in 0..PROBLEMS {
        let drawn = Drawn::numbered(number);
        let (problem, truth) = (drawn.problem(), drawn.frontier());
        for method in [
            Method::Auto,
            Method::Elimination,
            Method::Ldp,
            Method::BruteForce,
        ] {
            let result = solve(&problem, Settings::exactly(method), None)
                .map_err(|error| error.to_string())
                .and_then(|solution| is_exact(&drawn, &truth, &solution));
            if let Err(violation) = result {
                panic!(
                    "problem {number} ({:?}, {:?} costs) by {method:?}: {violation}\n{}",
                    drawn.shape,
                    drawn.kind,
                    drawn.json()
                );
            }
        }
    }
}

/// The comparison is only meaningful if the problems have the properties of their families.
#[test]
fn the_thousand_are_of_every_family() {
    let all: Vec<Drawn> = (0..PROBLEMS).map(Drawn::numbered).collect();
    for shape in SHAPES {
        for kind in COSTS {
            let of = all.iter().filter(|d| d.shape == shape && d.kind == kind);
            assert!(of.count() >= 23, "{shape:?} with {kind:?} costs");
        }
    }
    let widths = |shape: Shape| {
        let of = all.iter().filter(move |d| d.shape == shape);
        let mut widths: Vec<usize> = of
            .map(|d| treewidth(d.operators.len(), &pairs(d)))
            .collect();
        widths.sort_unstable();
        widths.dedup();
        widths
    };
    assert_eq!(widths(Shape::Single), [0]);
    assert_eq!(widths(Shape::Chain), [1]);
    assert_eq!(widths(Shape::Tree), [1]);
    assert_eq!(widths(Shape::ParallelEdges), [1]);
    assert_eq!(widths(Shape::SeriesParallel), [1, 2]);
    assert!(widths(Shape::Treewidth).ends_with(&[2, 3, 4]));
    assert!(all.iter().all(|d| {
        let mut pairs = pairs(d);
        pairs
            .iter_mut()
            .for_each(|p| *p = (p.0.min(p.1), p.0.max(p.1)));
        pairs.sort_unstable();
        let parallel = pairs.windows(2).any(|w| w[0] == w[1]);
        d.shape != Shape::ParallelEdges || parallel
    }));
    let disconnected = all.iter().filter(|d| d.shape == Shape::Disconnected);
    // Every operator adds at most one edge, and two of them add none.
    assert!(disconnected
        .into_iter()
        .all(|d| d.edges.len() + 2 <= d.operators.len()));
    let count = |test: &dyn Fn(&Drawn) -> bool| all.iter().filter(|d| test(d)).count();
    let several = |d: &Drawn| d.tables.iter().any(|t| t.cells.iter().any(|c| c.len() > 1));
    assert!(count(&several) > 300);
    assert!(count(&|d| d.costs.len() < d.operators.len()) > 100, "alike");
    assert!(count(&|d| d.costs.iter().flatten().any(|c| *c == (0.0, 0.0))) > 100);
    let flat = |d: &&Drawn| d.kind == Costs::Equal || d.kind == Costs::Zero;
    let rich = all.iter().filter(|d| !flat(d) && d.frontier().len() > 3);
    assert!(rich.count() > 300);
    let long = all.iter().map(|d| d.frontier().len()).max();
    assert!(long > Some(20), "{long:?}");
}
