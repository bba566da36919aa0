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
        "{needed} positions are needed but the context holds {n_ctx}; shorten the input{}",
        if n_ctx < n_ctx_train { " or load the model with a larger n_ctx" } else { "" }
    )]
    ContextOverflow {
        /// Positions the call needs, those already cached included.
        needed: usize,
        /// Positions the context holds.
        n_ctx: usize,
        /// Positions it can hold at most.
        n_ctx_train: usize,
    },
    /// There is no memory for something large.
    #[error("there is no memory for the {bytes} bytes of {what}; {way_out}")]
    Memory {
        /// What was to be stored.
        what: &'static str,
        /// How much it takes.
        bytes: usize,
        /// What helps.
        way_out: &'static str,
    },
    /// One of several inputs cannot be processed.
    #[error("inputs[{index}]: {error}")]
    Input {
        /// Which one.
        index: usize,
        /// Why.
        error: Box<Error>,
    },
    /// An argument is out of its range.
    #[error("{0}")]
    Argument(String),
    /// Somebody else has the right to change what the call would change.
    #[error("{0}")]
    InUse(&'static str),
    /// The caller's poll asked to stop; nothing was committed.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An [`Error::Io`] for `path`.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// This error, of the input at `index`.
    pub fn at(self, index: usize) -> Self {
        Self::Input { index, error: Box::new(self) }
    }
}

/// The error where there is no memory for so many logits.
pub fn no_room_for_logits(count: usize) -> Error {
    Error::Memory {
        what: "the logits",
        bytes: count.saturating_mul(size_of::<f32>()),
        way_out: "ask for fewer positions at a time",
    }
}
