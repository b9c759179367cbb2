//! Several strategies replayed together against each replayed alone.

use frontier::replay::{replay_all, Batch, Order, Program, Replayed, Settings, Strategy, Urgency};
use proptest::prelude::{any, prop, prop_assert_eq, proptest, ProptestConfig};
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::TestCaseError;

use crate::conditions::conditional;
use crate::oracle::Instance;
use crate::properties::instances;

/// What one of the strategies has of the instance's values, and its flags.
type Variant = (Vec<bool>, Vec<bool>, bool, bool);

/// A few strategies under most of which most tasks take no time and most buffers no bytes.
fn variants() -> impl Generator<Value = Vec<Variant>> {
    let rarely = || prop::collection::vec(prop::bool::weighted(0.3), 18);
    prop::collection::vec((rarely(), rarely(), any::<bool>(), any::<bool>()), 1..9)
}

/// Checks that strategies together have the results that each has alone.
fn check_together(
    given: &Instance,
    variants: &[Variant],
    marks: &[bool],
) -> Result<(), TestCaseError> {
    let mut parts = given.parts.clone();
    parts.marks.retain(|mark| marks[*mark as usize]);
    let program = Program::new(parts).unwrap();
    let of = |values: &[f64], kept: &[bool]| -> Vec<f64> {
        let values = values.iter().zip(kept);
        values
            .map(|(value, kept)| if *kept { *value } else { 0.0 })
            .collect()
    };
    let values: Vec<(Vec<f64>, Vec<f64>, Vec<bool>)> = variants
        .iter()
        .map(|(timed, sized, a, b)| {
            let (durations, sizes) = (of(&given.durations, timed), of(&given.sizes, sized));
            (durations, sizes, vec![*a, *b])
        })
        .collect();
    let strategies: Vec<Strategy> = values
        .iter()
        .map(|(durations_s, sizes_bytes, flags)| Strategy {
            durations_s,
            sizes_bytes,
            flags,
        })
        .collect();
    for (_, urgency) in Urgency::NAMES {
        let settings = Settings {
            block_bytes: given.block,
            limits_bytes: Some(&given.limits),
            urgency,
        };
        let mut replayer = settings.replayer(&program).unwrap();
        let alone: Vec<Replayed> = strategies
            .iter()
            .map(|strategy| replayer.replay(*strategy).unwrap())
            .collect();
        let batch = Batch::of(&program, &strategies).unwrap();
        let together = replay_all(&program, &batch, &settings).unwrap();
        prop_assert_eq!(together, alone);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn strategies_together_are_as_each_alone(
        given in instances(&[&[], &[Order::Program, Order::Rank]]),
        variants in variants(),
        marks in prop::collection::vec(prop::bool::weighted(0.2), 18),
    ) {
        check_together(&given, &variants, &marks)?;
    }

    #[test]
    fn so_are_strategies_with_conditional_tasks(
        given in conditional(&[&[], &[Order::Program, Order::Rank]]),
        variants in variants(),
        marks in prop::collection::vec(prop::bool::weighted(0.2), 18),
    ) {
        check_together(&given, &variants, &marks)?;
    }
}
