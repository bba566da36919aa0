//! Which tokens begin and end texts: by the keys of the file, and by what they are called.

use super::vocabulary::{Kind, Spelling, Vocabulary};
use crate::error::Result;
use crate::gguf::metadata::Metadata;

/// Names that end a turn or a text in the models that have them, whether or not the metadata says so.
const END_MARKS: [&str; 22] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<|EOT|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    // What follows a file when the middle of it was asked for.
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The marks of a vocabulary that have a meaning.
#[derive(Debug)]
pub struct Specials {
    /// The mark at the beginning of a text.
    pub bos: Option<u32>,
    /// The mark at the end of a text.
    pub eos: Option<u32>,
    /// Every id that ends a generation, in ascending order.
    pub end_ids: Vec<u32>,
    /// What the file says about marks and cannot be followed, a sentence each.
    pub notes: Vec<String>,
}

impl Specials {
    /// The marks that `metadata` declares in `vocabulary`, and those with names that are known.
    pub fn read(metadata: &Metadata, vocabulary: &Vocabulary, spelling: Spelling) -> Result<Self> {
        let mut notes = Vec::new();
        let mut id = |name: &str| special_id(metadata, vocabulary, name, &mut notes);
        // Old SentencePiece files leave out what is the same in all of them.
        let usual = |id: u32| (spelling == Spelling::Sentence && vocabulary.kind(id) == Kind::Control).then_some(id);
        let bos = id("bos")?.or_else(|| usual(1));
        let eos = id("eos")?.or_else(|| usual(2));
        let mut end_ids: Vec<u32> = [eos, id("eot")?, id("eom")?].into_iter().flatten().collect();
        end_ids.extend(more_ends(metadata, vocabulary, &mut notes)?);
        end_ids.extend(known_ends(vocabulary));
        // Where a reply ends with `<|return|>` or `<|call|>`, `<|end|>` only ends a part of it, whatever a key says.
        let marks = |name: &'static str| marks(vocabulary).filter(move |&id| vocabulary.string(id) == Some(name));
        if marks("<|return|>").next().is_some() && marks("<|call|>").next().is_some() {
            end_ids.retain(|&id| vocabulary.string(id) != Some("<|end|>"));
        }
        end_ids.sort_unstable();
        end_ids.dedup();
        Ok(Self { bos, eos, end_ids, notes })
    }
}

/// The id that the metadata gives the mark `name`; one that no token has counts as missing.
fn special_id(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let id = metadata.get_u64(&key)?;
    Ok(id.and_then(|id| known(vocabulary, &key, i128::from(id), notes)))
}

/// The ends that Ollama's converter lists.
fn more_ends(metadata: &Metadata, vocabulary: &Vocabulary, notes: &mut Vec<String>) -> Result<Vec<u32>> {
    const KEY: &str = "tokenizer.ggml.eos_token_ids";
    let ids = metadata.get_integers(KEY)?.unwrap_or_default();
    Ok(ids.into_iter().filter_map(|id| known(vocabulary, KEY, i128::from(id), notes)).collect())
}

/// `id`, or a note that the vocabulary has no such token.
fn known(vocabulary: &Vocabulary, key: &str, id: i128, notes: &mut Vec<String>) -> Option<u32> {
    let tokens = vocabulary.size();
    let known = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens);
    if known.is_none() {
        notes.push(format!("metadata `{key}` names token {id} but there are only {tokens}: it counts as missing"));
    }
    known
}

/// Ends by their names.
fn known_ends(vocabulary: &Vocabulary) -> impl Iterator<Item = u32> + '_ {
    marks(vocabulary).filter(|&id| match vocabulary.string(id) {
        // In some vocabularies it is a tag of HTML.
        Some("</s>") => vocabulary.kind(id) == Kind::Control,
        name => name.is_some_and(|name| END_MARKS.contains(&name)),
    })
}

