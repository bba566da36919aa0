//! The engine of specrs: logits of quantised Llama models, as fast as an ordinary CPU gives them.
//!
//! Modules stand in the order in which data flows; each imports only those above it.

pub mod error;

pub mod blocks;
#[cfg(test)]
mod fixture;
pub mod mapping;
pub mod metadata;
pub mod reader;
pub mod header;
pub mod gguf;
pub mod config;
pub mod layout;

pub mod kernels;
pub mod threads;
pub mod weights;
pub mod matmul;
pub mod cache;
pub mod attention;
pub mod forward;
pub mod model;
pub mod candle_cache;
pub mod candle_llama;
pub mod engine;
pub mod session;
pub mod saved;

pub mod tokenizer;
pub mod text_stream;

pub mod ngrams;
pub mod suffix;

#[cfg(feature = "python")]
mod py;
