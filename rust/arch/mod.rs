//! Which decoder a file holds. [`describe`] makes a [`description`] of it: shapes and constants, what each block does, and
//! the table of its tensors by role. A family of models is one file, such as [`llama`]; [`roles`] has the names of tensors,
//! [`keys`] reads metadata, [`rope`] makes frequencies, [`config`] and [`tensors`] have what most families share, and
//! [`refusals`] knows what is no decoder of any of them.

pub mod roles;
pub mod keys;
pub mod refusals;
pub mod rope;
pub mod config;
pub mod tensors;
pub mod description;
pub mod llama;
pub mod smollm3;

use crate::error::Result;
use crate::gguf::file::GgufFile;
use description::{Description, Family};
use keys::Keys;

/// The families that can be run.
pub const FAMILIES: [Family; 2] = [llama::FAMILY, smollm3::FAMILY];

/// Describes the decoder in `file`; everything that can be checked without reading weights is checked here, once.
///
/// # Errors
/// [`Error::Gguf`](crate::error::Error::Gguf) names what is missing, contradictory or not supported.
pub fn describe(file: &GgufFile) -> Result<Description<'_>> {
    let keys = Keys::new(file)?;
    let known = FAMILIES.map(|family| format!("\"{}\"", family.name)).join(", ");
    refusals::check(&keys, &known)?;
    let name = keys.architecture();
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        return Err(keys.error(format_args!("architecture \"{name}\" is not supported (supported: {known})")));
    };
    Description::read(&keys, family)
}
