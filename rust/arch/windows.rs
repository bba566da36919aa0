//! Which blocks see only the last positions.

use crate::arch::config::Config;
use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::rope::RopeTable;
use crate::error::Result;
use crate::gguf::metadata::{Array, Value};

const LENGTH: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Which blocks see all positions.
#[derive(Clone, Copy)]
pub enum SeesAll {
    /// The last of every so many.
    LastOf(usize),
    /// None.
    Never,
}

impl Config {
    /// The same with the windows of the file, which are `length` long if it does not say so; `default` counts where the
    /// file does not say which blocks have one.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names a value that is wrong.
    pub fn with_windows(mut self, keys: &Keys<'_>, length: Option<usize>, default: SeesAll) -> Result<Self> {
        // 0 says that there are none.
        let length = match keys.file().metadata().get_u64(&keys.name(LENGTH))? {
            Some(0) => None,
            _ => keys.count(LENGTH, MAX_WIDTH)?.or(length),
        };
        let has_window = windowed(keys, self.n_layer + self.n_draft_layer, default)?;
        for (block, has_window) in self.blocks.iter_mut().zip(has_window) {
            block.window_in_file = length.filter(|_| has_window);
            block.window = block.window_in_file;
        }
        Ok(self)
    }

    /// The same with another rotation in blocks that have a window.
    pub fn with_rope_in_windows(mut self, rope: RopeTable) -> Self {
        self.ropes.push(rope);
        for block in self.blocks.iter_mut().filter(|block| block.window.is_some()) {
            block.rope = Some(self.ropes.len() - 1);
        }
        self
    }
}

/// Of each of a file's blocks whether it has a window.
fn windowed(keys: &Keys<'_>, blocks: usize, default: SeesAll) -> Result<Vec<bool>> {
    let (metadata, name) = (keys.file().metadata(), keys.name(PATTERN));
    let sees_all = match metadata.get(&name) {
        None => default,
        Some(Value::Array(Array::Bool(windowed))) if windowed.len() == blocks => return Ok(windowed.clone()),
        Some(Value::Array(array)) => {
            return Err(keys.error(format_args!(
            "metadata `{name}` must be a truth value (bool) for each of the {blocks} blocks but holds {} values of {}",
            array.len(),
            array.element_type()
        )))
        }
        Some(_) => match metadata.get_u64(&name)? {
            Some(0) => return Ok(vec![false; blocks]),
            Some(period) if period <= blocks as u64 => SeesAll::LastOf(period as usize),
            other => {
                return Err(keys.error(format_args!(
                    "metadata `{name}` must be from 1 to the {blocks} blocks, or 0 for no windows, but is {}",
                    other.unwrap_or(0)
                )))
            }
        },
    };
    Ok(match sees_all {
        SeesAll::Never => vec![true; blocks],
        SeesAll::LastOf(period) => (0..blocks).map(|block| block % period + 1 < period).collect(),
    })
}
