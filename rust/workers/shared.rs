//! Buffers that the threads of one forward fill together.
//!
//! A forward runs the same program on every thread, in phases separated by barriers. In a phase each thread writes
//! its own part of a buffer and nobody reads that part; after the barrier everybody may read. The borrow checker
//! cannot see barriers, so this file states the contract once and keeps the `unsafe` that relies on it.

use crate::workers::memory::{zeros, Zeros};
use bytemuck::Zeroable;
use std::alloc::{alloc_zeroed, Layout};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;

/// A fixed-size buffer whose disjoint ranges may be written by different threads in one phase.
pub(crate) struct Shared<T> {
    memory: Memory<T>,
}

enum Memory<T> {
    Heap(Box<[UnsafeCell<T>]>),
    /// Of so many elements.
    Mapped(Zeros, usize),
}

/// Fewest bytes for which a mapping is worth its system calls.
const MAPPED: usize = 1 << 18;

// SAFETY: access follows the contract of `Shared::write`; elements are written (`Send`) and, by several threads at
// once, read (`Sync`) from any of them.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T: Copy + Zeroable> Shared<T> {
    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        // SAFETY: zeros are a value of `T`.
        let cells = unsafe { Box::<[UnsafeCell<T>]>::new_zeroed_slice(len).assume_init() };
        Self { memory: Memory::Heap(cells) }
    }

    /// Such a buffer; `None` if the system has no memory for it.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let layout = Layout::array::<UnsafeCell<T>>(len).ok()?;
        if layout.size() == 0 {
            return Some(Self::zeroed(len));
        }
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let cells = std::ptr::slice_from_raw_parts_mut(memory.as_ptr().cast(), len);
        // SAFETY: the memory was allocated as a box of so many cells would be, and zeros are a value of `T`.
        Some(Self { memory: Memory::Heap(unsafe { Box::from_raw(cells) }) })
    }

    /// `count` such buffers side by side; `None` if the system has no memory for them. If they are large, each goes back
    /// to the system when it is dropped, where allocators would keep a good deal.
    pub fn mapped(len: usize, count: usize) -> Option<Vec<Self>> {
        let bytes = len * size_of::<T>();
        if bytes * count < MAPPED {
            return Some((0..count).map(|_| Self::zeroed(len)).collect());
        }
        Some(zeros(bytes, count).ok()?.map(|part| Self { memory: Memory::Mapped(part, len) }).collect())
    }

    fn cells(&self) -> &[UnsafeCell<T>] {
        match &self.memory {
            Memory::Heap(cells) => cells,
            // SAFETY: the memory has room for so many elements and was filled with zeros, which are values of `T`; it is
            // aligned, since buffers of `T` follow each other from the start of a page. References to it are only made
            // from these cells.
            Memory::Mapped(zeros, len) => unsafe { std::slice::from_raw_parts(zeros.as_mut_ptr().cast(), *len) },
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
        for (bytes, count) in [(0, 1), (2, 3), (MAPPED - 2, 1), (MAPPED, 1), (MAPPED / 2 + 2, 2), (3 * MAPPED, 5)] {
            let all = Shared::<u16>::mapped(bytes / 2, count).unwrap();
            assert_eq!(all.len(), count);
            for (i, shared) in all.iter().enumerate() {
                assert_eq!(shared.len(), bytes / 2);
                assert_eq!(matches!(shared.memory, Memory::Mapped(..)), bytes * count >= MAPPED);
                assert!(shared.read(0..shared.len()).iter().all(|&value| value == 0));
                shared.write(0..shared.len()).fill(i as u16 + 1);
            }
            // What is dropped takes nothing of its neighbours with it.
            for (i, shared) in all.into_iter().enumerate().filter(|(i, _)| i % 2 == 1) {
                assert!(shared.into_vec().iter().all(|&value| value == i as u16 + 1));
            }
        }
        assert!(Shared::<u16>::mapped(1 << 59, 1).is_none());
    }

    #[test]
    fn what_there_is_no_memory_for_is_not_made() {
        for len in [0, 1, 1000] {
            let shared = Shared::<f32>::try_zeroed(len).unwrap();
            shared.write(0..len).iter_mut().enumerate().for_each(|(i, value)| *value += i as f32);
            assert_eq!(shared.into_vec(), (0..len).map(|i| i as f32).collect::<Vec<_>>());
        }
        for len in [1 << 60, usize::MAX] {
            assert!(Shared::<f32>::try_zeroed(len).is_none());
        }
    }
}
