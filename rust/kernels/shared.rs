//! Buffers that the threads of one forward fill together.
//!
//! A forward runs the same program on every thread, in phases separated by barriers. In a phase each thread writes
//! its own part of a buffer and nobody reads that part; after the barrier everybody may read. The borrow checker
//! cannot see barriers, so this file states the contract once and keeps the `unsafe` that relies on it.

use bytemuck::Zeroable;
use memmap2::{MmapMut, MmapRaw};
use std::cell::UnsafeCell;
use std::ops::Range;

/// A fixed-size buffer whose disjoint ranges may be written by different threads in one phase.
pub(crate) struct Shared<T> {
    memory: Memory<T>,
}

enum Memory<T> {
    Heap(Box<[UnsafeCell<T>]>),
    /// Of so many elements.
    Mapped(MmapRaw, usize),
}

/// Fewest bytes for which a mapping is worth its system calls.
const MAPPED: usize = 1 << 18;

// SAFETY: access follows the contract of `Shared::write`; elements are written (`Send`) and, by several threads at
// once, read (`Sync`) from any of them.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T: Copy + Zeroable> Shared<T> {
    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let cells = (0..len).map(|_| UnsafeCell::new(T::zeroed())).collect();
        Self { memory: Memory::Heap(cells) }
    }

    /// The same, but when it is dropped a large one goes back to the system, of which allocators keep a good deal.
    pub fn mapped(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        let map = (bytes >= MAPPED).then(|| MmapMut::map_anon(bytes).ok()).flatten();
        map.map_or_else(|| Self::zeroed(len), |map| Self { memory: Memory::Mapped(map.into(), len) })
    }

    fn cells(&self) -> &[UnsafeCell<T>] {
        match &self.memory {
            Memory::Heap(cells) => cells,
            // SAFETY: the mapping has room for so many elements, starts at a page and was filled with zeros, which are
            // values of `T`. References to it are only made from these cells.
            Memory::Mapped(map, len) => unsafe { std::slice::from_raw_parts(map.as_mut_ptr().cast(), *len) },
        }
    }

    /// The elements as a vector.
    pub fn into_vec(self) -> Vec<T> {
        match self.memory {
            Memory::Heap(cells) => {
                let cells = Box::into_raw(cells);
                // SAFETY: `UnsafeCell<T>` has the layout of `T`, so this is the box that `zeroed` made.
                unsafe { Box::from_raw(cells as *mut [T]) }.into_vec()
            }
            Memory::Mapped(..) => self.read(0..self.len()).to_vec(),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.cells().len()
    }

    /// The elements of `range`. Contract: no thread writes any of them in the current phase.
    pub fn read(&self, range: Range<usize>) -> &[T] {
        let cells = &self.cells()[range];
        // SAFETY: `UnsafeCell<T>` has the layout of `T`; by the contract nobody writes these elements meanwhile.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// The elements of `range`, to write. Contract: in the current phase no other thread touches any of them, and
    /// this thread holds no other reference to them.
    #[allow(clippy::mut_from_ref)]
    pub fn write(&self, range: Range<usize>) -> &mut [T] {
        let cells = &self.cells()[range];
        // SAFETY: `UnsafeCell` allows mutation behind `&self`; by the contract this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_buffers_are_alike() {
        for bytes in [0, 2, MAPPED - 2, MAPPED, MAPPED + 2, 3 * MAPPED] {
            let shared = Shared::<u16>::mapped(bytes / 2);
            assert_eq!(shared.len(), bytes / 2);
            assert_eq!(matches!(shared.memory, Memory::Mapped(..)), bytes >= MAPPED);
            assert!(shared.read(0..shared.len()).iter().all(|&value| value == 0));
            if let Some(last) = shared.len().checked_sub(1) {
                shared.write(last..last + 1)[0] = 7;
                assert_eq!(shared.read(last..last + 1), [7]);
                assert_eq!(shared.into_vec().last(), Some(&7));
            }
        }
    }
}
