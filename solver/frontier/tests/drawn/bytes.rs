//! The source of decisions for random problems.

/// A stream of bytes: either given bytes followed by zeros, or an endless stream seeded by a
/// number.
pub enum Bytes<'a> {
    Given(std::slice::Iter<'a, u8>),
    Numbered(u64),
}

impl<'a> Bytes<'a> {
    pub fn of(data: &'a [u8]) -> Self {
        Self::Given(data.iter())
    }

    pub fn numbered(number: u64) -> Self {
        Self::Numbered(number.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn byte(&mut self) -> u8 {
        match self {
            Self::Given(rest) => rest.next().copied().unwrap_or(0),
            Self::Numbered(state) => {
                // splitmix64
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) >> 56) as u8
            }
        }
    }

    /// Returns a number below `n`, which is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        self.byte() as usize % n
    }

    /// Returns true in about one of `n` draws.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a number from 0 to 1 with all the digits that a cost may have.
    pub fn fraction(&mut self) -> f64 {
        let wide = (0..7).fold(0u64, |wide, _| wide << 8 | u64::from(self.byte()));
        wide as f64 / (1u64 << 56) as f64
    }
}
