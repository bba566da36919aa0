//! Text to token ids and back, as the metadata of a model file describes it.

use std::ops::Range;

use crate::arch::roles::Role;
use crate::error::{Error, Result};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::Metadata;

use crate::tokenizer::bpe::Bpe;
use crate::tokenizer::markers::{Fragment, Markers};
use crate::tokenizer::pre::Pre;
use crate::tokenizer::specials::Specials;
use crate::tokenizer::spm::Spm;
use crate::tokenizer::turns;
use crate::tokenizer::vocabulary::{Kind, Spelling, Vocabulary};

const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// The tokenizer of a model file; immutable, so that threads can share it.
#[derive(Debug)]
pub struct Tokenizer {
    n_vocab: usize,
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    /// Tokens that are found in any text.
    user_defined: Markers,
    /// Those, and the marks that are found only where the caller allows it.
    marks: Markers,
    specials: Specials,
    /// User-defined tokens that [`Marks::Quoted`] text never becomes, in ascending order.
    turn_marks: Vec<u32>,
    add_bos: bool,
    chat_template: Option<String>,
    notes: Vec<String>,
}

/// Which tokens the spelling of a mark in a text becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marks {
    /// Every mark.
    All,
    /// Only user-defined ones, which are text.
    UserDefined,
    /// As `UserDefined`, but for those that begin or end a turn of a chat.
    Quoted,
}

#[derive(Debug)]
enum Algorithm {
    Spm(Box<Spm>),
    Bpe(Box<Bpe>),
}

impl Algorithm {
    /// How such a vocabulary spells text.
    fn spelling(&self) -> Spelling {
        match self {
            Self::Spm(_) => Spelling::Sentence,
            Self::Bpe(_) => Spelling::Bytes,
        }
    }

    /// Append the ids of `text`, which holds no marks.
    fn append(&self, text: &str, ids: &mut Vec<u32>) {
        match self {
            Self::Spm(spm) => spm.encode(text, ids),
            Self::Bpe(bpe) => bpe.encode(text, ids),
        }
    }

    /// The ids of `text`, which holds no marks.
    fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.append(text, &mut ids);
        ids
    }
}

impl Tokenizer {
    /// The tokenizer of the model in `file`.
    ///
    /// An [`Error::Gguf`] says what is missing, contradictory or not supported.
    pub fn from_gguf(file: &GgufFile) -> Result<Self> {
        let metadata = file.metadata();
        let (mut vocabulary, algorithm, default_add_bos) = read_algorithm(metadata)?;
        let n_vocab = match file.tensor(&Role::Embedding.to_string()) {
            None => vocabulary.size(),
            Some(tensor) if tensor.rows() >= vocabulary.size() => tensor.rows(),
            Some(tensor) => {
                return Err(metadata.error(format_args!(
                    "the vocabulary has {} tokens but tensor `{}` only {} rows",
                    vocabulary.size(),
                    tensor.name,
                    tensor.rows()
                )))
            }
        };
        let chat_template = metadata.get_str("tokenizer.chat_template")?;
        let mistyped = turns::mistyped(&vocabulary, chat_template.unwrap_or_default(), |text| algorithm.encode(text));
        vocabulary.make_marks(&mistyped);
        let specials = Specials::read(metadata, &vocabulary, algorithm.spelling())?;
        let mut notes = specials.notes.clone();
        notes.extend(mistyped.iter().map(|&id| {
            let text = vocabulary.string(id).unwrap_or_default();
            format!(
                "token {id}, `{text}`, is text by its type, but the chat template uses it as a mark: it counts as one"
            )
        }));
        let add_bos = match metadata.get_bool(ADD_BOS)? {
            Some(true) if specials.bos.is_none() => {
                return Err(metadata
                    .error(format_args!("metadata `{ADD_BOS}` is true but `tokenizer.ggml.bos_token_id` is missing")))
            }
            Some(add_bos) => add_bos,
            None => default_add_bos && specials.bos.is_some(),
        };
        // Phi-3's own tokenizer says so of each mark; no key of the file does.
        let is_phi_3 =
            matches!(algorithm, Algorithm::Spm(_)) && metadata.get_str("general.architecture")? == Some("phi3");
        let takes_space =
            |id: u32| is_phi_3 && !matches!(vocabulary.string(id), Some("<s>" | "<unk>" | "<|endoftext|>"));
        let markers = |kinds: &[Kind]| Markers::new(metadata, &vocabulary, kinds, takes_space);
        Ok(Self {
            n_vocab,
            user_defined: markers(&[Kind::UserDefined])?,
            marks: markers(&[Kind::UserDefined, Kind::Control, Kind::Unknown])?,
            turn_marks: turns::turn_marks(&vocabulary, chat_template.unwrap_or_default(), &specials),
            vocabulary,
            algorithm,
            specials,
            add_bos,
            chat_template: chat_template.map(str::to_owned),
            notes,
        })
    }

