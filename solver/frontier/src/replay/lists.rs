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

    /// Returns no lists; [`Lists::close`] adds one.
    pub fn none() -> Self {
        Self {
            starts: vec![0],
            items: Vec::new(),
            keys: PhantomData,
        }
    }

    /// Adds an item to the list of the next key.
    pub fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Ends the list of the next key.
    pub fn close(&mut self) {
        self.starts.push(self.items.len() as u32);
    }

    /// Returns the lists of some keys, numbered anew in this order, with what `of` makes of their
    /// items.
    pub fn of_keys<L: Id, U: Copy>(
        &self,
        keys: impl Iterator<Item = K>,
        mut of: impl FnMut(T) -> Option<U>,
    ) -> Lists<L, U> {
        let mut lists = Lists::none();
        lists.starts.reserve(keys.size_hint().0);
        lists.items.reserve(self.items.len());
        for key in keys {
            let items = self.of(key).iter();
            lists.items.extend(items.filter_map(|item| of(*item)));
            lists.close();
        }
        lists
    }

    /// Keeps the items of which `keep` is true, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(K, T) -> bool) {
        let (mut end, mut start) = (0, 0);
        for key in 0..self.starts.len() - 1 {
            let next = self.starts[key + 1] as usize;
            for at in start..next {
                let item = self.items[at];
                if keep(K::new(key), item) {
                    self.items[end] = item;
                    end += 1;
                }
            }
            start = next;
            self.starts[key + 1] = end as u32;
        }
        self.items.truncate(end);
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the items of all keys, one list after the other.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// Returns the list of a key.
    #[inline]
    pub fn of(&self, key: K) -> &[T] {
        let at = key.index();
        &self.items[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}
