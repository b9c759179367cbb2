//! The inner loop of scalar minimisation: eliminates one operator from the tables that touch it.

use std::borrow::Cow;

use pulp::Arch;
use rayon::prelude::*;

use crate::model::error::SolveError;
use crate::model::watch::Watch;
use crate::tracking::strides::unravel;

/// The least work of a parallel task (cells times choices).
const TASK: usize = 1 << 16;
/// Choices that are compared at once, so that a cell is read and written once for all of them.
const BLOCK: usize = 4;

/// Returns min over k of own(k) + the factors at k, for every cell of the neighbours' choices.
///
/// # Errors
///
/// Returns an error when the solve must stop.
pub fn step_table(
    own: &[f64],
    factors: &[Laid],
    dims: &[usize],
    watch: &Watch,
) -> Result<Vec<f64>, SolveError> {
    let Some((&inner, outer)) = dims.split_last() else {
        let alone = |k: usize| own[k] + factors.iter().map(|f| f.data[k]).sum::<f64>();
        return Ok(vec![(0..own.len())
            .map(alone)
            .fold(f64::INFINITY, f64::min)]);
    };
    let (along, across): (Vec<&Laid>, Vec<&Laid>) = factors.iter().partition(|f| f.has_inner);
    let mut out = vec![f64::INFINITY; outer.iter().product::<usize>() * inner];
    let arch = Arch::new();
    let rows_per_task = (TASK / (inner * own.len()).max(1)).max(1);
    out.par_chunks_mut(inner)
        .enumerate()
        .with_min_len(rows_per_task)
        .try_for_each(|(row, best)| {
            if row % rows_per_task == 0 {
                watch.poll("bounding", 0.5)?;
            }
            let place = unravel(row, outer);
            let starts: Vec<usize> = along.iter().map(|f| f.offset(&place)).collect();
            let across: Vec<(&Laid, usize)> =
                across.iter().map(|f| (*f, f.offset(&place))).collect();
            arch.dispatch(|| lower_all(best, own, &along, &starts, &across));
            Ok(())
        })?;
    Ok(out)
}

/// Lowers `best` to own(k) + the factors at k, for every k.
///
/// Inlined, so that it is compiled for the vectors of the machine that it runs on.
#[inline(always)]
fn lower_all(
    best: &mut [f64],
    own: &[f64],
    along: &[&Laid],
    starts: &[usize],
    across: &[(&Laid, usize)],
) {
    let inner = best.len();
    let base = |k: usize| own[k] + across.iter().map(|(f, at)| f.data[at + k]).sum::<f64>();
    let line = |f: usize, k: usize| &along[f].data[starts[f] + k * inner..][..inner];
    let blocked = own.len() - own.len() % BLOCK;
    match along.len() {
        1 => {
            for k in (0..blocked).step_by(BLOCK) {
                let bases: [f64; BLOCK] = std::array::from_fn(|i| base(k + i));
                let lines: [&[f64]; BLOCK] = std::array::from_fn(|i| line(0, k + i));
                for (j, best) in best.iter_mut().enumerate() {
                    let mut least = *best;
                    for i in 0..BLOCK {
                        least = lesser(bases[i] + lines[i][j], least);
                    }
                    *best = least;
                }
            }
        }
        2 => {
            for k in (0..blocked).step_by(BLOCK) {
                let bases: [f64; BLOCK] = std::array::from_fn(|i| base(k + i));
                let first: [&[f64]; BLOCK] = std::array::from_fn(|i| line(0, k + i));
                let second: [&[f64]; BLOCK] = std::array::from_fn(|i| line(1, k + i));
                for (j, best) in best.iter_mut().enumerate() {
                    let mut least = *best;
                    for i in 0..BLOCK {
                        least = lesser(bases[i] + first[i][j] + second[i][j], least);
                    }
                    *best = least;
                }
            }
        }
        _ => {
            let mut sum = vec![0.0; inner];
            for k in 0..own.len() {
                sum.fill(base(k));
                for f in 0..along.len() {
                    for (sum, cell) in sum.iter_mut().zip(line(f, k)) {
                        *sum += cell;
                    }
                }
                for (best, sum) in best.iter_mut().zip(&sum) {
                    *best = lesser(*sum, *best);
                }
            }
            return;
        }
    }
    for k in blocked..own.len() {
        let base = base(k);
        for (j, best) in best.iter_mut().enumerate() {
            let around: f64 =
                (1..along.len()).fold(base + line(0, k)[j], |sum, f| sum + line(f, k)[j]);
            *best = lesser(around, *best);
        }
    }
}

/// Returns the lesser of two costs.
///
/// Not `f64::min`: its handling of NaN, which costs never are, keeps loops from vectorising.
#[inline(always)]
fn lesser(candidate: f64, best: f64) -> f64 {
    if candidate < best {
        candidate
    } else {
        best
    }
}

/// A factor's table laid out for the loops: outer axes, then the eliminated operator, then the
/// innermost axis if the factor has it.
pub struct Laid<'a> {
    data: Cow<'a, [f64]>,
    /// The stride of each outer axis; 0 where the factor does not depend on it.
    strides: Vec<usize>,
    has_inner: bool,
}

impl<'a> Laid<'a> {
    /// Lays out a factor of extents `dims` whose axes go to `places` of a result with `axes` axes.
    pub fn new(data: &'a [f64], dims: &[usize], places: &[Option<usize>], axes: usize) -> Self {
        // Sorted by target axis; the eliminated operator comes right before the innermost axis.
        let rank = |place: &Option<usize>| match place {
            None => 2 * axes.saturating_sub(1),
            Some(axis) if axis + 1 == axes => 2 * axes,
            Some(axis) => 2 * axis,
        };
        let mut order: Vec<usize> = (0..dims.len()).collect();
        order.sort_by_key(|a| rank(&places[*a]));
        let mut strides = vec![0; axes.saturating_sub(1)];
        let mut stride = 1;
        for &a in order.iter().rev() {
            match places[a] {
                Some(axis) if axis + 1 < axes => strides[axis] = stride,
                _ => {}
            }
            stride *= dims[a];
        }
        let in_order = order.windows(2).all(|w| w[0] < w[1]);
        Self {
            data: if in_order {
                data.into()
            } else {
                permuted(data, dims, &order).into()
            },
            strides,
            has_inner: axes > 0 && places.contains(&Some(axes - 1)),
        }
    }

    /// Returns the offset of the data at a place on the outer axes.
    fn offset(&self, place: &[usize]) -> usize {
        place.iter().zip(&self.strides).map(|(p, s)| p * s).sum()
    }
}

/// Returns `data` of shape `dims` with its axes in another order.
fn permuted(data: &[f64], dims: &[usize], order: &[usize]) -> Vec<f64> {
    let mut strides = vec![1; dims.len()];
    for a in (1..dims.len()).rev() {
        strides[a - 1] = strides[a] * dims[a];
    }
    let mut from = vec![0];
    for &a in order {
        let (dim, stride) = (dims[a], strides[a]);
        from = from
            .iter()
            .flat_map(|start| (0..dim).map(move |i| start + i * stride))
            .collect();
    }
    from.into_iter().map(|at| data[at]).collect()
}
