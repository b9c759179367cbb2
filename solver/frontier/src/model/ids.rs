//! Typed ids: the list that a number indexes is part of its type.
//!
//! An [`IdVec`] is a list that can only be indexed by ids of its own kind, so that an operator's
//! number cannot be mistaken for a table's. Ids are as wide as plain numbers and cost nothing.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A number that identifies a position in one kind of list.
pub trait Id: Copy {
    /// Returns the id of position `index`.
    fn new(index: usize) -> Self;

    /// Returns the position that the id identifies.
    fn index(self) -> usize;
}

/// Defines ids: one newtype around an unsigned integer per name.
macro_rules! ids {
    ($($(#[$about:meta])* $name:ident($inner:ty);)+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $crate::model::ids::Id for $name {
            #[inline]
            fn new(index: usize) -> Self {
                Self(index as $inner)
            }

            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$inner> for $name {
            #[inline]
            fn from(number: $inner) -> Self {
                Self(number)
            }
        }

        impl From<$name> for $inner {
            #[inline]
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}
pub(crate) use ids;

ids! {
    /// Names an operator of a problem.
    OperatorId(usize);
    /// Names an edge of a problem.
    EdgeId(usize);
    /// Names the costs of an operator's choices; identical operators share them.
    CostsId(usize);
    /// Names the costs of an edge; identical edges share them.
    TableId(usize);
    /// Names a map from choices to the rows or the columns of a table.
    MapId(usize);
    /// Names one of an operator's choices. It has four bytes, because strategies are lists of them.
    ChoiceId(u32);
}

/// A list indexed by ids of one kind.
///
/// An id of another kind does not compile:
///
/// ```compile_fail,E0308
/// let mut problem = frontier::Problem::default();
/// let costs = problem.add_costs(vec![1.0], vec![1.0]).unwrap();
/// let operator = problem.add_operator("a".into(), costs).unwrap();
/// problem.add_operator("b".into(), operator).unwrap();
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    ids: PhantomData<fn(I)>,
}

impl<I: Id, T> IdVec<I, T> {
    /// Returns a list of `count` copies of an item.
    pub fn filled(item: T, count: usize) -> Self
    where
        T: Clone,
    {
        vec![item; count].into()
    }

    /// Appends an item and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::new(self.items.len() - 1)
    }

    /// Removes the last item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the item with this id; `None` if the list is too short.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// Returns the ids of all items, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + Clone {
        (0..self.items.len()).map(I::new)
    }

    /// Iterates over the items with their ids.
    pub fn enumerate(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        let items = self.items.iter().enumerate();
        items.map(|(index, item)| (I::new(index), item))
    }

    /// Iterates over the items in the order of their ids.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Iterates over mutable references to the items.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Returns the items without their ids.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// Returns the items without their ids, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T> Default for IdVec<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<I, T> From<Vec<T>> for IdVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self {
            items,
            ids: PhantomData,
        }
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(items: A) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<I, T> IntoIterator for IdVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, I, T> IntoIterator for &'a IdVec<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_places_in_the_order_of_pushing() {
        let mut names: IdVec<OperatorId, &str> = IdVec::default();
        let (a, b) = (names.push("a"), names.push("b"));
        assert_eq!((names[a], names[b]), ("a", "b"));
        assert!(names.ids().eq([a, b]));
        assert!(names.enumerate().eq([(a, &"a"), (b, &"b")]));
        assert_eq!(names.get(OperatorId::new(2)), None);
        names[a] = "c";
        assert_eq!(names.as_slice(), ["c", "b"]);
    }

    #[test]
    fn ids_are_as_wide_as_their_numbers() {
        assert_eq!(size_of::<ChoiceId>(), size_of::<u32>());
        assert_eq!(size_of::<OperatorId>(), size_of::<usize>());
        assert_eq!(u32::from(ChoiceId::new(7)), 7);
    }
}
