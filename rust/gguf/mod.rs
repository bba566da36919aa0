//! A model file: [`mapping`] maps it, [`header`] and [`file`] say what is in it, nothing it declares is believed.

pub mod mapping;
pub mod types;
pub mod strings;
pub mod metadata;
pub mod reader;
pub mod header;
pub mod file;
