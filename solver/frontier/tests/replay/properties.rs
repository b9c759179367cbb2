//! Replay of random programs against the simulator, and bounds on its results.

use std::collections::BTreeSet;

use frontier::replay::{
    Keep, LongestPaths, Order, Parts, Program, Replayer, ResourceId, Span, Strategy, Use,
};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest, ProptestConfig};
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::TestCaseError;

use crate::oracle::{Instance, Simulator};

const ORDERS: [Order; 3] = [Order::Program, Order::Rank, Order::RankWithinMemory];

/// Durations of a few values, so that tasks end at the same time, or of any.
fn duration(kind: u32, number: u32) -> f64 {
    match kind {
        0 => 0.0,
        1..=4 => f64::from(kind) * 0.5,
        _ => f64::from(number) * 1.7e-5,
    }
}

pub fn instances(orders: &'static [&'static [Order]]) -> impl Generator<Value = Instance> {
    let resources = prop::sample::select(orders.to_vec());
    let drawn = prop::collection::vec(prop::sample::select(ORDERS.to_vec()), 1..6);
    let resources = (resources, drawn).prop_map(|(fixed, drawn)| match fixed {
        [] => drawn,
        fixed => fixed.to_vec(),
    });
    (1_usize..18, 0_usize..16, 1_usize..4, resources).prop_flat_map(
        |(tasks, buffers, classes, resources)| {
            let all = tasks as u32;
            let held = prop::collection::btree_set(0..resources.len() as u16, 1..3);
            let most = classes as u16;
            (
                prop::collection::vec((held, 0_u32..8, 1_u32..1_000_000), tasks),
                prop::collection::btree_set((0..all, 0..all), 0..2 * tasks),
                prop::collection::vec(
                    (-1..tasks as i32, any::<bool>(), 0_u32..5000, 0..most),
                    buffers,
                ),
                prop::collection::vec((0..16_u32, 0..all, -1_i32..3), 0..40),
                prop::collection::vec((0..16_u32, 0..16_u32, -1_i32..3), 0..12),
                (any::<bool>(), any::<bool>()),
                prop::sample::select(vec![1_u64, 64, 512]),
                prop::collection::vec(0_u32..20_000, classes),
            )
                .prop_map(
                    move |(tasks, pairs, buffers, uses, keeps, flags, block, limits)| {
                        let pairs = pairs.into_iter().filter(|(a, b)| a != b);
                        let dependencies: BTreeSet<(u32, u32)> =
                            pairs.map(|(a, b)| (a.min(b), a.max(b))).collect();
                        let makers: Vec<i32> = buffers.iter().map(|b| b.0).collect();
                        let keeps = keeps.into_iter().filter(|&(buffer, kept, _)| {
                            kept < buffer && (buffer as usize) < makers.len()
                        });
                        let mut keeps: Vec<Keep> = keeps
                            .map(|(buffer, kept, flag)| Keep { buffer, kept, flag })
                            .collect();
                        keeps.sort_by_key(|keep| keep.buffer);
                        // What is kept has to be there when it is used.
                        let mut made = makers.clone();
                        for keep in &keeps {
                            let kept = made[keep.kept as usize];
                            let own = &mut made[keep.buffer as usize];
                            *own = kept.max(*own);
                        }
                        let uses = uses.into_iter().filter(|&(b, t, _)| {
                            (b as usize) < made.len() && made[b as usize] <= t as i32
                        });
                        let uses = uses
                            .map(|(buffer, task, flag)| Use { buffer, task, flag })
                            .collect();
                        let holds = tasks.iter().enumerate().flat_map(|(task, (held, ..))| {
                            let held = held.iter();
                            held.map(move |r| (task as u32, ResourceId::from(*r)))
                        });
                        let parts = Parts {
                            tasks: tasks.len(),
                            resources: resources.clone(),
                            holds: holds.collect(),
                            dependencies: dependencies.into_iter().collect(),
                            lasting: buffers.iter().map(|b| b.1).collect(),
                            device_classes: limits.len(),
                            buffer_classes: buffers.iter().map(|b| b.3.into()).collect(),
                            makers,
                            uses,
                            keeps,
                            given_flags: 2,
                            both: vec![(0, 1)],
                            conditions: Vec::new(),
                            marks: (0..tasks.len() as u32).collect(),
                        };
                        Instance {
                            parts,
                            durations: tasks.iter().map(|t| duration(t.1, t.2)).collect(),
                            sizes: buffers.iter().map(|b| f64::from(b.2)).collect(),
                            flags: vec![flags.0, flags.1],
                            block,
                            limits: limits.into_iter().map(f64::from).collect(),
                        }
                    },
                )
        },
    )
}

pub fn strategy(given: &Instance) -> Strategy<'_> {
    Strategy {
        durations_s: &given.durations,
        sizes_bytes: &given.sizes,
        flags: &given.flags,
    }
}

