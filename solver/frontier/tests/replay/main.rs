//! Compares replay with hand-made schedules and with a slow simulator.

mod batches;
mod conditions;
mod oracle;
mod properties;

use frontier::replay::{
    DeviceClassId, Keep, Order, Parts, Peak, Program, Replayed, Replayer, ResourceId, Strategy,
    Timeline, Urgency, Use, ALWAYS,
};

/// Computation in the program's order, and moves by rank.
const C: u16 = 0;
const M: u16 = 1;

fn always_used(buffer: u32, task: u32) -> Use {
    Use {
        buffer,
        task,
        flag: ALWAYS,
    }
}

/// Tasks that hold one resource each: computation or moves.
fn streams(streams: &[u16]) -> Parts {
    let holds: Vec<Vec<u16>> = streams.iter().map(|s| vec![*s]).collect();
    let holds: Vec<&[u16]> = holds.iter().map(Vec::as_slice).collect();
    holding(&[Order::Program, Order::Rank], &holds)
}

/// Tasks by the resources that they hold.
fn holding(resources: &[Order], holds: &[&[u16]]) -> Parts {
    let pairs = holds.iter().enumerate().flat_map(|(task, held)| {
        let held = held.iter();
        held.map(move |r| (task as u32, ResourceId::from(*r)))
    });
    Parts {
        tasks: holds.len(),
        resources: resources.to_vec(),
        holds: pairs.collect(),
        ..Parts::default()
    }
}

fn program(of: &[u16], dependencies: &[(u32, u32)], makers: &[i32], uses: &[Use]) -> Program {
    let parts = Parts {
        dependencies: dependencies.to_vec(),
        makers: makers.to_vec(),
        lasting: makers.iter().map(|_| false).collect(),
        uses: uses.to_vec(),
        ..streams(of)
    };
    Program::new(parts).unwrap()
}

fn traced(program: &Program, durations: &[f64]) -> (Replayed, Timeline) {
    let strategy = Strategy {
        durations_s: durations,
        sizes_bytes: &[],
        flags: &[],
    };
    let mut replayer = Replayer::new(program, 1).unwrap();
    replayer.trace(strategy).unwrap()
}

fn replay(program: &Program, durations: &[f64], sizes: &[f64], block: u64) -> Replayed {
    let strategy = Strategy {
        durations_s: durations,
        sizes_bytes: sizes,
        flags: &[],
    };
    Replayer::new(program, block)
        .unwrap()
        .replay(strategy)
        .unwrap()
}

#[test]
fn communication_overlaps_computation_that_does_not_wait_for_it() {
    // After a, its result is moved for c alone, while b computes.
    let program = program(&[C, M, C, C], &[(0, 1), (0, 2), (1, 3)], &[], &[]);
    let replayed = replay(&program, &[2.0, 3.0, 2.0, 1.0], &[], 1);
    assert_eq!(replayed.time_s, 6.0);
    assert_eq!(replayed.busy_s.as_slice(), [5.0, 3.0]);
}

#[test]
fn computing_keeps_its_order() {
    // b could start at once, but it comes after a, which waits.
    let program = program(&[M, C, C], &[(0, 1)], &[], &[]);
    assert_eq!(replay(&program, &[3.0, 1.0, 4.0], &[], 1).time_s, 8.0);
}

#[test]
fn the_move_with_the_longer_rest_goes_first() {
    // Both moves are ready when a ends; a longer task depends on the second one.
    let program = program(
        &[C, M, M, C, C],
        &[(0, 1), (0, 2), (2, 3), (1, 4)],
        &[],
        &[],
    );
    let replayed = replay(&program, &[1.0, 5.0, 5.0, 10.0, 1.0], &[], 1);
    assert_eq!(replayed.time_s, 17.0);
}

#[test]
fn a_move_of_nothing_waits_for_no_stream() {
    let program = program(&[C, M, M, C], &[(0, 1), (0, 2), (2, 3)], &[], &[]);
    assert_eq!(replay(&program, &[1.0, 9.0, 0.0, 2.0], &[], 1).time_s, 10.0);
    assert_eq!(replay(&program, &[1.0, 1.0, 0.0, 2.0], &[], 1).time_s, 3.0);
}

