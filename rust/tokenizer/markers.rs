//! Finding the tokens in a text that never take part in merging: marks, and words that always stay one token.

use super::vocabulary::{Kind, Vocabulary};

/// A set of tokens, found by their text.
#[derive(Debug)]
pub struct Markers {
    /// By their first byte, the longest first.
    by_first_byte: Vec<Vec<(Box<[u8]>, u32)>>,
}

/// What a text consists of.
#[derive(Debug, PartialEq)]
pub enum Fragment<'a> {
    /// A marker.
    Marker(u32),
    /// Text between markers.
    Text(&'a str),
}

impl Markers {
    /// The tokens of `vocabulary` of these `kinds`.
    pub fn new(vocabulary: &Vocabulary, kinds: &[Kind]) -> Self {
        let mut by_first_byte = vec![Vec::<(Box<[u8]>, u32)>::new(); 256];
        for id in kinds.iter().flat_map(|&kind| vocabulary.of_kind(kind)) {
            // The text a user writes: of a mark, which adds nothing to a text, its name.
            let text = match vocabulary.bytes(id) {
                [] => vocabulary.string(id).unwrap_or_default().as_bytes(),
                bytes => bytes,
            };
            if let Some(&first) = text.first() {
                by_first_byte[usize::from(first)].push((Box::from(text), id));
            }
        }
        for markers in &mut by_first_byte {
            markers.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        }
        Self { by_first_byte }
    }

    /// Cut `text` at every marker: the leftmost first, of those that begin together the longest.
    pub fn split<'a>(&self, text: &'a str, mut emit: impl FnMut(Fragment<'a>)) {
        let bytes = text.as_bytes();
        let (mut start, mut at) = (0, 0);
        while at < bytes.len() {
            let markers = &self.by_first_byte[usize::from(bytes[at])];
            let found = markers.iter().find(|(marker, _)| bytes[at..].starts_with(marker));
            let Some((marker, id)) = found else {
                at += 1;
                continue;
            };
            if start < at {
                emit(Fragment::Text(&text[start..at]));
            }
            emit(Fragment::Marker(*id));
            at += marker.len();
            start = at;
        }
        if start < text.len() {
            emit(Fragment::Text(&text[start..]));
        }
    }
}
