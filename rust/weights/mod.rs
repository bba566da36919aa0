//! The weights of a model as the kernels stream them: [`load`] reads a file, [`pack`] lays a tensor out as tiles, [`bounds`]
//! says how large the rows of a matrix are.

pub mod matrix;
mod pack;
mod bounds;
pub mod load;
