//! The tokens of a model file: what each is for and which bytes it stands for.

use crate::error::Result;
use crate::gguf::metadata::Metadata;
use crate::gguf::strings::Strings;

const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";

/// How the strings of the file spell the bytes of text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spelling {
    /// As they are, but with `▁` for the space (SentencePiece).
    Sentence,
    /// With one printable character for each byte (GPT-2).
    Bytes,
}

/// What a token is for, by the numbers of `llama_token_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A piece of text.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// A mark such as the end of a turn; never text.
    Control,
    /// Text that always stays one token.
    UserDefined,
    /// A row that only fills the vocabulary up.
    Unused,
    /// A single byte.
    Byte,
}

/// Every token of a file, by id.
#[derive(Debug)]
pub struct Vocabulary {
    strings: Strings,
    kinds: Vec<Kind>,
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where the bytes of each token end.
    ends: Vec<usize>,
}

impl Vocabulary {
    /// The tokens that `metadata` lists.
    pub fn read(metadata: &Metadata, spelling: Spelling) -> Result<Self> {
        let strings = match metadata.get_strings(TOKENS)? {
            Some(strings) if !strings.is_empty() => strings.clone(),
            _ => return Err(metadata.error(format_args!("metadata `{TOKENS}` is missing or empty"))),
        };
        let kinds = read_kinds(metadata, strings.len(), spelling)?;
        let mut bytes = Vec::with_capacity(strings.iter().map(str::len).sum());
        let mut ends = Vec::with_capacity(strings.len());
        for (id, (string, kind)) in strings.iter().zip(&kinds).enumerate() {
            match kind {
                Kind::Normal => spell(string, spelling, &mut bytes),
                Kind::UserDefined if spelling == Spelling::Sentence => {
                    spell(string, spelling, &mut bytes);
                }
                Kind::UserDefined => bytes.extend(string.as_bytes()),
                Kind::Byte => bytes.push(byte_of(string).ok_or_else(|| {
                    metadata.error(format_args!(
                        "token {id} is a byte by its type but is spelt {string:?}, not like \"<0x0A>\""
                    ))
                })?),
                Kind::Control | Kind::Unknown | Kind::Unused => (),
            }
            ends.push(bytes.len());
        }
        Ok(Self { strings, kinds, bytes, ends })
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.strings.len()
    }

    /// The file's own string of `id`, if there is such a token.
    pub fn string(&self, id: u32) -> Option<&str> {
        self.strings.get(id as usize)
    }

    /// What `id` is for; ids beyond the last token are unused.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    /// Make marks of `ids`, which were text by their types.
    pub fn make_marks(&mut self, ids: &[u32]) {
        for &id in ids {
            self.kinds[id as usize] = Kind::Control;
        }
    }

    /// What `id` adds to a text: nothing, if it is a mark or unused.
    pub fn bytes(&self, id: u32) -> &[u8] {
        if self.kind(id) == Kind::Control {
            return &[];
        }
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// How `id` is written in a text that is to be tokenised: a mark, which adds nothing to a text, by its name.
    pub fn written(&self, id: u32) -> &[u8] {
        match self.bytes(id) {
            [] => self.string(id).unwrap_or_default().as_bytes(),
            bytes => bytes,
        }
    }

    /// Every id of the kind `kind`.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = u32> + '_ {
        let ids = self.kinds.iter().zip(0..);
        ids.filter(move |(other, _)| **other == kind).map(|(_, id)| id)
    }

    /// The token of each byte where there is one.
    pub fn byte_ids(&self) -> [Option<u32>; 256] {
        let mut ids = [None; 256];
        // Tokens of the kind come last, so that they win over text of one byte.
        for id in self.of_kind(Kind::Normal).chain(self.of_kind(Kind::Byte)) {
            if let [byte] = self.bytes(id) {
                ids[usize::from(*byte)] = Some(id);
            }
        }
        ids
    }
}

fn read_kinds(metadata: &Metadata, len: usize, spelling: Spelling) -> Result<Vec<Kind>> {
    let Some(numbers) = metadata.get_integers(KINDS)? else {
        return match spelling {
            Spelling::Bytes => Ok(vec![Kind::Normal; len]),
            // Without it, bytes and marks could not be told from text.
            Spelling::Sentence => Err(metadata.error(format_args!("metadata `{KINDS}` is missing"))),
        };
    };
    check_len(metadata, KINDS, numbers.len(), len)?;
    let kind = |number: &i64| match number {
        0 | 1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 => Ok(Kind::Byte),
        _ => Err(metadata.error(format_args!("metadata `{KINDS}` has the unknown type {number}"))),
    };
    numbers.iter().map(kind).collect()
}

/// Refuse an array `key` that has not one entry per token.
pub fn check_len(metadata: &Metadata, key: &str, found: usize, tokens: usize) -> Result<()> {
    if found == tokens {
        return Ok(());
    }
    Err(metadata.error(format_args!("metadata `{key}` has {found} entries but there are {tokens} tokens")))
}

/// Append the bytes that `string` stands for.
fn spell(string: &str, spelling: Spelling, bytes: &mut Vec<u8>) {
    for char in string.chars() {
        let byte = match spelling {
            Spelling::Sentence => (char == '▁').then_some(b' '),
            Spelling::Bytes => byte_of_char(char),
        };
        match byte {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The byte that GPT-2 writes as `char`: printable Latin-1 characters are themselves, all other bytes follow from
/// U+0100 on in their order.
fn byte_of_char(char: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u8::try_from(char) {
        Ok(byte) => printable(byte).then_some(byte),
        Err(_) => {
            let index = (char as usize).checked_sub(0x100)?;
            (0..=255).filter(|&byte| !printable(byte)).nth(index)
        }
    }
}

/// The byte that `<0x0A>` writes in hexadecimal.
fn byte_of(string: &str) -> Option<u8> {
    let digits = string.strip_prefix("<0x")?.strip_suffix('>')?;
    let two_digits = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    two_digits.then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_printable_character() {
        // The first and last bytes that are moved, from GPT-2's published table.
        assert_eq!(byte_of_char('Ā'), Some(0));
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('Ń'), Some(0xAD));
        assert_eq!(byte_of_char('ń'), None);
        assert_eq!(byte_of_char('a'), Some(b'a'));
        assert_eq!(byte_of_char('ÿ'), Some(0xFF));
        assert_eq!(byte_of_char(' '), None);
        let mut bytes: Vec<_> = ('\0'..'ń').filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xfF>"), Some(255));
        for wrong in ["<0x0>", "<0x00A>", "<0xGG>", "0x0A", "<0x+1>", ""] {
            assert_eq!(byte_of(wrong), None, "{wrong}");
        }
    }
}