/// Tokens that are not made by merging.
fn marks(vocabulary: &Vocabulary) -> impl Iterator<Item = u32> + '_ {
    [Kind::Control, Kind::UserDefined].into_iter().flat_map(|kind| vocabulary.of_kind(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{tiny_bpe, tiny_spm, GgufWriter};
    use crate::gguf::file::GgufFile;
    use crate::gguf::metadata::{Array, Value};

    fn read(model: &GgufWriter, spelling: Spelling) -> Specials {
        let file = model.file();
        let file = GgufFile::open(file.path()).unwrap();
        let vocabulary = Vocabulary::read(file.metadata(), spelling).unwrap();
        Specials::read(file.metadata(), &vocabulary, spelling).unwrap()
    }

    /// The names of the ends, in the order of their ids.
    fn ends(tokens: &[(&str, i32)], keys: &[(&str, u32)]) -> Vec<String> {
        let mut model = GgufWriter::new();
        model.vocabulary("gpt2", tokens);
        for (key, id) in keys {
            model.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(*id));
        }
        let ids = read(&model, Spelling::Bytes).end_ids;
        ids.into_iter().map(|id| tokens[id as usize].0.to_owned()).collect()
    }

    #[test]
    fn all_declared_and_known_ends_are_found() {
        let mut model = tiny_bpe(&[]);
        let turn = model.add_token("<|my_turn|>", 3);
        let eot = model.add_token("<|eot_id|>", 3);
        let end = model.add_token("<|end|>", 4);
        model.add_token("<end_of_turn>", 1);
        let message = model.add_token("<|message|>", 3);
        let [other, last] = ["<|a|>", "<|b|>"].map(|mark| model.add_token(mark, 3));
        model.set("tokenizer.ggml.eot_token_id", Value::U32(turn));
        model.set("tokenizer.ggml.eom_token_id", Value::U32(message));
        let list = vec![other as i32, last as i32, 1];
        model.set("tokenizer.ggml.eos_token_ids", Value::Array(Array::I32(list)));
        let specials = read(&model, Spelling::Bytes);
        assert_eq!((specials.bos, specials.eos), (Some(0), Some(1)));
        assert_eq!(specials.end_ids, [1, turn, eot, end, message, other, last]);
        assert!(specials.notes.is_empty());
    }

    #[test]
    fn every_known_name_ends() {
        for name in END_MARKS {
            assert_eq!(ends(&[("a", 1), (name, 3)], &[]), [name]);
            assert!(ends(&[("a", 1), (name, 1)], &[]).is_empty(), "{name}");
        }
    }

    #[test]
    fn harmony_ends_a_part_of_a_reply_with_end() {
        let (end, back, call) = (("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3));
        assert_eq!(ends(&[end, back, call], &[]), ["<|return|>", "<|call|>"]);
        assert_eq!(ends(&[end, back, call], &[("eot", 0), ("eos", 1)]), ["<|return|>", "<|call|>"]);
        assert_eq!(ends(&[end, back], &[]), ["<|end|>", "<|return|>"]);
        // A word that merges make is no mark.
        assert_eq!(ends(&[end, back, ("<|call|>", 1)], &[]), ["<|end|>", "<|return|>"]);
    }

    #[test]
    fn a_tag_of_html_ends_only_where_the_file_says_so() {
        assert_eq!(ends(&[("</s>", 3)], &[]), ["</s>"]);
        for kind in [1, 4] {
            assert!(ends(&[("a", 1), ("</s>", kind)], &[]).is_empty());
            assert_eq!(ends(&[("a", 1), ("</s>", kind)], &[("eos", 1)]), ["</s>"]);
        }
    }

    #[test]
    fn a_mark_of_the_next_turn_ends_where_a_key_names_it() {
        let tokens = [("<|endoftext|>", 3), ("<|user|>", 3), ("<|assistant|>", 3)];
        assert_eq!(ends(&tokens, &[("eos", 0)]), ["<|endoftext|>"]);
        assert_eq!(ends(&tokens, &[("eos", 0), ("eot", 1)]), ["<|endoftext|>", "<|user|>"]);
    }

    #[test]
    fn ids_beyond_the_vocabulary_count_as_missing() {
        let mut model = tiny_bpe(&[]);
        model.set("tokenizer.ggml.bos_token_id", Value::U32(u32::MAX));
        model.set("tokenizer.ggml.eot_token_id", Value::U64(1 << 40));
        model.set("tokenizer.ggml.eos_token_ids", Value::Array(Array::I32(vec![1, -1])));
        let specials = read(&model, Spelling::Bytes);
        assert_eq!((specials.bos, specials.end_ids), (None, vec![1]));
        let note = "metadata `tokenizer.ggml.bos_token_id` names token 4294967295 but there are only";
        assert!(specials.notes[0].starts_with(note), "{:?}", specials.notes);
        assert_eq!(specials.notes.len(), 3);
        // What is the same in all SentencePiece files holds there, too.
        let mut model = tiny_spm(&[]);
        model.set("tokenizer.ggml.eos_token_id", Value::U32(259));
        let specials = read(&model, Spelling::Sentence);
        assert_eq!((specials.bos, specials.eos, specials.notes.len()), (Some(1), Some(2), 1));
    }
}
