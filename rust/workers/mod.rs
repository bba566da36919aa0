//! The [`threads`] that run one program together, the cores they stand on, and the [`memory`] that they fill: all
//! begin a [`phase`] together, saying what they read and write in it, and then each gets a [`writer`] for its own part of
//! a [`shared`] buffer. Safe code outside this folder cannot get two references to one element if one may write.
//! [`background`] is for what cannot be interrupted.

mod affinity;
pub mod background;
mod runs;
mod barrier;
pub mod memory;
#[cfg(debug_assertions)]
mod overlaps;
pub mod shared;
pub mod threads;
pub mod phase;
pub mod writer;

#[cfg(all(test, debug_assertions))]
mod tests;
