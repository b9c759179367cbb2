//! Where the cells of a table stand: row-major places, and views of a factor from a result.

/// Where a step's result finds the cells of a factor.
pub struct Strides {
    /// Of each axis of the result; 0 where the factor does not depend on it.
    axes: Vec<usize>,
    /// Of the eliminated operator.
    pub along: usize,
}

impl Strides {
    /// Returns the strides of a factor of extents `dims` whose axes go to `places` of a result with
    /// `axes` axes.
    pub fn new(dims: &[usize], places: &[Option<usize>], axes: usize) -> Self {
        let mut strides = Self {
            axes: vec![0; axes],
            along: 0,
        };
        let mut stride = 1;
        for (place, dim) in places.iter().zip(dims).rev() {
            match place {
                Some(axis) => strides.axes[*axis] = stride,
                None => strides.along = stride,
            }
            stride *= dim;
        }
        strides
    }

    /// Returns the factor's cell for a place of the result and the eliminated operator's first choice.
    pub fn start(&self, place: &[usize]) -> usize {
        place.iter().zip(&self.axes).map(|(p, s)| p * s).sum()
    }
}

/// Returns the place of a cell in a table of such extents, row-major.
pub fn unravel(mut cell: usize, dims: &[usize]) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at = cell % dim;
        cell /= dim;
    }
    place
}
