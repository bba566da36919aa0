//! Text that grows token by token and is valid UTF-8 all the time.

use std::sync::Arc;

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Turns ids into text piece by piece. All pieces together are what [`Tokenizer::decode`] makes of the ids.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character whose other bytes have not come yet.
    pending: Vec<u8>,
    /// Whether the next byte is dropped if it is the space that encoding put before the text.
    drop_space: bool,
}

impl TextStream {
    /// A stream that begins a text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let drop_space = tokenizer.begins_with_space();
        Self {
            tokenizer,
            pending: Vec::new(),
            drop_space,
        }
    }

    /// A stream that goes on with a text: a space at its beginning belongs to it.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            drop_space: false,
            ..Self::new(tokenizer)
        }
    }

    /// The text that became complete with `id`; nothing in the middle of a character.
    ///
    /// An id out of range is an [`Error::Argument`](crate::error::Error::Argument) and changes nothing.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let mut bytes = self.tokenizer.token_bytes(id)?;
        if self.drop_space && !bytes.is_empty() {
            self.drop_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend(bytes);
        Ok(self.take(false))
    }

    /// What was held back: one U+FFFD, if a character is incomplete.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    /// Take what is complete out of `pending`, or all of it at the `end`.
    fn take(&mut self, end: bool) -> String {
        let complete = match self.pending.utf8_chunks().last() {
            // Invalid bytes at the end that a longer text could still make valid.
            Some(chunk) if !end && is_incomplete(chunk.invalid()) => {
                self.pending.len() - chunk.invalid().len()
            }
            _ => self.pending.len(),
        };
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        text
    }
}

/// Whether `bytes` are the beginning of a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
