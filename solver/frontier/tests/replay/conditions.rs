//! Conditional tasks: where a flag is not set, the step is that of a program without the task.

use frontier::replay::{
    Between, Order, Parts, Peak, Program, Replayed, Replayer, Strategy, TaskId, Timeline, Use,
    ALWAYS,
};
use proptest::prelude::{prop, prop_assert_eq, proptest, ProptestConfig};
use proptest::strategy::Strategy as Generator;

use crate::oracle::{Instance, Simulator};
use crate::properties::{check_longest_paths, instances, strategy};
use crate::{always_used, holding, streams, C, M};

/// Instances of which most have conditional tasks, where a task can be one.
pub fn conditional(orders: &'static [&'static [Order]]) -> impl Generator<Value = Instance> {
    let conditions = prop::collection::vec(-3_i32..3, 18);
    (instances(orders), conditions).prop_map(|(mut given, flags)| {
        let can = |task: &u32| {
            let makers = &given.parts.makers;
            !given.keeps_program(*task as usize) && !makers.contains(&(*task as i32))
        };
        let tasks = (0..given.parts.tasks as u32).zip(flags);
        let conditions = tasks.filter(|(task, flag)| *flag >= 0 && can(task));
        given.parts.conditions = conditions.collect();
        given
    })
}

/// Returns the tasks that take part, and the program of these alone, without conditions.
fn without_void(given: &Instance) -> (Vec<usize>, Instance) {
    let parts = &given.parts;
    let is_void = |task: u32| {
        let mut conditions = parts.conditions.iter();
        conditions.any(|&(of, flag)| of == task && !given.sets(flag))
    };
    let kept: Vec<usize> = (0..parts.tasks).filter(|t| !is_void(*t as u32)).collect();
    let number = |task: u32| {
        let at = kept.iter().position(|t| *t == task as usize);
        at.map(|at| at as u32)
    };
    let holds = parts.holds.iter();
    let dependencies = parts.dependencies.iter();
    let makers = parts.makers.iter();
    let uses = parts.uses.iter();
    let marks = parts.marks.iter();
    let reduced = Parts {
        tasks: kept.len(),
        holds: holds.filter_map(|&(t, r)| Some((number(t)?, r))).collect(),
        dependencies: dependencies
            .filter_map(|&(a, b)| Some((number(a)?, number(b)?)))
            .collect(),
        makers: makers
            .map(|&maker| match u32::try_from(maker) {
                Ok(maker) => number(maker).unwrap() as i32,
                Err(_) => maker,
            })
            .collect(),
        uses: uses
            .filter_map(|&of| {
                let task = number(of.task)?;
                Some(Use { task, ..of })
            })
            .collect(),
        conditions: Vec::new(),
        marks: marks.filter_map(|m| number(*m)).collect(),
        ..parts.clone()
    };
    let durations = kept.iter().map(|t| given.durations[*t]).collect();
    let given = Instance {
        parts: reduced,
        durations,
        ..given.clone()
    };
    (kept, given)
}

fn trace(given: &Instance) -> (Replayed, Timeline) {
    let program = Program::new(given.parts.clone()).unwrap();
    let replayer = Replayer::new(&program, given.block).unwrap();
    let mut replayer = replayer.with_limits(&given.limits).unwrap();
    replayer.trace(strategy(given)).unwrap()
}

