//! Replays of several strategies of one program.

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::Id;
use crate::replay::cells::{Sheet, StrategyId};
use crate::replay::columns::Columns;
use crate::replay::outcome::Replayed;
use crate::replay::program::Program;
use crate::replay::replayer::Replayer;
use crate::replay::restricted::Restricted;
use crate::replay::strategy::{bad_cost, check_costs, check_lengths, is_bad, Strategy};
use crate::replay::urgency::Urgency;

/// The number of strategies from which on what none of them needs is left out first. Of a step of
/// Llama 3 70B, finding that takes as long as two and a half replays, and saves half of each.
const WORTH_RESTRICTING: usize = 6;

/// What a replay depends on besides the program and the strategy.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'l> {
    /// What the allocator rounds every buffer up to.
    pub block_bytes: u64,
    /// The memory of each device class; without, there is no limit.
    pub limits_bytes: Option<&'l [f64]>,
    pub urgency: Urgency,
}

impl Settings<'_> {
    /// Returns what replays strategies of a program.
    ///
    /// # Errors
    ///
    /// Returns those of [`Replayer::new`] and [`Replayer::with_limits`].
    pub fn replayer<'p>(&self, program: &'p Program) -> Result<Replayer<'p>, SolveError> {
        let replayer = Replayer::new(program, self.block_bytes)?.with_urgency(self.urgency);
        match self.limits_bytes {
            Some(limits) => replayer.with_limits(limits),
            None => Ok(replayer),
        }
    }
}

/// The values of several strategies; flags are set where they are not 0.
#[derive(Debug)]
pub struct Batch {
    pub durations_s: Sheet,
    pub sizes_bytes: Sheet,
    pub flags: Sheet,
}

impl Batch {
    /// Returns the values of strategies that are given one by one.
    ///
    /// # Errors
    ///
    /// Rejects lists whose lengths do not fit the program.
    pub fn of(program: &Program, strategies: &[Strategy]) -> Result<Self, SolveError> {
        for of in strategies {
            let given = [of.durations_s.len(), of.sizes_bytes.len(), of.flags.len()];
            check_lengths(program, given)?;
        }
        let durations: Vec<&[f64]> = strategies.iter().map(|of| of.durations_s).collect();
        let sizes: Vec<&[f64]> = strategies.iter().map(|of| of.sizes_bytes).collect();
        let flags: Vec<Vec<f64>> = strategies
            .iter()
            .map(|of| of.flags.iter().map(|f| f64::from(u8::from(*f))).collect())
            .collect();
        let flags: Vec<&[f64]> = flags.iter().map(Vec::as_slice).collect();
        Ok(Self {
            durations_s: Sheet::of_rows(&durations),
            sizes_bytes: Sheet::of_rows(&sizes),
            flags: Sheet::of_rows(&flags),
        })
    }

    /// Rejects costs that are negative or not finite, and lists whose lengths do not fit.
    fn check(&self, program: &Program) -> Result<(), SolveError> {
        let (durations, sizes) = (&self.durations_s, &self.sizes_bytes);
        let given = [
            durations.first.len(),
            sizes.first.len(),
            self.flags.first.len(),
        ];
        check_lengths(program, given)?;
        for sheet in [durations, sizes] {
            check_costs(&sheet.first)?;
            if let Some((_, bad)) = sheet.others().iter().find(|(_, cost)| is_bad(*cost)) {
                return Err(bad_cost(*bad));
            }
        }
        Ok(())
    }
}

/// Returns what [`Replayer::replay`] does of each strategy.
///
/// # Errors
///
/// Returns those of [`Settings::replayer`] and [`Replayer::replay`].
pub fn replay_all(
    program: &Program,
    batch: &Batch,
    settings: &Settings,
) -> Result<Vec<Replayed>, SolveError> {
    let strategies = batch.durations_s.strategies();
    if strategies == 0 {
        settings.replayer(program)?;
        return Ok(Vec::new());
    }
    batch.check(program)?;
    if strategies < WORTH_RESTRICTING {
        return replay_each(program, &Columns::of_all(batch), strategies, settings);
    }
    let restricted = Restricted::new(program, batch);
    let replayed = replay_each(
        &restricted.program,
        &restricted.values,
        strategies,
        settings,
    )?;
    Ok(replayed
        .into_iter()
        .map(|of| restricted.renumbered(of))
        .collect())
}

/// Replays strategies one by one, as many side by side as there are threads.
fn replay_each(
    program: &Program,
    columns: &Columns,
    strategies: usize,
    settings: &Settings,
) -> Result<Vec<Replayed>, SolveError> {
    let each = strategies.div_ceil(rayon::current_num_threads()).max(1);
    let starts: Vec<usize> = (0..strategies).step_by(each).collect();
    let parts: Result<Vec<Vec<Replayed>>, SolveError> = starts
        .into_par_iter()
        .map(|start| {
            let mut replayer = settings.replayer(program)?;
            let mut values = columns.first();
            let part = (start..strategies.min(start + each)).map(StrategyId::new);
            let replayed =
                part.map(|strategy| columns.with(strategy, &mut values, |of| replayer.run(of)));
            Ok(replayed.collect())
        })
        .collect();
    Ok(parts?.into_iter().flatten().collect())
}
