//! What a file says of its decoder: the one thing that loading, checking and reporting read.

use crate::arch::config::Config;
use crate::arch::keys::Keys;
use crate::arch::tensors::{Tensor, Tensors};
use crate::error::Result;
use crate::gguf::file::GgufFile;

/// A family of models: how a file describes its decoder.
pub struct Family {
    /// What `general.architecture` says.
    pub name: &'static str,
    /// The shapes and constants that the keys of a file give, and what its blocks do.
    pub config: fn(&Keys<'_>) -> Result<Config>,
    /// The tensors that go with them.
    pub tensors: fn(&Config) -> Vec<Tensor>,
}

/// The decoder in a file, which has been checked to hold all of it and nothing that would change its results.
pub struct Description<'a> {
    /// The file.
    pub file: &'a GgufFile,
    /// Shapes and constants, and what the blocks do.
    pub config: Config,
    /// Where its tensors are.
    pub tensors: Tensors<'a>,
    /// Keys of the file that the family does not know, whatever they say.
    pub unread: Vec<&'a str>,
}

impl<'a> Description<'a> {
    /// Reads the description of the model of this `family` to which `keys` belong.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names what is missing, contradictory or not supported.
    pub fn read(keys: &Keys<'a>, family: &Family) -> Result<Self> {
        let file = keys.file();
        let config = (family.config)(keys)?;
        let tensors = Tensors::find(file, family.name, &config, (family.tensors)(&config))?;
        Ok(Self { file, config, tensors, unread: keys.unread() })
    }
}