#[test]
fn buffers_live_from_their_maker_to_their_last_use() {
    // 0 makes 100, used until 2; 1 makes 10 for itself; 2 makes 1.
    let uses = [always_used(0, 1), always_used(0, 2)];
    let program = program(&[C, C, C], &[], &[0, 1, 2], &uses);
    let replayed = replay(&program, &[1.0, 1.0, 1.0], &[100.0, 10.0, 1.0], 1);
    let peak = Peak {
        bytes: 110.0,
        task: Some(1.into()),
    };
    assert_eq!(replayed.peak(), peak);
    let rounded = replay(&program, &[1.0, 1.0, 1.0], &[100.0, 10.0, 0.0], 64);
    assert_eq!(rounded.peak().bytes, 128.0 + 64.0);
}

#[test]
fn buffers_without_a_maker_count_from_the_start() {
    let parts = Parts {
        makers: vec![-1, -1, -1, 1],
        lasting: vec![true, false, false, false],
        uses: vec![always_used(1, 0)],
        ..streams(&[C, C])
    };
    let program = Program::new(parts).unwrap();
    // 8 lasts, 4 is freed after the first task, 2 is never used.
    let replayed = replay(&program, &[1.0, 1.0], &[8.0, 4.0, 2.0, 3.0], 1);
    let peak = Peak {
        bytes: 12.0,
        task: None,
    };
    assert_eq!(replayed.peak(), peak);
}

#[test]
fn a_use_counts_only_under_its_flag() {
    let parts = Parts {
        makers: vec![0, 1],
        lasting: vec![false, false],
        uses: vec![Use {
            buffer: 0,
            task: 1,
            flag: 2,
        }],
        given_flags: 2,
        both: vec![(0, 1)],
        ..streams(&[C, C])
    };
    let program = Program::new(parts).unwrap();
    for (flags, peak) in [([true, true], 5.0), ([true, false], 3.0)] {
        let strategy = Strategy {
            durations_s: &[1.0, 1.0],
            sizes_bytes: &[3.0, 2.0],
            flags: &flags,
        };
        let mut replayer = Replayer::new(&program, 1).unwrap();
        assert_eq!(replayer.replay(strategy).unwrap().peak().bytes, peak);
    }
}

#[test]
fn a_trace_has_times_and_live_buffers() {
    let program = program(
        &[C, M, C],
        &[(0, 1), (1, 2)],
        &[0, 1, 2],
        &[always_used(0, 1)],
    );
    let strategy = Strategy {
        durations_s: &[1.0, 2.0, 4.0],
        sizes_bytes: &[5.0, 7.0, 1.0],
        flags: &[],
    };
    let (replayed, timeline) = Replayer::new(&program, 1).unwrap().trace(strategy).unwrap();
    assert_eq!(timeline.start_s, [0.0, 1.0, 3.0]);
    assert_eq!(timeline.end_s, [1.0, 3.0, 7.0]);
    assert_eq!(timeline.held_bytes, [5.0, 12.0, 1.0]);
    assert_eq!(timeline.at_peak.as_slice(), [[0.into(), 1.into()]]);
    assert_eq!(replayed.peak().bytes, 12.0);
}

#[test]
fn a_task_waits_for_all_its_resources_and_blocks_no_other() {
    // The first move holds card 0; the second one, more urgent than the third, needs both cards.
    let by_rank = [Order::Rank; 2];
    let parts = holding(&by_rank, &[&[0], &[0, 1], &[1]]);
    let (replayed, timeline) = traced(&Program::new(parts).unwrap(), &[4.0, 3.0, 1.0]);
    assert_eq!(timeline.start_s, [0.0, 4.0, 0.0]);
    assert_eq!(replayed.busy_s.as_slice(), [7.0, 4.0]);
}

#[test]
fn a_task_of_two_classes_waits_for_its_turn_on_both() {
    // Each class computes once before the task that both take part in, and once after it.
    let parts = holding(&[Order::Program; 2], &[&[0], &[1], &[0, 1], &[0], &[1]]);
    let (replayed, timeline) = traced(&Program::new(parts).unwrap(), &[1.0, 3.0, 2.0, 1.0, 1.0]);
    assert_eq!(timeline.start_s, [0.0, 0.0, 3.0, 5.0, 5.0]);
    assert_eq!(replayed.busy_s.as_slice(), [4.0, 6.0]);
}

