//! One pass through the decoder: [`plan`] prepares it, [`run`] lists its phases in order, each other file has one of them
//! or what it needs.

pub mod task;
pub mod matmul;
pub mod decoder;
mod routes;
pub mod buffers;
mod shares;
mod finish;
mod candidates;
pub mod plan;
mod project;
mod store;
mod attend;
mod feed_forward;
mod experts;
mod output;
mod choose;
pub mod run;

#[cfg(test)]
mod tests;
