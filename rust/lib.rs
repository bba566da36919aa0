//! The engine of specrs: logits of quantised Llama models, as fast as an ordinary CPU gives them.
//!
//! Modules stand in the order in which data flows; each imports only those above it.

pub mod error;

pub mod blocks;

pub mod mapping;

pub mod metadata;

pub mod reader;

pub mod header;

pub mod gguf;

pub mod config;

pub mod layout;

pub mod tokenizer;

pub mod text_stream;

#[cfg(test)]
mod fixture;
