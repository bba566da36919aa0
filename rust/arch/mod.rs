//! Which decoder a file holds: [`config`] has its shapes and constants, [`tensors`] its weights.

pub mod config;
pub mod tensors;
