//! The proven distance of a staircase from the true frontier, by supporting lines.
//!
//! A weighted minimum z gives a line: every strategy (m, t) has w_m m + w_t t >= z. Between two
//! neighbours p, q of the staircase, a strategy that neither covers within 1+e would have
//! m < m_q / (1+e) and t < t_p / (1+e), hence w_m m + w_t t < (w_m m_q + w_t t_p) / (1+e). If that
//! is at most z for some line, there is no such strategy. At the ends one coordinate suffices.

use crate::model::point::Point;
use crate::model::weights::Weights;

/// Bounds are lowered by this relative margin, so that rounding never makes a claim too strong.
pub const MARGIN: f64 = 1e-9;

/// A supporting line: every strategy costs at least `value` under `weights`.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    pub weights: Weights,
    pub value: f64,
}

impl Line {
    /// Returns the e that this line proves for a corner: (cost of the corner) / z - 1.
    fn gap(&self, memory: f64, time: f64) -> f64 {
        let corner = self.weights.of(memory, time);
        let bound = self.value * (1.0 - MARGIN);
        let is_zero = |weight: f64, cost: f64| weight == 0.0 || cost == 0.0;
        if is_zero(self.weights.memory, memory) && is_zero(self.weights.time, time) {
            0.0
        } else if bound <= 0.0 {
            f64::INFINITY
        } else {
            (corner / bound - 1.0).max(0.0)
        }
    }

    /// Returns a lower bound on the time of any strategy with at most this memory.
    pub fn time_at(&self, memory: f64) -> f64 {
        if self.weights.time <= 0.0 {
            return 0.0;
        }
        let bound = self.value * (1.0 - MARGIN);
        (bound - self.weights.memory * memory) / self.weights.time
    }
}

/// Returns the corners of a staircase as (memory, time), infinite at its ends.
fn corners(points: &[Point]) -> impl Iterator<Item = (f64, f64)> + '_ {
    (0..=points.len()).map(|i| {
        let time = if i == 0 {
            f64::INFINITY
        } else {
            points[i - 1].time
        };
        let memory = points.get(i).map_or(f64::INFINITY, |p| p.memory);
        (memory, time)
    })
}

/// Returns the e that is proven for one corner, by the best line.
pub fn corner_gap(lines: &[Line], memory: f64, time: f64) -> f64 {
    lines
        .iter()
        .filter(|line| {
            (memory.is_finite() || line.weights.memory == 0.0)
                && (time.is_finite() || line.weights.time == 0.0)
        })
        .map(|line| {
            let (m, t) = (
                if memory.is_finite() { memory } else { 0.0 },
                if time.is_finite() { time } else { 0.0 },
            );
            line.gap(m, t)
        })
        .fold(f64::INFINITY, f64::min)
}

/// Returns the certificate of points that ascend in memory, and its worst corner (0 is the one
/// before the first point).
///
/// The certificate is infinite when the lines prove nothing or there are no points.
pub fn certify(points: &[Point], lines: &[Line]) -> (f64, usize) {
    if points.is_empty() {
        return (f64::INFINITY, 0);
    }
    corners(points)
        .map(|(memory, time)| corner_gap(lines, memory, time))
        .enumerate()
        .fold(
            (0.0, 0),
            |worst, (i, gap)| {
                if gap > worst.0 {
                    (gap, i)
                } else {
                    worst
                }
            },
        )
}