    /// Number of ids: the rows of the embedding table, which may be more than there are tokens.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The mark at the beginning of a text.
    pub fn bos(&self) -> Option<u32> {
        self.specials.bos
    }

    /// The mark at the end of a text.
    pub fn eos(&self) -> Option<u32> {
        self.specials.eos
    }

    /// Every id that ends a generation, in ascending order: what the file declares as end of text, of turn or of
    /// message, and marks that are known to be one.
    pub fn end_ids(&self) -> &[u32] {
        &self.specials.end_ids
    }

    /// What the file says about its marks and cannot be followed, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether a text begins with [`Self::bos`] unless the caller decides otherwise.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The Jinja template of the model's chats.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The ids of `text`.
    ///
    /// Marks in `text` are plain text, unless `parse_special`. With `add_bos` true or false a BOS is put first or not;
    /// with `None` the file decides, and none is added to a text that begins with one already. An EOS is never added,
    /// whatever the file says, because a prompt is there to be continued.
    ///
    /// An [`Error::Argument`] says that the model has no BOS to add.
    pub fn encode(&self, text: &str, add_bos: Option<bool>, parse_special: bool) -> Result<Vec<u32>> {
        let mut ids = self.encode_pieces(&[(text, if parse_special { Marks::All } else { Marks::UserDefined })]);
        let add = add_bos.unwrap_or(self.add_bos && ids.first().copied() != self.bos());
        match self.bos() {
            Some(bos) if add => ids.insert(0, bos),
            None if add => {
                let message = "the model has no BOS token; leave out add_bos=True";
                return Err(Error::Argument(message.to_owned()));
            }
            _ => (),
        }
        Ok(ids)
    }

