//! Compares replay with hand-made schedules and with a slow simulator.

use frontier::replay::{
    Parts, Program, Replayed, Replayer, Strategy, Use, ALWAYS, COMMUNICATION, COMPUTE,
};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest, Just, ProptestConfig};
use proptest::strategy::Strategy as Generator;

const C: u8 = COMPUTE;
const M: u8 = COMMUNICATION;

fn always_used(buffer: u32, task: u32) -> Use {
    Use {
        buffer,
        task,
        flag: ALWAYS,
    }
}

fn program(streams: &[u8], dependencies: &[(u32, u32)], makers: &[i32], uses: &[Use]) -> Program {
    let parts = Parts {
        streams: streams.to_vec(),
        dependencies: dependencies.to_vec(),
        makers: makers.to_vec(),
        lasting: makers.iter().map(|_| false).collect(),
        uses: uses.to_vec(),
        ..Parts::default()
    };
    Program::new(parts).unwrap()
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
    assert_eq!((replayed.compute_s, replayed.communication_s), (5.0, 3.0));
    assert_eq!(replayed.exposed_s, 1.0);
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
    assert_eq!(
        (replayed.peak_bytes, replayed.peak_task),
        (110.0, Some(1.into()))
    );
    let rounded = replay(&program, &[1.0, 1.0, 1.0], &[100.0, 10.0, 0.0], 64);
    assert_eq!(rounded.peak_bytes, 128.0 + 64.0);
}

#[test]
fn buffers_without_a_maker_count_from_the_start() {
    let parts = Parts {
        streams: vec![C, C],
        makers: vec![-1, -1, -1, 1],
        lasting: vec![true, false, false, false],
        uses: vec![always_used(1, 0)],
        ..Parts::default()
    };
    let program = Program::new(parts).unwrap();
    // 8 lasts, 4 is freed after the first task, 2 is never used.
    let replayed = replay(&program, &[1.0, 1.0], &[8.0, 4.0, 2.0, 3.0], 1);
    assert_eq!((replayed.peak_bytes, replayed.peak_task), (12.0, None));
}

