//! The kernel sets of x86-64 processors: [`avx2`], [`avxvnni`], [`avx512`] and [`amx`], each over the ones before it.

mod prefetch;
pub mod avx2;
pub mod avxvnni;
pub mod avx512;
pub mod amx;