    /// The ids of a text in pieces, each with what the spelling of a mark in it means; no mark lies in two pieces.
    ///
    /// The pieces are one text: but for marks, their borders are not seen.
    pub fn encode_pieces(&self, pieces: &[(&str, Marks)]) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut open: Vec<(&str, Marks)> = Vec::new(); // since the last mark
        let mut takes_space = false;
        for &(mut text, marks) in pieces {
            if takes_space {
                text = text.trim_start();
            }
            takes_space &= text.is_empty();
            if marks == Marks::All {
                // What is user-defined is text, for which a model may have rules of its own.
                let is_mark = |id: u32| self.vocabulary.kind(id) != Kind::UserDefined;
                let mut start = 0;
                for found in self.marks.find(text, |_, _| true).filter(|found| is_mark(found.id)) {
                    open.push((&text[start..found.place.start], marks));
                    self.encode_text(&open, &mut ids);
                    open.clear();
                    ids.push(found.id);
                    start = found.place.end;
                    takes_space = found.takes_space && start == text.len();
                }
                text = &text[start..];
            }
            open.push((text, marks));
        }
        self.encode_text(&open, &mut ids);
        ids
    }

    /// Append the ids of the text in `pieces`, which has no marks but stands between them.
    fn encode_text(&self, pieces: &[(&str, Marks)], ids: &mut Vec<u32>) {
        let mut text = String::with_capacity(pieces.iter().map(|(text, _)| text.len() + 1).sum());
        let mut quoted = Vec::new();
        for &(piece, marks) in pieces {
            let start = text.len();
            match &self.algorithm {
                Algorithm::Spm(spm) => spm.normalize(piece, &mut text),
                Algorithm::Bpe(_) => text.push_str(piece),
            }
            if marks == Marks::Quoted {
                quoted.push(start..text.len());
            }
        }
        let counts = |place: &Range<usize>, id: u32| {
            self.turn_marks.binary_search(&id).is_err() || {
                let next = quoted.partition_point(|quote| quote.end <= place.start);
                quoted.get(next).is_none_or(|quote| place.end <= quote.start)
            }
        };
        self.user_defined.split(&text, counts, |fragment| match fragment {
            Fragment::Marker(id) => ids.push(id),
            Fragment::Text(text) => self.algorithm.append(text, ids),
        });
    }

    /// The text of `ids`, without marks if `skip_special`; bytes that are no UTF-8 become U+FFFD.
    ///
    /// The space that [`Self::encode`] puts before a text is taken away again. An [`Error::Argument`] names an id that
    /// is out of range.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut bytes = Vec::new();
        let mut drop_space = self.begins_with_space();
        for &id in ids {
            bytes.extend(self.text_bytes(id, skip_special, &mut drop_space)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes that `id` adds to a text, of which `drop_space` tells whether the space before it is still to come.
    ///
    /// A mark adds its name, or nothing if `skip_special`.
    pub fn text_bytes(&self, id: u32, skip_special: bool, drop_space: &mut bool) -> Result<&[u8]> {
        if self.is_control(id)? {
            return Ok(if skip_special { &[] } else { self.token(id)?.as_bytes() });
        }
        let bytes = self.vocabulary.bytes(id);
        if *drop_space && !bytes.is_empty() {
            *drop_space = false;
            return Ok(bytes.strip_prefix(b" ").unwrap_or(bytes));
        }
        Ok(bytes)
    }

    /// Whether [`Self::encode`] puts a space before a text.
    pub fn begins_with_space(&self) -> bool {
        matches!(&self.algorithm, Algorithm::Spm(spm) if spm.space_prefix)
    }

    /// The file's own string of `id`; empty for rows beyond the last token.
    pub fn token(&self, id: u32) -> Result<&str> {
        self.check(id)?;
        Ok(self.vocabulary.string(id).unwrap_or_default())
    }

    /// The bytes that `id` adds to a text: none, if it is a mark or padding.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.check(id)?;
        Ok(self.vocabulary.bytes(id))
    }

    /// The mark that is called `name`.
    pub fn control_id(&self, name: &str) -> Option<u32> {
        let found = self.marks.find(name, |place, _| *place == (0..name.len())).next()?;
        matches!(self.vocabulary.kind(found.id), Kind::Control | Kind::Unknown).then_some(found.id)
    }

    /// Whether `id` is a mark, which only `parse_special` finds in a text.
    pub fn is_control(&self, id: u32) -> Result<bool> {
        self.check(id)?;
        Ok(matches!(self.vocabulary.kind(id), Kind::Control | Kind::Unknown))
    }

    /// Whether `id` is an unused row that only pads the vocabulary.
    pub fn is_padding(&self, id: u32) -> Result<bool> {
        self.check(id)?;
        Ok(self.vocabulary.kind(id) == Kind::Unused)
    }

    fn check(&self, id: u32) -> Result<()> {
        if (id as usize) < self.n_vocab {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "token id {id} is out of range: the vocabulary has ids from 0 to {}",
            self.n_vocab - 1
        )))
    }
}

/// Tokens, algorithm, and whether such a tokenizer begins texts with a BOS if the file does not say.
fn read_algorithm(metadata: &Metadata) -> Result<(Vocabulary, Algorithm, bool)> {
    const MODEL: &str = "tokenizer.ggml.model";
    const PRE: &str = "tokenizer.ggml.pre";
    let unsupported = |key: &str, name: &str| {
        let names = Pre::names();
        metadata.error(format_args!(
            "`{key}` \"{name}\" is not supported (supported: `{MODEL}` \"llama\", and \"gpt2\" with `{PRE}` {names})"
        ))
    };
    match metadata.get_str(MODEL)? {
        Some("llama") => {
            let vocabulary = Vocabulary::read(metadata, Spelling::Sentence)?;
            let model = Spm::read(metadata, &vocabulary)?;
            Ok((vocabulary, Algorithm::Spm(Box::new(model)), true))
        }
        Some("gpt2") => {
            let name = metadata.get_str(PRE)?.unwrap_or("default");
            let pre = Pre::named(name).ok_or_else(|| unsupported(PRE, name))?;
            let vocabulary = Vocabulary::read(metadata, Spelling::Bytes)?;
            let add_bos = pre.add_bos;
            let model = Bpe::read(metadata, &vocabulary, pre)?;
            Ok((vocabulary, Algorithm::Bpe(Box::new(model)), add_bos))
        }
        Some(other) => Err(unsupported(MODEL, other)),
        None => Err(metadata.error(format_args!("metadata `{MODEL}` is missing"))),
    }
}

#[cfg(test)]
mod published_ids;
#[cfg(test)]
mod tests;
