//! The weights of a model as the kernels stream them: [`load`] reads a file, [`pack`] shares it out among threads, [`tile`]
//! makes bit planes and scales of the blocks that [`source`] takes apart, [`bounds`] says how large the rows of a matrix
//! are.

pub mod matrix;
mod source;
mod tile;
mod bounds;
mod pack;
pub mod load;
