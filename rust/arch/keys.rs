//! Typed access to the keys `<architecture>.*` of a file.

use crate::arch::roles::Role;
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::gguf::metadata::Value;
use std::cell::RefCell;
use std::collections::HashSet;

/// No width or count of a real model comes near; products of two of them cannot overflow.
pub const MAX_WIDTH: u64 = 1 << 24;

const ARCHITECTURE: &str = "general.architecture";

/// What files say besides, and no decoder needs: tensors tell the first, the second speaks of training.
const NEEDLESS: [&str; 2] = ["vocab_size", "rope.scaling.finetuned"];

/// The keys that begin with the architecture of a file. Every error names file, key and value.
pub struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
    /// Whole names of the keys that somebody asked for.
    asked: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    /// The keys of `file`.
    ///
    /// # Errors
    /// [`Error::Gguf`] if it does not say its architecture.
    pub fn new(file: &'a GgufFile) -> Result<Self> {
        let metadata = file.metadata();
        let architecture = metadata.get_str(ARCHITECTURE)?;
        let missing = || metadata.error(format_args!("metadata `{ARCHITECTURE}` is missing"));
        Ok(Self { file, architecture: architecture.ok_or_else(missing)?, asked: RefCell::default() })
    }

    /// What the file says its architecture is.
    pub fn architecture(&self) -> &'a str {
        self.architecture
    }

    /// The file.
    pub fn file(&self) -> &'a GgufFile {
        self.file
    }

    /// The tensor of a role, under the name that all families give it.
    ///
    /// # Errors
    /// [`Error::Gguf`] if it is missing.
    pub fn tensor(&self, role: Role) -> Result<&'a TensorInfo> {
        self.file.require(&role.to_string())
    }

    /// An [`Error::Gguf`] that names the file before `message`.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        self.file.metadata().error(message)
    }

    /// The whole name of a key, which counts as asked for.
    pub fn name(&self, key: &str) -> String {
        let name = format!("{}.{key}", self.architecture);
        self.asked.borrow_mut().insert(name.clone());
        name
    }

    /// Whole names of the keys that nobody asked for, though a decoder may need what they say.
    pub fn unread(&self) -> Vec<&'a str> {
        let asked = self.asked.borrow();
        let is_needless = |key: &str| NEEDLESS.contains(&key);
        let own = |name: &&str| {
            let key = name.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'));
            key.is_some_and(|key| !is_needless(key)) && !asked.contains(*name)
        };
        self.file.metadata().names().filter(own).collect()
    }

    /// An error about an absent key.
    fn missing(&self, key: &str) -> Error {
        self.error(format_args!("metadata `{}` is missing", self.name(key)))
    }

    /// A string, if it is there.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a value of another type.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.file.metadata().get_str(&self.name(key))
    }

    /// A count from 1 to `limit`, if it is there; where an array gives the value of each block, all must be equal.
    ///
    /// # Errors
    /// [`Error::Gguf`] for any other value.
    pub fn count(&self, key: &str, limit: u64) -> Result<Option<usize>> {
        let name = self.name(key);
        let metadata = self.file.metadata();
        let value = match metadata.get(&name) {
            Some(Value::Array(_)) => {
                let values = metadata.get_integers(&name)?.unwrap_or_default();
                let blocks = self.name("block_count");
                if let Some(n) = metadata.get_u64(&blocks)?.filter(|&n| n != values.len() as u64) {
                    let entries = values.len();
                    return Err(self.error(format_args!(
                        "metadata `{name}` has {entries} entries but `{blocks}` is {n}; convert the model again"
                    )));
                }
                match values.first() {
                    Some(&value) if values.iter().all(|&other| other == value) => {
                        Some(u64::try_from(value).unwrap_or(0))
                    }
                    _ => {
                        let message = format_args!("metadata `{name}` differs between blocks, which is not supported");
                        return Err(self.error(message));
                    }
                }
            }
            _ => metadata.get_u64(&name)?,
        };
        match value {
            Some(value) if !(1..=limit).contains(&value) => {
                Err(self.error(format_args!("metadata `{name}` must be from 1 to {limit} but is {value}")))
            }
            value => Ok(value.map(|value| value as usize)),
        }
    }

    /// A [`Self::count`] that must be there.
    ///
    /// # Errors
    /// [`Error::Gguf`] if it is not, or for any other value.
    pub fn required_count(&self, key: &str, limit: u64) -> Result<usize> {
        self.count(key, limit)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number above 0, if it is there.
    ///
    /// # Errors
    /// [`Error::Gguf`] for any other value.
    pub fn positive(&self, key: &str) -> Result<Option<f32>> {
        let name = self.name(key);
        match self.file.metadata().get_f32(&name)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.error(format_args!("metadata `{name}` must be a finite number above 0 but is {value}")))
            }
            value => Ok(value),
        }
    }

    /// A [`Self::count`], of which 0 says the same as none at all.
    ///
    /// # Errors
    /// [`Error::Gguf`] for any other value.
    pub fn switched_count(&self, key: &str, limit: u64) -> Result<Option<usize>> {
        match self.file.metadata().get_u64(&self.name(key))? {
            Some(0) => Ok(None),
            _ => self.count(key, limit),
        }
    }

    /// A [`Self::positive`] number that must be there.
    ///
    /// # Errors
    /// [`Error::Gguf`] if it is not, or for any other value.
    pub fn required_positive(&self, key: &str) -> Result<f32> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number of 0 or more, of which 0 says the same as none at all: what switches itself off with it.
    ///
    /// # Errors
    /// [`Error::Gguf`] for any other value.
    pub fn switch(&self, key: &str) -> Result<Option<f32>> {
        match self.file.metadata().get_f32(&self.name(key))? {
            Some(0.0) => Ok(None),
            _ => self.positive(key),
        }
    }

    /// Whether the file says nothing of it.
    pub fn is_silent(&self, key: &str) -> bool {
        self.file.metadata().get(&self.name(key)).is_none()
    }

    /// A truth value, if it is there.
    ///
    /// # Errors
    /// [`Error::Gguf`] for a value of another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.file.metadata().get_bool(&self.name(key))
    }

    /// Whether the file says that there are experts.
    ///
    /// # Errors
    /// [`Error::Gguf`] if it says so in another type.
    pub fn has_experts(&self) -> Result<bool> {
        Ok(self.file.metadata().get_u64(&self.name("expert_count"))?.is_some_and(|count| count > 0))
    }

    /// Fails for a mixture of experts.
    ///
    /// # Errors
    /// [`Error::Gguf`] that names the key.
    pub fn check_dense(&self) -> Result<()> {
        match self.has_experts()? {
            false => Ok(()),
            true => Err(self.error(format_args!(
                "a mixture of experts (`{}`) is not supported for architecture \"{}\"",
                self.name("expert_count"),
                self.architecture
            ))),
        }
    }
}
