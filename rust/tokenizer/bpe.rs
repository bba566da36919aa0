//! GPT-2's byte-pair model: words are cut apart first, then neighbours join in the order of a list of merges.

use std::collections::HashMap;

use super::merging::{merge, Part};
use super::pre::Pre;
use super::vocabulary::{Kind, Vocabulary};
use super::words::Words;
use crate::error::Result;
use crate::gguf::metadata::Metadata;

const MERGES: &str = "tokenizer.ggml.merges";

/// The model of a vocabulary.
#[derive(Debug)]
pub struct Bpe {
    words: Words,
    /// Rank and resulting id of each pair that may join.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Words that are a token whatever the merges say.
    whole: HashMap<Box<[u8]>, u32>,
    /// No whole word has more bytes.
    longest: usize,
    bytes: [Option<u32>; 256],
}

impl Bpe {
    /// The model that `metadata` describes for `vocabulary`, whose text is read as `pre` says.
    pub fn read(metadata: &Metadata, vocabulary: &Vocabulary, pre: Pre) -> Result<Self> {
        let list = metadata
            .get_strings(MERGES)?
            .ok_or_else(|| metadata.error(format_args!("metadata `{MERGES}` is missing")))?;
        let ids: HashMap<&str, u32> =
            (0..vocabulary.size() as u32).rev().filter_map(|id| Some((vocabulary.string(id)?, id))).collect();
        let mut merges = HashMap::with_capacity(list.len());
        for (rank, pair) in list.iter().enumerate() {
            let wrong =
                |what: &str| metadata.error(format_args!("metadata `{MERGES}`: entry {rank}, {pair:?}, {what}"));
            let (left, right) = split_pair(pair).ok_or_else(|| wrong("is no pair"))?;
            let id = |token: &str| ids.get(token).copied();
            let (Some(left), Some(right), Some(joined)) = (id(left), id(right), id(&[left, right].concat())) else {
                return Err(wrong("names a token that is not in the vocabulary"));
            };
            // Text never becomes a mark.
            if matches!(vocabulary.kind(joined), Kind::Normal | Kind::UserDefined) {
                merges.entry((left, right)).or_insert((rank as u32, joined));
            }
        }
        let mut whole: HashMap<Box<[u8]>, u32> = HashMap::new();
        if pre.whole_tokens_first {
            for id in vocabulary.of_kind(Kind::Normal) {
                whole.entry(vocabulary.bytes(id).into()).or_insert(id);
            }
        }
        Ok(Self {
            words: pre.words,
            merges,
            longest: whole.keys().map(|word| word.len()).max().unwrap_or(0),
            whole,
            bytes: vocabulary.byte_ids(),
        })
    }

    /// Append the ids of `text`.
    ///
    /// Bytes for which the vocabulary has no token are left out; only control characters and rare planes are concerned.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        self.words.split(text, &mut |word| {
            let word = word.as_bytes();
            let known = (word.len() <= self.longest).then(|| self.whole.get(word));
            if let Some(id) = known.flatten() {
                return ids.push(*id);
            }
            let parts = word.iter().enumerate().map(|(start, &byte)| Part {
                start,
                end: start + 1,
                id: self.bytes[usize::from(byte)],
            });
            let join = |left: Part, right: Part| self.merges.get(&(left.id?, right.id?)).copied();
            ids.extend(merge(parts.collect(), join).iter().filter_map(|part| part.id));
        });
    }
}

/// The two sides of a merge; a space that is itself the left side begins the string.
fn split_pair(pair: &str) -> Option<(&str, &str)> {
    let first = pair.chars().next()?.len_utf8();
    let space = first + pair[first..].find(' ')?;
    let (left, right) = (&pair[..space], &pair[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}
