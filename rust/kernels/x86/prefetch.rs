//! Prefetching what a kernel reads later.

use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};

/// Values to be prefetched a few cache lines at a time.
pub struct Prefetch {
    next: *const u8,
    lines: usize,
}

impl Prefetch {
    const LINE: usize = 64;

    /// All of `values` in `steps` steps.
    pub fn new(values: &[i16], steps: usize) -> Self {
        Self { next: values.as_ptr().cast(), lines: size_of_val(values).div_ceil(Self::LINE).div_ceil(steps.max(1)) }
    }

    /// Prefetches the next few lines; the last step may ask for some beyond the values.
    #[inline(always)]
    pub fn step(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: a hint, which reads nothing; every x86-64 CPU has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.cast()) };
            self.next = self.next.wrapping_add(Self::LINE);
        }
    }
}
