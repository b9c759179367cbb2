//! Lists of items by key.

use std::marker::PhantomData;

use crate::model::ids::Id;

/// One list of items per key, all in one vector.
#[derive(Debug, Clone)]
pub struct Lists<K, T> {
    starts: Vec<u32>,
    items: Vec<T>,
    keys: PhantomData<fn(K)>,
}

impl<K: Id, T: Copy> Lists<K, T> {
    /// Groups (key, item) pairs into the lists of `count` keys, each in the order of the pairs.
    pub fn group(count: usize, pairs: impl Iterator<Item = (K, T)> + Clone) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for (key, _) in pairs.clone() {
            starts[key.index() + 1] += 1;
        }
        for key in 0..count {
            starts[key + 1] += starts[key];
        }
        let mut next = starts.clone();
        let mut items: Vec<Option<T>> = vec![None; starts[count] as usize];
        for (key, item) in pairs {
            let next = &mut next[key.index()];
            items[*next as usize] = Some(item);
            *next += 1;
        }
        let items = items.into_iter().flatten().collect();
        Self {
            starts,
            items,
            keys: PhantomData,
        }
    }

    /// Returns the list of a key.
    pub fn of(&self, key: K) -> &[T] {
        let at = key.index();
        &self.items[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}
