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
    let (durations, sizes) = (strategy.durations_s, strategy.sizes_bytes);
    check_lengths(
        program,
        [durations.len(), sizes.len(), strategy.flags.len()],
    )?;
    check_costs(durations)?;
    check_costs(sizes)
}

/// Rejects numbers of durations, sizes and flags that do not fit the program.
pub fn check_lengths(program: &Program, given: [usize; 3]) -> Result<(), SolveError> {
    let needed = [program.tasks(), program.buffers(), program.flags()];
    for ((what, given), needed) in ["durations", "sizes", "flags"]
        .iter()
        .zip(given)
        .zip(needed)
    {
        if given != needed {
            return Err(SolveError::Invalid(format!(
                "expected {needed} {what}, got {given}"
            )));
        }
    }
    Ok(())
}

/// Rejects costs that are negative or not finite.
pub fn check_costs(costs: &[f64]) -> Result<(), SolveError> {
    // Counting looks at several costs at a time.
    let bad = costs.iter().map(|cost| u64::from(is_bad(*cost)));
    if bad.sum::<u64>() > 0 {
        let mut bad = costs.iter().filter(|cost| is_bad(**cost));
        return Err(bad_cost(bad.next().copied().unwrap_or(f64::NAN)));
    }
    Ok(())
}

/// Returns whether a cost is negative or not finite.
#[inline]
pub fn is_bad(cost: f64) -> bool {
    !cost.is_finite() | (cost < 0.0)
}

/// Returns the error of a cost that is negative or not finite.
pub fn bad_cost(cost: f64) -> SolveError {
    SolveError::Invalid(format!(
        "durations and sizes must be finite and not negative, got {cost}"
    ))
}
