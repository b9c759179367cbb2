//! Positions of a table's cells: row-major places, and strides from a result into a factor.

/// Strides from the places of a step's result to the cells of a factor.
pub struct Strides {
    /// The stride of each axis of the result; 0 where the factor does not depend on it.
    axes: Vec<usize>,
    /// The stride of the eliminated operator.
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

    /// Returns the factor's cell at a place of the result and the eliminated operator's first
    /// choice.
    pub fn start(&self, place: &[usize]) -> usize {
        place.iter().zip(&self.axes).map(|(p, s)| p * s).sum()
    }
}

/// Returns the place of a cell in a row-major table of extents `dims`.
pub fn unravel(mut cell: usize, dims: &[usize]) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (at, dim) in place.iter_mut().zip(dims).rev() {
        *at = cell % dim;
        cell /= dim;
    }
    place
}
