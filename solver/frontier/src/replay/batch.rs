//! Replays of several strategies of one program.

use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::ids::Id;
use crate::replay::cells::{Sheet, StrategyId};
use crate::replay::outcome::Replayed;
use crate::replay::program::Program;
use crate::replay::replayer::Replayer;
use crate::replay::restricted::Restricted;
use crate::replay::strategy::{bad_cost, check_costs, check_lengths, is_bad, Strategy};
use crate::replay::urgency::Urgency;

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
    let restricted = Restricted::new(program, batch);
    let each = strategies.div_ceil(rayon::current_num_threads());
    let starts: Vec<usize> = (0..strategies).step_by(each.max(1)).collect();
    let parts: Result<Vec<Vec<Replayed>>, SolveError> = starts
        .into_par_iter()
        .map(|start| {
            let mut replayer = settings.replayer(&restricted.program)?;
            let mut values = restricted.first();
            let part = (start..strategies.min(start + each)).map(StrategyId::new);
            let replayed = part.map(|strategy| {
                let replayed = restricted.with(strategy, &mut values, |of| replayer.run(of));
                restricted.renumbered(replayed)
            });
            Ok(replayed.collect())
        })
        .collect();
    Ok(parts?.into_iter().flatten().collect())
}
