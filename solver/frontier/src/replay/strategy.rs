//! The values of one strategy.

use crate::model::error::SolveError;
use crate::replay::program::Program;

/// The values of one strategy: seconds per task, bytes per buffer, and flags.
#[derive(Debug, Clone, Copy)]
pub struct Strategy<'a> {
    pub durations_s: &'a [f64],
    pub sizes_bytes: &'a [f64],
    pub flags: &'a [bool],
}

/// Rejects costs that are negative or not finite, and lists whose lengths do not fit the program.
pub fn check(program: &Program, strategy: Strategy) -> Result<(), SolveError> {
    let invalid = |text: String| Err(SolveError::Invalid(text));
    for (what, given, needed) in [
        ("durations", strategy.durations_s.len(), program.tasks()),
        ("sizes", strategy.sizes_bytes.len(), program.buffers()),
        ("flags", strategy.flags.len(), program.flags()),
    ] {
        if given != needed {
            return invalid(format!("expected {needed} {what}, got {given}"));
        }
    }
    for costs in [strategy.durations_s, strategy.sizes_bytes] {
        // Counting looks at several costs at a time.
        let is_bad = |cost: &f64| !cost.is_finite() | (*cost < 0.0);
        if costs
            .iter()
            .map(|cost| u64::from(is_bad(cost)))
            .sum::<u64>()
            > 0
        {
            let bad = costs.iter().find(|cost| is_bad(cost)).unwrap_or(&f64::NAN);
            return invalid(format!(
                "durations and sizes must be finite and not negative, got {bad}"
            ));
        }
    }
    Ok(())
}