#[test]
fn a_use_counts_only_under_its_flag() {
    let parts = Parts {
        streams: vec![C, C],
        makers: vec![0, 1],
        lasting: vec![false, false],
        uses: vec![Use {
            buffer: 0,
            task: 1,
            flag: 2,
        }],
        given_flags: 2,
        both: vec![(0, 1)],
        ..Parts::default()
    };
    let program = Program::new(parts).unwrap();
    for (flags, peak) in [([true, true], 5.0), ([true, false], 3.0)] {
        let strategy = Strategy {
            durations_s: &[1.0, 1.0],
            sizes_bytes: &[3.0, 2.0],
            flags: &flags,
        };
        let mut replayer = Replayer::new(&program, 1).unwrap();
        assert_eq!(replayer.replay(strategy).unwrap().peak_bytes, peak);
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
    assert_eq!(timeline.at_peak, [0.into(), 1.into()]);
    assert_eq!(replayed.peak_bytes, 12.0);
}

#[test]
fn malformed_programs_and_costs_are_rejected() {
    let task = |streams: &[u8]| Parts {
        streams: streams.to_vec(),
        ..Parts::default()
    };
    let bad = [
        task(&[2]),
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
        Parts {
            both: vec![(0, 0)],
            ..task(&[C])
        },
        Parts {
            marks: vec![1],
            ..task(&[C])
        },
    ];
    for parts in bad {
        assert!(Program::new(parts.clone()).is_err(), "{parts:?}");
    }
    let program = program(&[C], &[], &[], &[]);
    assert!(Replayer::new(&program, 0).is_err());
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

/// A program with the values of one strategy.
#[derive(Debug, Clone)]
struct Instance {
    parts: Parts,
    durations: Vec<f64>,
    sizes: Vec<f64>,
    flags: Vec<bool>,
    block: u64,
}

fn instances() -> impl Generator<Value = Instance> {
    (1_usize..20, 0_usize..16).prop_flat_map(|(tasks, buffers)| {
        let all = tasks as u32;
        let flags = (any::<bool>(), any::<bool>());
        (
            prop::collection::vec((0_u8..2, 0_u32..5, 1_u32..1_000_000), tasks),
            prop::collection::vec((0..all, 0..all), 0..3 * tasks),
            prop::collection::vec((-1..tasks as i32, any::<bool>(), 0_u32..5000), buffers),
            prop::collection::vec((0..16_u32, 0..all, -1_i32..3), 0..40),
            flags,
            prop::sample::select(vec![1_u64, 64, 512]),
            Just(tasks),
        )
            .prop_map(|(tasks, pairs, buffers, uses, flags, block, count)| {
                let durations: Vec<f64> = tasks
                    .iter()
                    .map(|&(_, kind, n)| {
                        if kind == 0 {
                            0.0
                        } else {
                            f64::from(n) * 1.7e-5
                        }
                    })
                    .collect();
                let streams: Vec<u8> = tasks.iter().map(|t| t.0).collect();
                let dependencies = pairs
                    .into_iter()
                    .filter(|(a, b)| a != b)
                    .map(|(a, b)| (a.min(b), a.max(b)))
                    .collect();
                // The order of moves that take no time at the same moment is unspecified, so they
                // allocate nothing here.
                let makers: Vec<i32> = buffers
                    .iter()
                    .map(|&(maker, ..)| match usize::try_from(maker) {
                        Ok(m) if streams[m] == M && durations[m] == 0.0 => -1,
                        _ => maker,
                    })
                    .collect();
                let uses = uses
                    .into_iter()
                    .filter(|&(b, t, _)| {
                        (b as usize) < makers.len() && makers[b as usize] <= t as i32
                    })
                    .map(|(buffer, task, flag)| Use { buffer, task, flag })
                    .collect();
                let parts = Parts {
                    streams,
                    dependencies,
                    lasting: buffers.iter().map(|b| b.1).collect(),
                    makers,
                    uses,
                    given_flags: 2,
                    both: vec![(0, 1)],
                    marks: vec![count as u32 - 1],
                };
                Instance {
                    parts,
                    durations,
                    sizes: buffers.iter().map(|b| f64::from(b.2)).collect(),
                    flags: vec![flags.0, flags.1],
                    block,
                }
            })
    })
}

/// A simulator without heaps and counters, which scans all tasks at every moment.
struct Slow<'a> {
    given: &'a Instance,
    started: Vec<Option<f64>>,
    ended: Vec<Option<f64>>,
    peak: f64,
}

impl Slow<'_> {
    fn rank(&self, task: usize) -> f64 {
        let parts = &self.given.parts;
        let mut longest = 0.0_f64;
        for later in task + 1..parts.streams.len() {
            let depends = parts.dependencies.contains(&(task as u32, later as u32));
            let both_compute = parts.streams[task] == C && parts.streams[later] == C;
            let next = both_compute && !parts.streams[task + 1..later].contains(&C);
            if depends || next {
                longest = longest.max(self.rank(later));
            }
        }
        longest + self.given.durations[task]
    }

    fn ready(&self, task: usize) -> bool {
        let parts = &self.given.parts;
        let after = parts.dependencies.iter().filter(|d| d.1 as usize == task);
        let mut before: Vec<usize> = after.map(|d| d.0 as usize).collect();
        if parts.streams[task] == C {
            before.extend((0..task).filter(|&t| parts.streams[t] == C));
        }
        self.started[task].is_none() && before.iter().all(|&t| self.ended[t].is_some())
    }

    fn busy(&self, stream: u8) -> bool {
        let tasks = 0..self.started.len();
        let mut of = tasks.filter(|&t| self.given.parts.streams[t] == stream);
        of.any(|t| self.started[t].is_some() && self.ended[t].is_none())
    }

    fn held_bytes(&self) -> f64 {
        let parts = &self.given.parts;
        let set = |flag: i32| match flag {
            ALWAYS => true,
            2 => self.given.flags[0] && self.given.flags[1],
            other => self.given.flags[other as usize],
        };
        let mut total = 0.0;
        for buffer in 0..parts.makers.len() {
            let mut users: Vec<usize> = parts
                .uses
                .iter()
                .filter(|u| u.buffer as usize == buffer && set(u.flag))
                .map(|u| u.task as usize)
                .collect();
            let allocated = match usize::try_from(parts.makers[buffer]) {
                Ok(maker) => {
                    users.push(maker);
                    self.started[maker].is_some()
                }
                Err(_) => true,
            };
            let wanted = users.iter().any(|&t| self.ended[t].is_none());
            if allocated && (wanted || parts.lasting[buffer]) {
                let block = self.given.block as f64;
                total += (self.given.sizes[buffer] / block).ceil() * block;
            }
        }
        total
    }

    fn start(&mut self, task: usize, now: f64) {
        self.started[task] = Some(now);
        self.peak = self.peak.max(self.held_bytes());
        if self.given.durations[task] == 0.0 {
            self.ended[task] = Some(now);
        }
    }

    fn run(mut self) -> (f64, f64) {
        let tasks = self.started.len();
        let stream = |task: usize| self.given.parts.streams[task];
        self.peak = self.held_bytes();
        let mut now = 0.0_f64;
        loop {
            let free = |t: &usize| stream(*t) == M && self.given.durations[*t] == 0.0;
            let next = (0..tasks)
                .find(|t| free(t) && self.ready(*t))
                .or_else(|| (0..tasks).find(|&t| stream(t) == C && !self.busy(C) && self.ready(t)))
                .or_else(|| {
                    let moves = (0..tasks).filter(|&t| stream(t) == M && self.ready(t));
                    let urgent = moves.min_by(|&a, &b| self.rank(b).total_cmp(&self.rank(a)));
                    urgent.filter(|_| !self.busy(M))
                });
            if let Some(task) = next {
                self.start(task, now);
                continue;
            }
            let running =
                (0..tasks).filter(|&t| self.started[t].is_some() && self.ended[t].is_none());
            let ends = running.map(|t| (self.started[t].unwrap() + self.given.durations[t], t));
            let Some((end, task)) = ends.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                break;
            };
            now = end;
            self.ended[task] = Some(end);
        }
        (self.peak, now)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn agrees_with_the_slow_simulator(given in instances()) {
        let program = Program::new(given.parts.clone()).unwrap();
        let strategy = Strategy {
            durations_s: &given.durations,
            sizes_bytes: &given.sizes,
            flags: &given.flags,
        };
        let mut replayer = Replayer::new(&program, given.block).unwrap();
        let replayed = replayer.replay(strategy).unwrap();
        let tasks = given.durations.len();
        let slow = Slow {
            given: &given,
            started: vec![None; tasks],
            ended: vec![None; tasks],
            peak: 0.0,
        };
        let (peak, time) = slow.run();
        prop_assert_eq!(replayed.peak_bytes, peak);
        prop_assert!((replayed.time_s - time).abs() <= 1e-9 * time);
        // Replaying twice gives the same result, and tracing does not change it.
        prop_assert_eq!(&replayer.replay(strategy).unwrap(), &replayed);
        let (traced, timeline) = replayer.trace(strategy).unwrap();
        prop_assert_eq!(&traced, &replayed);
        prop_assert_eq!(timeline.end_s[tasks - 1], replayed.marks_s[0]);
    }

    #[test]
    fn time_and_memory_keep_their_bounds(given in instances()) {
        let program = Program::new(given.parts.clone()).unwrap();
        let strategy = Strategy {
            durations_s: &given.durations,
            sizes_bytes: &given.sizes,
            flags: &given.flags,
        };
        let replayed = Replayer::new(&program, given.block).unwrap().replay(strategy).unwrap();
        let sum: f64 = given.durations.iter().sum();
        prop_assert!(replayed.time_s <= sum * (1.0 + 1e-12));
        let busiest = replayed.compute_s.max(replayed.communication_s);
        prop_assert!(replayed.time_s >= busiest * (1.0 - 1e-12));
        prop_assert!((replayed.compute_s + replayed.communication_s - sum).abs() <= 1e-9 * sum);
        let rest = replayed.time_s - replayed.compute_s - replayed.exposed_s;
        prop_assert!(rest.abs() <= 1e-9 * sum);
        prop_assert!(replayed.exposed_s <= replayed.communication_s * (1.0 + 1e-9) + 1e-12);
        let slow = Slow { given: &given, started: vec![], ended: vec![], peak: 0.0 };
        let critical = (0..given.durations.len()).map(|t| slow.rank(t)).fold(0.0, f64::max);
        prop_assert!(replayed.time_s >= critical * (1.0 - 1e-12));
        let block = given.block as f64;
        let lasting = given.parts.lasting.iter().zip(&given.parts.makers).zip(&given.sizes);
        let before: f64 = lasting
            .filter(|((lasts, maker), _)| **lasts && **maker < 0)
            .map(|(_, size)| (size / block).ceil() * block)
            .sum();
        prop_assert!(replayed.peak_bytes >= before);
        // Larger blocks never need less memory.
        let fine = Replayer::new(&program, 1).unwrap().replay(strategy).unwrap();
        prop_assert!(replayed.peak_bytes >= fine.peak_bytes);
    }
}
