//! SentencePiece's byte-pair model: neighbours join in the order of the scores of what they make.

use std::collections::HashMap;

use super::merging::{merge, Part};
use super::vocabulary::{check_len, Kind, Vocabulary};
use crate::error::Result;
use crate::gguf::metadata::Metadata;

const SCORES: &str = "tokenizer.ggml.scores";

/// The model of a vocabulary.
#[derive(Debug)]
pub struct Spm {
    /// Rank and id of every piece of text; a rank is lower, the higher the score.
    pieces: HashMap<Box<[u8]>, (u32, u32)>,
    /// No piece has more bytes.
    longest: usize,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Whether a space is put before a text.
    pub space_prefix: bool,
}

impl Spm {
    /// The model that `metadata` describes for `vocabulary`.
    pub fn read(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Self> {
        let scores =
            metadata.get_f32s(SCORES)?.ok_or_else(|| metadata.error(format_args!("metadata `{SCORES}` is missing")))?;
        check_len(metadata, SCORES, scores.len(), vocabulary.size())?;
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(metadata.error(format_args!("metadata `{SCORES}`: token {id} has no number")));
        }
        let mut order: Vec<f32> = scores.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        let rank = |score: f32| order.partition_point(|&other| other > score) as u32;
        let mut pieces: HashMap<Box<[u8]>, (u32, u32)> = HashMap::new();
        for id in vocabulary.of_kind(Kind::Normal) {
            let bytes = vocabulary.bytes(id);
            let entry = (rank(scores[id as usize]), id);
            pieces.entry(bytes.into()).or_insert(entry);
        }
        let prefix = metadata.get_bool("tokenizer.ggml.add_space_prefix")?;
        Ok(Self {
            longest: pieces.keys().map(|piece| piece.len()).max().unwrap_or(0),
            pieces,
            bytes: vocabulary.byte_ids(),
            unknown: vocabulary.of_kind(Kind::Unknown).next(),
            space_prefix: prefix.unwrap_or(true),
        })
    }

    /// Append `text` to `whole`, a text as the model sees it: with a space before it.
    pub fn normalize(&self, text: &str, whole: &mut String) {
        if self.space_prefix && whole.is_empty() && !text.is_empty() {
            whole.push(' ');
        }
        // The model writes `▁` for the space and cannot tell the two apart.
        whole.push_str(&text.replace('▁', " "));
    }

    /// Append the ids of a part of a normalized text.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = text.as_bytes();
        let find = |start: usize, end: usize| {
            let piece = text.get(start..end).filter(|piece| piece.len() <= self.longest);
            self.pieces.get(piece?).copied()
        };
        let mut parts = Vec::with_capacity(text.len());
        for end in 1..=text.len() {
            // Bytes of the form 10xxxxxx continue a character.
            if text.get(end).is_none_or(|byte| byte & 0xC0 != 0x80) {
                let start = parts.last().map_or(0, |part: &Part| part.end);
                let id = find(start, end).map(|(_, id)| id);
                parts.push(Part { start, end, id });
            }
        }
        for part in merge(parts, |left, right| find(left.start, right.end)) {
            match part.id {
                Some(id) => ids.push(id),
                None => self.encode_bytes(&text[part.start..part.end], ids),
            }
        }
    }

    /// Append the ids of a character that has no token: one for each byte, or one that stands for the unknown.
    fn encode_bytes(&self, character: &[u8], ids: &mut Vec<u32>) {
        let bytes = character.iter().map(|&byte| self.bytes[usize::from(byte)]);
        match bytes.collect::<Option<Vec<_>>>() {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unknown),
        }
    }
}
