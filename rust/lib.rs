//! The engine of specrs: logits of quantised Llama models, as fast as an ordinary CPU gives them.
//!
//! Modules stand in the order in which data flows; each imports only those above it. The tour:
//!
//! - *A file*: [`gguf`] maps it and reads its header, [`config`] and [`tensors`] say which model it holds.
//! - *Kernels*: [`kernels::scalar`] specifies every computation, the other instruction sets give the same bits;
//!   [`kernels::layout`] shows how weights lie in memory. [`weights`] packs them so.
//! - *A pass*: [`forward`] is the program that all workers ([`threads`]) run together, with [`matmul`] for the products
//!   and [`attention`] over the paged [`cache`]. [`model`] cuts inputs into passes.
//! - *candle*: [`candle_llama`] is the same decoder on candle's tensors; [`engine`] puts both behind one interface.
//! - *For users*: [`session`] and [`saved`], [`tokenizer`] and [`text_stream`], [`sampling`]; `py` is the Python
//!   module.

pub mod error;

pub mod blocks;
#[cfg(test)]
mod fixture;
pub mod mapping;
pub mod strings;
pub mod metadata;
pub mod reader;
pub mod header;
pub mod gguf;
pub mod config;
pub mod tensors;

pub mod noise;
pub mod distribution;

pub mod kernels;
pub mod threads;
pub mod weights;
pub mod matmul;
pub mod cache;
pub mod attention;
pub mod pattern;
pub mod forward;
pub mod model;
pub mod candle_cache;
pub mod candle_weights;
pub mod candle_llama;
pub mod engine;
pub mod session;
pub mod saved;

pub mod tokenizer;
pub mod text_stream;

pub mod ngrams;
pub mod suffix;
pub mod sampling;

#[cfg(feature = "python")]
mod py;
