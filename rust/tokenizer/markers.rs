//! Finding the tokens in a text that never take part in merging: marks, and words that always stay one token.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::vocabulary::{Kind, Vocabulary};
use crate::error::Result;
use crate::gguf::metadata::Metadata;

/// A set of tokens, found by their text. The time of a search does not depend on their number.
#[derive(Debug)]
pub struct Markers {
    automaton: AhoCorasick,
    /// The token of each pattern, and whether it takes the white space after it.
    tokens: Vec<(u32, bool)>,
}

/// A marker in a text.
#[derive(Debug)]
pub struct Found {
    /// Where it stands, with the white space that it takes.
    pub place: Range<usize>,
    /// The token.
    pub id: u32,
    /// Whether it takes the white space after it.
    pub takes_space: bool,
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
    /// The tokens of `vocabulary` of these `kinds`; those that `takes_space` holds for swallow the white space after
    /// them.
    ///
    /// An [`Error::Gguf`](crate::error::Error::Gguf) says that there are too many.
    pub fn new(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        kinds: &[Kind],
        takes_space: impl Fn(u32) -> bool,
    ) -> Result<Self> {
        let ids = kinds.iter().flat_map(|&kind| vocabulary.of_kind(kind));
        let mut texts: Vec<_> =
            ids.map(|id| (vocabulary.written(id), id)).filter(|(text, _)| !text.is_empty()).collect();
        // Of tokens with the same text the first counts, as of equal patterns.
        texts.sort_by_key(|&(_, id)| id);
        let patterns = texts.iter().map(|&(text, _)| text);
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns);
        Ok(Self {
            automaton: automaton.map_err(|error| metadata.error(format_args!("marks of the vocabulary: {error}")))?,
            tokens: texts.iter().map(|&(_, id)| (id, takes_space(id))).collect(),
        })
    }

    /// Every marker in `text` with its place, which includes the white space that it takes: the leftmost first, of those
    /// that begin together the longest. Where `counts` is false of it, it is text.
    pub fn find<'a>(
        &'a self,
        text: &'a str,
        counts: impl Fn(&Range<usize>, u32) -> bool + 'a,
    ) -> impl Iterator<Item = Found> + 'a {
        let mut from = 0;
        std::iter::from_fn(move || loop {
            let found = self.automaton.find(Input::new(text).range(from..))?;
            let (id, takes_space) = self.tokens[found.pattern()];
            if counts(&found.range(), id) {
                let rest = &text[found.end()..];
                let space = if takes_space { rest.len() - rest.trim_start().len() } else { 0 };
                from = found.end() + space;
                return Some(Found { place: found.start()..from, id, takes_space });
            }
            from = found.start() + 1;
        })
    }

    /// Cut `text` at every marker that `counts`.
    pub fn split<'a>(
        &self,
        text: &'a str,
        counts: impl Fn(&Range<usize>, u32) -> bool,
        mut emit: impl FnMut(Fragment<'a>),
    ) {
        let mut start = 0;
        for Found { place, id, .. } in self.find(text, counts) {
            if start < place.start {
                emit(Fragment::Text(&text[start..place.start]));
            }
            emit(Fragment::Marker(id));
            start = place.end;
        }
        if start < text.len() {
            emit(Fragment::Text(&text[start..]));
        }
    }
}
