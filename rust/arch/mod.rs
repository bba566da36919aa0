//! Which decoder a file holds. [`describe`] makes a [`description`] of it: shapes and constants, what each block does, and
//! the table of its tensors by role. A family of models is one file, such as [`llama`]; [`roles`] has the names of tensors,
//! [`keys`] reads metadata, [`rope`] makes frequencies, [`windows`] says which blocks have one, [`config`] and [`tensors`]
//! have what most families share, [`experts`] what mixtures do, and [`refusals`] knows what is no decoder of any of them.

pub mod roles;
pub mod keys;
pub mod refusals;
pub mod rope;
pub mod config;
pub mod windows;
pub mod tensors;
pub mod experts;
pub mod description;
pub mod llama;
pub mod mistral3;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3moe;
pub mod phi3;
pub mod granite;
pub mod granitemoe;
pub mod smollm3;
pub mod gemma2;
pub mod gemma3;
pub mod olmo2;
pub mod glm4;

use crate::error::Result;
use crate::gguf::file::GgufFile;
use description::{Description, Family};
use keys::Keys;

/// The families that can be run.
pub const FAMILIES: [Family; 13] = [
    llama::FAMILY,
    mistral3::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen3moe::FAMILY,
    phi3::FAMILY,
    granite::FAMILY,
    granitemoe::FAMILY,
    smollm3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    olmo2::FAMILY,
    glm4::FAMILY,
];

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
