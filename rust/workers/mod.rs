//! The [`threads`] that run one program together, the cores they stand on, and the [`memory`] that they fill
//! ([`shared`]).

mod affinity;
mod barrier;
pub mod threads;
pub mod memory;
pub mod shared;