/// Spreads the values of the tasks that take part, some per task, over all; void ones have 0.
fn spread(values: &[f64], per_task: usize, kept: &[usize], tasks: usize) -> Vec<f64> {
    let mut all = vec![0.0; tasks * per_task];
    for (of_task, task) in values.chunks_exact(per_task).zip(kept) {
        all[task * per_task..][..per_task].copy_from_slice(of_task);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn void_tasks_count_for_nothing(
        given in conditional(&[&[], &[], &[Order::Program, Order::Rank]]),
    ) {
        let (tasks, classes) = (given.parts.tasks, given.parts.device_classes);
        let (kept, reduced) = without_void(&given);
        let (replayed, timeline) = trace(&given);
        let (expected, of_kept) = trace(&reduced);
        prop_assert_eq!(replayed.time_s, expected.time_s);
        prop_assert_eq!(&replayed.busy_s, &expected.busy_s);
        let renumbered = |peak: &Peak| Peak {
            task: peak.task.map(|t| TaskId::from(kept[u32::from(t) as usize] as u32)),
            ..*peak
        };
        let peaks: Vec<Peak> = expected.peaks.iter().map(renumbered).collect();
        prop_assert_eq!(replayed.peaks.as_slice(), peaks);
        prop_assert_eq!(&replayed.marks_s, &spread(&expected.marks_s, 1, &kept, tasks));
        prop_assert_eq!(&timeline.start_s, &spread(&of_kept.start_s, 1, &kept, tasks));
        prop_assert_eq!(&timeline.end_s, &spread(&of_kept.end_s, 1, &kept, tasks));
        let held = spread(&of_kept.held_bytes, classes, &kept, tasks);
        prop_assert_eq!(&timeline.held_bytes, &held);
        prop_assert_eq!(&timeline.at_peak, &of_kept.at_peak);
        let found = Simulator::new(&reduced).run();
        prop_assert_eq!(expected.time_s, found.time_s);
        prop_assert_eq!(of_kept.start_s, found.start_s);
    }

    /// What one strategy leaves behind does not change the next one.
    #[test]
    fn strategies_follow_one_another(given in conditional(&[&[]])) {
        let program = Program::new(given.parts.clone()).unwrap();
        let replayer = Replayer::new(&program, given.block).unwrap();
        let mut replayer = replayer.with_limits(&given.limits).unwrap();
        for flags in [[true, true], [false, true], [false, false], [true, false], [true, true]] {
            let of = Instance { flags: flags.to_vec(), ..given.clone() };
            prop_assert_eq!(replayer.replay(strategy(&of)).unwrap(), trace(&of).0);
        }
    }

    #[test]
    fn longest_paths_lead_through_no_condition(
        given in conditional(&[&[], &[Order::Program, Order::Rank]]),
        factors in prop::collection::vec(0_u32..4, 18),
    ) {
        for flags in [[true, true], [true, false], [false, false]] {
            let of = Instance { flags: flags.to_vec(), ..given.clone() };
            check_longest_paths(&of, &factors)?;
        }
    }
}

fn start_s(parts: &Parts, durations_s: &[f64], flag: bool) -> Vec<f64> {
    let program = Program::new(parts.clone()).unwrap();
    let strategy = Strategy {
        durations_s,
        sizes_bytes: &[],
        flags: &[flag],
    };
    let mut replayer = Replayer::new(&program, 1).unwrap();
    replayer.trace(strategy).unwrap().1.start_s
}

#[test]
fn nothing_waits_for_a_void_task() {
    // The move takes a's result to c. Where c has it already, c waits for neither of them.
    let parts = Parts {
        dependencies: vec![(0, 1), (1, 2)],
        given_flags: 1,
        conditions: vec![(1, 0)],
        ..holding(
            &[Order::Program, Order::Rank, Order::Program],
            &[&[0], &[1], &[2]],
        )
    };
    let durations = [2.0, 3.0, 1.0];
    assert_eq!(start_s(&parts, &durations, true), [0.0, 2.0, 5.0]);
    assert_eq!(start_s(&parts, &durations, false), [0.0, 0.0, 0.0]);
}

#[test]
fn no_rank_counts_a_void_task() {
    // A long move of the first task's result makes it more urgent than the second, where there is
    // one.
    let parts = Parts {
        dependencies: vec![(0, 2), (2, 3), (1, 4)],
        given_flags: 1,
        conditions: vec![(2, 0)],
        ..holding(&[Order::Rank; 2], &[&[0], &[0], &[1], &[1], &[1]])
    };
    let durations = [1.0, 1.0, 9.0, 9.0, 5.0];
    assert_eq!(start_s(&parts, &durations, true)[..2], [0.0, 1.0]);
    assert_eq!(start_s(&parts, &durations, false)[..2], [1.0, 0.0]);
}

#[test]
fn a_use_by_a_conditional_task_needs_both_flags() {
    let parts = Parts {
        makers: vec![-1],
        lasting: vec![false],
        uses: vec![Use {
            buffer: 0,
            task: 1,
            flag: 1,
        }],
        given_flags: 2,
        conditions: vec![(1, 0)],
        marks: vec![1],
        ..streams(&[C, M])
    };
    let program = Program::new(parts).unwrap();
    assert_eq!(program.flags(), 2);
    let mut replayer = Replayer::new(&program, 1).unwrap();
    for (flags, peak, time, busy, mark) in [
        ([true, true], 8.0, 4.0, 4.0, 4.0),
        ([true, false], 0.0, 4.0, 4.0, 4.0),
        ([false, true], 0.0, 1.0, 0.0, 0.0),
    ] {
        let strategy = Strategy {
            durations_s: &[1.0, 4.0],
            sizes_bytes: &[8.0],
            flags: &flags,
        };
        let replayed = replayer.replay(strategy).unwrap();
        assert_eq!(replayed.peak().bytes, peak);
        assert_eq!(replayed.time_s, time);
        assert_eq!(replayed.busy_s.as_slice(), [1.0, busy]);
        assert_eq!(replayed.marks_s, [mark]);
    }
}

#[test]
fn dependencies_of_conditional_tasks_bound_no_task() {
    // Two moves one after the other from the first computation to the last; the first conditional.
    let parts = Parts {
        dependencies: vec![(0, 1), (1, 2), (2, 3)],
        given_flags: 1,
        conditions: vec![(1, 0)],
        ..streams(&[C, M, M, C])
    };
    let of = |parts: Parts| Between::of(&Program::new(parts).unwrap(), C.into());
    let between = of(parts.clone());
    assert_eq!(between.after.as_slice(), [1, 0, 0, 2]);
    assert_eq!(between.before.as_slice(), [1, 3, 2, 2]);
    let certain = of(Parts {
        conditions: Vec::new(),
        ..parts
    });
    assert_eq!(certain.after.as_slice(), [1, 1, 1, 2]);
    assert_eq!(certain.before.as_slice(), [1, 2, 2, 2]);
}

#[test]
fn malformed_conditions_are_rejected() {
    let task = |conditions: &[(u32, i32)]| Parts {
        given_flags: 2,
        both: vec![(0, 1)],
        conditions: conditions.to_vec(),
        ..streams(&[C, M, M])
    };
    let message = |parts: Parts| Program::new(parts).unwrap_err().to_string();
    for (conditions, expected) in [
        (&[(3, 0)][..], "unknown task 3 in conditions"),
        (&[(1, 3)], "unknown flag 3 in conditions"),
        (&[(1, ALWAYS)], "unknown flag -1 in conditions"),
        (&[(1, 0), (2, 0), (1, 1)], "task 1 has two conditions"),
        (
            &[(0, 0)],
            "conditional task 0 holds resource 0, which keeps the program's order",
        ),
    ] {
        assert_eq!(message(task(conditions)), expected);
    }
    let made = Parts {
        makers: vec![-1, 1],
        lasting: vec![false, true],
        uses: vec![always_used(0, 2)],
        ..task(&[(2, 2), (1, 0)])
    };
    assert_eq!(message(made), "conditional task 1 allocates a buffer");
    assert!(Program::new(task(&[(2, 2), (1, 0)])).is_ok());
}
