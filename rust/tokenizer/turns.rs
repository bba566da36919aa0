//! Tokens that a chat template writes as marks, whatever type the file gives them.

use super::specials::Specials;
use super::vocabulary::{Kind, Vocabulary};

/// Tokens typed as ordinary text that `template` writes and that `encode` never makes of their own text, so that only
/// marks can be meant: converters forget the type of added tokens.
pub fn mistyped(vocabulary: &Vocabulary, template: &str, encode: impl Fn(&str) -> Vec<u32>) -> Vec<u32> {
    let normal = vocabulary.of_kind(Kind::Normal);
    normal
        .filter(|&id| {
            vocabulary
                .string(id)
                .is_some_and(|text| is_bracketed(text) && template.contains(text) && encode(text) != [id])
        })
        .collect()
}

/// User-defined tokens that begin or end a turn, in ascending order; the text of a message never becomes one of them.
///
/// They are the ends that are known, what is spelt like `<|user|>`, and what `template` writes, but for white space and
/// the tags of pairs such as `<think>` and `</think>`, which stand within a turn.
pub fn turn_marks(vocabulary: &Vocabulary, template: &str, specials: &Specials) -> Vec<u32> {
    let user_defined: Vec<_> = vocabulary.of_kind(Kind::UserDefined).collect();
    let texts: Vec<_> = user_defined.iter().filter_map(|&id| vocabulary.string(id)).collect();
    let is_tag = |text: &str| {
        let Some(name) = text.strip_prefix('<') else { return false };
        match name.strip_prefix('/') {
            Some(name) => texts.iter().any(|other| other.strip_prefix('<') == Some(name)),
            None => texts.iter().any(|other| other.strip_prefix("</") == Some(name)),
        }
    };
    let is_mark = |id: u32, text: &str| {
        specials.end_ids.contains(&id)
            || specials.bos == Some(id)
            || ["<|", "|>", "<｜", "｜>"].iter().any(|sign| text.contains(sign))
            || (template.contains(text) && !text.replace('▁', " ").trim().is_empty() && !is_tag(text))
    };
    user_defined.into_iter().filter(|&id| vocabulary.string(id).is_some_and(|text| is_mark(id, text))).collect()
}

/// Whether `text` is spelt as marks are, such as `<|im_end|>` or `[INST]`.
fn is_bracketed(text: &str) -> bool {
    text.len() > 2 && ((text.starts_with('<') && text.ends_with('>')) || (text.starts_with('[') && text.ends_with(']')))
}
