//! The engine of specrs: logits of quantised language models, as fast as an ordinary CPU gives them.
//!
//! Folders stand in the order in which data flows; each imports only those above it, and so do the files in a folder. The
//! tour:
//!
//! - *A file*: [`gguf`] maps it and reads its header, [`arch`] says which decoder it holds, [`tokenizer`] what its ids mean.
//! - *Kernels*: [`kernels::scalar`] specifies every computation, the other instruction sets give the same bits;
//!   [`kernels::layout`] shows how weights lie in memory. [`weights`] packs them so.
//! - *A pass*: [`forward`] is the program that all [`workers`] run together, with [`attention`] over the paged cache.
//!   [`cpu`] cuts inputs into passes.
//! - *candle*: [`candle`] is the same decoder on candle's tensors; [`engine`] puts both behind one interface.
//! - *For users*: [`model`], [`session`] and [`saved`], [`sampling`], [`drafting`]; `py` is the Python module.

pub mod error;

#[cfg(test)]
mod fixture;
pub mod gguf;
pub mod identity;
pub mod arch;
pub mod tokenizer;

pub mod workers;
pub mod kernels;
pub mod weights;
pub mod attention;
pub mod sampling;
pub mod forward;
pub mod cpu;
pub mod candle;
pub mod engine;
pub mod model;
pub mod session;
pub mod saved;

pub mod drafting;

#[cfg(feature = "python")]
mod py;
