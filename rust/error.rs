//! The one error type of the crate. A message says what, where, need, have, and the way out.

use std::io;
use std::path::{Path, PathBuf};

/// Result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, sorted by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The model file is malformed, or uses something that is not supported.
    #[error("{0}")]
    Gguf(String),
    /// More positions are needed than the context holds.
    #[error(
        "{needed} positions are needed but the context holds {n_ctx}; \
         shorten the input or load the model with a larger n_ctx"
    )]
    ContextOverflow {
        /// Positions the call needs, those already cached included.
        needed: usize,
        /// Positions the context holds.
        n_ctx: usize,
    },
    /// An argument is out of its range.
    #[error("{0}")]
    Argument(String),
    /// The caller's poll asked to stop; nothing was committed.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An [`Error::Io`] for `path`.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