#[test]
fn computing_by_rank_starts_what_most_depends_on() {
    // The second task has the longer rest behind it.
    let dependencies = vec![(1, 2)];
    for (order, time) in [(Order::Program, 8.0), (Order::Rank, 6.0)] {
        let parts = Parts {
            dependencies: dependencies.clone(),
            ..holding(&[order, Order::Rank], &[&[0], &[0], &[1]])
        };
        let (replayed, _) = traced(&Program::new(parts).unwrap(), &[2.0, 1.0, 5.0]);
        assert_eq!(replayed.time_s, time);
    }
}

#[test]
fn a_task_that_exceeds_the_memory_is_passed_over_unless_nothing_else_can_run() {
    // The first task is the most urgent and allocates 8; the second frees what there was before.
    let parts = Parts {
        dependencies: vec![(0, 2)],
        makers: vec![-1, 0],
        lasting: vec![false, false],
        uses: vec![always_used(0, 1), always_used(1, 2)],
        ..holding(&[Order::RankWithinMemory], &[&[0], &[0], &[0]])
    };
    let program = Program::new(parts).unwrap();
    let strategy = Strategy {
        durations_s: &[1.0, 1.0, 1.0],
        sizes_bytes: &[5.0, 8.0],
        flags: &[],
    };
    let start_s = |limit: f64| {
        let replayer = Replayer::new(&program, 1).unwrap();
        let mut replayer = replayer.with_limits(&[limit]).unwrap();
        replayer.trace(strategy).unwrap().1.start_s
    };
    assert_eq!(start_s(13.0), [0.0, 1.0, 2.0]);
    assert_eq!(start_s(12.0), [1.0, 0.0, 2.0]);
    // Nothing else is left to run: 8 is above the limit.
    assert_eq!(start_s(7.0), [1.0, 0.0, 2.0]);
}

#[test]
fn each_device_class_has_a_peak_of_its_own() {
    let parts = Parts {
        makers: vec![0, 0, 1, -1],
        lasting: vec![false, false, false, true],
        device_classes: 2,
        buffer_classes: [0, 1, 1, 0].map(DeviceClassId::from).to_vec(),
        uses: vec![always_used(1, 1)],
        ..streams(&[C, C])
    };
    let program = Program::new(parts).unwrap();
    let strategy = Strategy {
        durations_s: &[1.0, 1.0],
        sizes_bytes: &[1.0, 2.0, 4.0, 8.0],
        flags: &[],
    };
    let mut replayer = Replayer::new(&program, 1).unwrap();
    let (replayed, timeline) = replayer.trace(strategy).unwrap();
    let peak = |bytes, task: u32| Peak {
        bytes,
        task: Some(task.into()),
    };
    assert_eq!(replayed.peaks.as_slice(), [peak(9.0, 0), peak(6.0, 1)]);
    assert_eq!(replayed.peak(), peak(9.0, 0));
    assert_eq!(timeline.held_bytes, [9.0, 2.0, 8.0, 6.0]);
    let at_peak = [[0, 3], [1, 2]].map(|of_class| of_class.map(Into::into).to_vec());
    assert_eq!(timeline.at_peak.as_slice(), at_peak);
}

#[test]
fn a_program_tells_what_a_task_holds_and_who_holds_a_resource() {
    let program = Program::new(holding(&[Order::Rank; 3], &[&[2, 0], &[1], &[0]])).unwrap();
    assert_eq!(program.resources_of(0.into()), [0.into(), 2.into()]);
    assert_eq!(program.tasks_of(0.into()), [0.into(), 2.into()]);
}

/// Returns two tasks, a buffer of the second and one that is there before, which is used by a task.
fn keeping((buffer, kept, flag): (u32, u32, i32), user: u32) -> Parts {
    Parts {
        makers: vec![1, -1],
        lasting: vec![false, false],
        uses: vec![always_used(1, user)],
        keeps: vec![Keep { buffer, kept, flag }],
        ..streams(&[C, C])
    }
}

