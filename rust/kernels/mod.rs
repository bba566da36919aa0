//! The compute kernels, behind one [`table`] that is chosen at run time.
//!
//! [`scalar`] is the specification. Each instruction set has a file with functions of the same names that give the
//! same bits; a [`table::Kernels`] value holds one set and can only be made on a CPU that has it.

pub mod layout;
pub mod fixed;
pub mod vector;
pub mod softmax;
pub mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;
pub mod table;
pub mod fixed_rows;
#[cfg(test)]
pub(crate) mod tests;