/// Checks that a longest path bounds the step, whatever the durations it was found under, and so
/// does one between two tasks of the chain.
pub fn check_longest_paths(given: &Instance, factors: &[u32]) -> Result<(), TestCaseError> {
    let program = Program::new(given.parts.clone()).unwrap();
    let other: Vec<f64> = given
        .durations
        .iter()
        .zip(factors)
        .map(|(duration, factor)| duration * f64::from(*factor))
        .collect();
    for chain in (0..program.resources()).map(|r| ResourceId::from(r as u16)) {
        if !program.keeps_order(chain) {
            prop_assert!(LongestPaths::new(&program, chain).is_err());
            continue;
        }
        let paths = LongestPaths::new(&program, chain).unwrap();
        let ends = program.tasks_of(chain);
        let mut spans = vec![Span::Step];
        if ends.len() > 1 {
            spans.push(Span::Between(ends[0], ends[ends.len() - 1]));
        }
        for span in spans {
            let path = paths.longest(&given.durations, span).unwrap();
            for durations_s in [&given.durations, &other] {
                let members = path.members.iter().zip(durations_s);
                let length: f64 = members.filter(|(on, _)| **on).map(|(_, d)| d).sum();
                let of = Strategy {
                    durations_s,
                    ..strategy(given)
                };
                let mut replayer = Replayer::new(&program, given.block).unwrap();
                let (replayed, timeline) = replayer.trace(of).unwrap();
                let took = match span {
                    Span::Step => replayed.time_s,
                    Span::Between(a, b) => {
                        let at = |t| usize::try_from(u32::from(t)).unwrap();
                        timeline.end_s[at(b)] - timeline.end_s[at(a)]
                    }
                };
                prop_assert!(length <= took + 1e-9 * (1.0 + took), "{length} {took}");
            }
            let members = path.members.iter().zip(&given.durations);
            let length: f64 = members.filter(|(on, _)| **on).map(|(_, d)| d).sum();
            prop_assert!((path.length_s - length).abs() <= 1e-9 * (1.0 + length));
            let alone: f64 = ends
                .iter()
                .map(|t| given.durations[u32::from(*t) as usize])
                .sum();
            if span == Span::Step {
                prop_assert!(path.length_s >= alone * (1.0 - 1e-12));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Any resources, and more often the two streams of one device.
    #[test]
    fn agrees_with_the_simulator(given in instances(&[&[], &[Order::Program, Order::Rank]])) {
        let program = Program::new(given.parts.clone()).unwrap();
        let replayer = Replayer::new(&program, given.block).unwrap();
        let mut replayer = replayer.with_limits(&given.limits).unwrap();
        let (replayed, timeline) = replayer.trace(strategy(&given)).unwrap();
        let found = Simulator::new(&given).run();
        prop_assert_eq!(timeline.start_s, found.start_s);
        prop_assert_eq!(&timeline.end_s, &found.end_s);
        prop_assert_eq!(timeline.held_bytes, found.held_bytes);
        prop_assert_eq!(timeline.at_peak.as_slice(), found.at_peak);
        prop_assert_eq!(replayed.time_s, found.time_s);
        prop_assert_eq!(replayed.peaks.as_slice(), found.peaks);
        prop_assert_eq!(replayed.busy_s.as_slice(), found.busy_s);
        prop_assert_eq!(&replayed.marks_s, &found.end_s);
        // Tracing changes nothing, and neither does what was replayed before.
        prop_assert_eq!(&replayer.replay(strategy(&given)).unwrap(), &replayed);
    }

    #[test]
    fn time_and_memory_keep_their_bounds(given in instances(&[&[]])) {
        let program = Program::new(given.parts.clone()).unwrap();
        let replayer = Replayer::new(&program, given.block).unwrap();
        let replayed = replayer.with_limits(&given.limits).unwrap().replay(strategy(&given)).unwrap();
        let sum: f64 = given.durations.iter().sum();
        prop_assert!(replayed.time_s <= sum * (1.0 + 1e-12));
        let critical = given.ranks().into_iter().fold(0.0, f64::max);
        prop_assert!(replayed.time_s >= critical * (1.0 - 1e-12));
        for busy in &replayed.busy_s {
            prop_assert!(replayed.time_s >= busy * (1.0 - 1e-12));
        }
        let held: f64 = (0..given.parts.tasks)
            .map(|task| given.durations[task] * given.holds(task).len() as f64)
            .sum();
        let busy: f64 = replayed.busy_s.iter().sum();
        prop_assert!((busy - held).abs() <= 1e-9 * held);
    }

    #[test]
    fn longest_paths_bound_every_strategy(
        given in instances(&[&[], &[Order::Program, Order::Rank]]),
        factors in prop::collection::vec(0_u32..4, 18),
    ) {
        check_longest_paths(&given, &factors)?;
    }

    /// Without limits memory does not change the schedule.
    #[test]
    fn larger_blocks_never_need_less_memory(given in instances(&[&[]])) {
        let program = Program::new(given.parts.clone()).unwrap();
        let peaks = |block| {
            let mut replayer = Replayer::new(&program, block).unwrap();
            replayer.replay(strategy(&given)).unwrap().peaks
        };
        for (coarse, fine) in peaks(given.block).iter().zip(&peaks(1)) {
            prop_assert!(coarse.bytes >= fine.bytes);
        }
    }
}
