//! Text that grows token by token and is valid UTF-8 all the time.

use std::sync::Arc;

use crate::error::Result;
use crate::tokenizer::codec::Tokenizer;

/// Turns ids into text piece by piece. All pieces together are what [`Tokenizer::decode`] makes of the ids.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character whose other bytes have not come yet.
    pending: Vec<u8>,
    /// Whether the next byte is dropped if it is the space that encoding put before the text.
    drop_space: bool,
    /// Whether marks are left out.
    skip_special: bool,
}

impl TextStream {
    /// A stream that begins a text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let drop_space = tokenizer.begins_with_space();
        Self { tokenizer, pending: Vec::new(), drop_space, skip_special: true }
    }

    /// A stream that goes on with a text: a space at its beginning belongs to it.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self { drop_space: false, ..Self::new(tokenizer) }
    }

    /// This stream, with marks written by their names.
    pub fn with_marks(self) -> Self {
        Self { skip_special: false, ..self }
    }

    /// The text that became complete with `id`; nothing in the middle of a character.
    ///
    /// An id out of range is an [`Error::Argument`](crate::error::Error::Argument) and changes nothing.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let bytes = self.tokenizer.text_bytes(id, self.skip_special, &mut self.drop_space)?;
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
            Some(chunk) if !end && is_incomplete(chunk.invalid()) => self.pending.len() - chunk.invalid().len(),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fixture::tiny_spm;
    use crate::gguf::file::GgufFile;

    /// Ids of the bytes of `text` in a vocabulary that has them from id 3 on.
    fn byte_ids(text: &[u8]) -> Vec<u32> {
        text.iter().map(|&byte| 3 + u32::from(byte)).collect()
    }

    fn tiny(pieces: &[&str]) -> Arc<Tokenizer> {
        let file = tiny_spm(pieces).file();
        let file = GgufFile::open(file.path()).unwrap();
        Arc::new(Tokenizer::from_gguf(&file).unwrap())
    }

    fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
        let mut stream = TextStream::new(Arc::clone(tokenizer));
        let mut pieces: Vec<_> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        pieces.push(stream.finish());
        pieces
    }

    #[test]
    fn characters_come_whole() {
        let tokenizer = tiny(&["▁a", "b"]);
        let emoji = byte_ids("🦙".as_bytes());
        assert_eq!(pieces(&tokenizer, &emoji), ["", "", "", "🦙", ""]);
        let mut ids = vec![259, 1];
        ids.extend(byte_ids(b"\xF0\x9F"));
        assert_eq!(pieces(&tokenizer, &ids), ["a", "", "", "", "\u{FFFD}"]);
        ids.push(260);
        assert_eq!(pieces(&tokenizer, &ids), ["a", "", "", "", "\u{FFFD}b", ""]);
        ids.extend(byte_ids(b"\xFF\xC3\xA9\x80"));
        let end = ["\u{FFFD}b", "\u{FFFD}", "", "é", "\u{FFFD}", ""];
        assert_eq!(pieces(&tokenizer, &ids)[4..], end);
    }

    #[test]
    fn only_the_space_before_a_text_is_dropped() {
        let tokenizer = tiny(&["▁a", "▁"]);
        assert_eq!(pieces(&tokenizer, &[1, 259, 259]).concat(), "a a");
        assert_eq!(pieces(&tokenizer, &[260, 259]).concat(), " a");
        let mut stream = TextStream::continuing(tokenizer);
        assert_eq!(stream.push(259).unwrap(), " a");
        assert!(stream.push(1000).is_err());
        assert_eq!(stream.push(259).unwrap(), " a");
    }

    #[test]
    fn pieces_join_to_what_decode_says() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for name in ["llama-spm.gguf", "llama-bpe.gguf", "smollm2.gguf"] {
            let file = GgufFile::open(&data.join(name)).unwrap();
            let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
            // Single bytes, so that all ways to be wrong come up, are two thirds of the ids.
            let single: Vec<u32> = (0..tokenizer.n_vocab() as u32)
                .filter(|&id| matches!(tokenizer.token_bytes(id), Ok([byte]) if *byte >= 0x80))
                .collect();
            for _ in 0..3000 {
                let ids: Vec<u32> = (0..random(12))
                    .map(|_| match random(3) {
                        0 => random(tokenizer.n_vocab()) as u32,
                        _ => single[random(single.len())],
                    })
                    .collect();
                let joined = pieces(&tokenizer, &ids).concat();
                assert_eq!(joined, tokenizer.decode(&ids, true).unwrap(), "{ids:?}");
            }
        }
    }
}