#[test]
fn malformed_programs_and_costs_are_rejected() {
    let task = streams;
    let bad = [
        task(&[2]),
        holding(&[Order::Rank], &[&[]]),
        holding(&[Order::Rank], &[&[0, 0]]),
        Parts {
            tasks: 1,
            ..task(&[C, C])
        },
        Parts {
            device_classes: 0,
            ..task(&[C])
        },
        Parts {
            makers: vec![0],
            lasting: vec![false],
            buffer_classes: vec![1.into()],
            ..task(&[C])
        },
        Parts {
            makers: vec![0],
            lasting: vec![false],
            device_classes: 2,
            buffer_classes: vec![1.into(), 0.into()],
            ..task(&[C])
        },
        Parts {
            dependencies: vec![(1, 0)],
            ..task(&[C, C])
        },
        Parts {
            makers: vec![1],
            lasting: vec![false],
            ..task(&[C])
        },
        Parts {
            makers: vec![1],
            lasting: vec![false],
            uses: vec![always_used(0, 0)],
            ..task(&[C, C])
        },
        keeping((0, 1, ALWAYS), 1),
        keeping((1, 1, ALWAYS), 1),
        keeping((2, 0, ALWAYS), 1),
        keeping((1, 0, 0), 1),
        keeping((1, 0, -2), 1),
        keeping((1, 0, ALWAYS), 0),
        Parts {
            both: vec![(0, 0)],
            ..task(&[C])
        },
        Parts {
            marks: vec![1],
            ..task(&[C])
        },
    ];
    assert!(Program::new(keeping((1, 0, ALWAYS), 1)).is_ok());
    for parts in bad {
        assert!(Program::new(parts.clone()).is_err(), "{parts:?}");
    }
    let program = program(&[C], &[], &[], &[]);
    assert!(Replayer::new(&program, 0).is_err());
    for limits in [&[][..], &[1.0, 1.0], &[-1.0], &[f64::NAN]] {
        let replayer = Replayer::new(&program, 1).unwrap();
        assert!(replayer.with_limits(limits).is_err(), "{limits:?}");
    }
    for durations in [vec![], vec![f64::NAN], vec![-1.0], vec![f64::INFINITY]] {
        let strategy = Strategy {
            durations_s: &durations,
            sizes_bytes: &[],
            flags: &[],
        };
        let mut replayer = Replayer::new(&program, 1).unwrap();
        assert!(replayer.replay(strategy).is_err(), "{durations:?}");
    }
}

#[test]
fn other_urgencies_take_other_tasks_first() {
    // When 0 ends, 1, 2 and 3 are ready on one resource; 4 waits for 1, 5 for 3, elsewhere.
    let parts = Parts {
        dependencies: vec![(0, 1), (0, 2), (0, 3), (1, 4), (3, 5)],
        ..holding(&[Order::Rank; 2], &[&[0], &[0], &[0], &[0], &[1], &[1]])
    };
    let program = Program::new(parts).unwrap();
    let starts = |urgency: Urgency| {
        let strategy = Strategy {
            durations_s: &[1.0, 3.0, 2.0, 1.0, 1.0, 9.0],
            sizes_bytes: &[],
            flags: &[],
        };
        let mut replayer = Replayer::new(&program, 1).unwrap().with_urgency(urgency);
        let (replayed, timeline) = replayer.trace(strategy).unwrap();
        (timeline.start_s[1..4].to_vec(), replayed.time_s)
    };
    // Upward ranks are 4, 2 and 10; paths up to the ends are 4, 3 and 2 long.
    assert_eq!(starts(Urgency::Upward), (vec![2.0, 5.0, 1.0], 12.0));
    assert_eq!(starts(Urgency::Depth), (vec![4.0, 2.0, 1.0], 12.0));
    assert_eq!(starts(Urgency::Fifo), (vec![1.0, 4.0, 6.0], 16.0));
}

#[test]
fn depths_leave_out_what_does_not_take_part() {
    // Task 1 is void: 2 is ready at once, and as deep as its own duration.
    let parts = Parts {
        dependencies: vec![(0, 1), (1, 2)],
        given_flags: 1,
        conditions: vec![(1, 0)],
        ..holding(&[Order::Rank; 2], &[&[1], &[1], &[0], &[0]])
    };
    let program = Program::new(parts).unwrap();
    let mut replayer = Replayer::new(&program, 1)
        .unwrap()
        .with_urgency(Urgency::Depth);
    for (flag, expected) in [(false, [0.0, 2.0]), (true, [13.0, 0.0])] {
        let strategy = Strategy {
            durations_s: &[5.0, 8.0, 2.0, 3.0],
            sizes_bytes: &[],
            flags: &[flag],
        };
        let (_, timeline) = replayer.trace(strategy).unwrap();
        assert_eq!(timeline.start_s[2..], expected);
    }
}
