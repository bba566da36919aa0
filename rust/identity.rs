//! What identifies a model, so that a saved session is not loaded into another: its shapes and constants by name, and
//! every byte of the tensors it computes with.
//!
//! Bytes are hashed in pieces where loading reads them anyway, while they are in the cache of a core; so the fingerprint
//! costs no pass over the file, and stays right if the file is replaced while the model is in use. Tensors that the model
//! does not use, and metadata that does not change its numbers, are no part of it.

use crate::gguf::file::TensorInfo;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use xxhash_rust::xxh3::xxh3_64;

/// Version of the fingerprint: a change of what an old name means, or of how bytes are hashed, counts it up.
const VERSION: u32 = 1;
/// Rows of a tensor that are hashed together; the last ones may be fewer.
pub const HASHED_ROWS: usize = 16;

/// Named values; the order in which they were added does not matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity(BTreeMap<String, String>);

impl Identity {
    /// Sets the value called `name`.
    ///
    /// A name that is new in the program is set only where its value is not what was understood before, so that
    /// fingerprints of older models stay.
    pub fn set(&mut self, name: impl Display, value: impl Display) {
        self.0.insert(name.to_string(), value.to_string());
    }

    /// Sets the value called `name`, unless it is the one that was always understood.
    pub fn set_unless<T: Display + PartialEq>(&mut self, name: impl Display, value: T, understood: T) {
        if value != understood {
            self.set(name, value);
        }
    }

    /// Sets the value called `name`, if there is one.
    pub fn set_some(&mut self, name: impl Display, value: Option<impl Display>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets the type, shape and bytes of the tensor called `name`, which are `data`.
    pub fn set_tensor(&mut self, name: impl Display, info: &TensorInfo, data: &[u8]) {
        let hashes: Vec<u64> = data.chunks(HASHED_ROWS * info.row_bytes()).map(hash).collect();
        self.set_hashed(name, info, &hashes);
    }

    /// [`Identity::set_tensor`] where the hash of every [`HASHED_ROWS`] rows is known.
    pub fn set_hashed(&mut self, name: impl Display, info: &TensorInfo, hashes: &[u64]) {
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        self.set(name, format!("{} {:?} {:016x}", info.dtype.name(), info.shape, hash(&bytes)));
    }

    /// All that `other` says too.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.clone());
    }

    /// One number for all of it.
    pub fn fingerprint(&self) -> u64 {
        let mut text = format!("version={VERSION}\n");
        for (name, value) in &self.0 {
            // Names and values have no control characters but in a file made to confuse; quoting makes them unambiguous.
            writeln!(text, "{name:?}={value:?}").expect("strings grow");
        }
        hash(text.as_bytes())
    }
}

/// The hash of some bytes: XXH3.
pub fn hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}
