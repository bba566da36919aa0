//! Cutting text into the words inside which a byte-pair model may merge.
//!
//! The rules are the regular expressions of the models' own tokenizers, written out as code: their look-ahead makes
//! engines that backtrack slow, or fail, on long runs of white space.

use regex_syntax::hir::{Class, HirKind};

/// The values of `tokenizer.ggml.pre` that are known, with their rules.
const RULES: [(&str, Rule); 17] = [
    ("llama-bpe", Rule::Llama3 { digits: 3 }),
    ("llama3", Rule::Llama3 { digits: 3 }),
    ("llama-v3", Rule::Llama3 { digits: 3 }),
    ("falcon3", Rule::Llama3 { digits: 3 }),
    ("smaug-bpe", Rule::Llama3 { digits: 3 }),
    ("qwen2", Rule::Llama3 { digits: 1 }),
    ("deepseek-r1-qwen", Rule::Llama3 { digits: 1 }),
    ("stablelm2", Rule::Llama3 { digits: 1 }),
    ("smollm", Rule::SingleDigits),
    ("starcoder", Rule::SingleDigits),
    ("refact", Rule::SingleDigits),
    ("command-r", Rule::SingleDigits),
    ("gpt-2", Rule::Gpt2),
    ("gpt2", Rule::Gpt2),
    ("mpt", Rule::Gpt2),
    ("olmo", Rule::Gpt2),
    ("default", Rule::Default),
];

#[derive(Clone, Copy, Debug)]
enum Rule {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every character of `\p{N}` alone, the rest by [`Rule::Gpt2`].
    SingleDigits,
    /// Runs of `[\p{P}$+<=>^~|]` alone, the rest by [`Rule::Gpt2`]; in that, numbers alone and in threes.
    Default,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|`
    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3 { digits: usize },
}

/// The names among them for tokenizers whose words stay whole if they are a token and whose texts begin with BOS.
const LLAMA_3: [&str; 4] = ["llama-bpe", "llama3", "llama-v3", "falcon3"];

/// How a family of models cuts text.
#[derive(Debug)]
pub struct Words {
    rule: Rule,
    is_llama_3: bool,
    letters: CharacterClass,
    punctuation: CharacterClass,
}

impl Words {
    /// The rule that files call `name`, if it is known.
    pub fn named(name: &str) -> Option<Self> {
        let (_, rule) = RULES.into_iter().find(|(other, _)| *other == name)?;
        Some(Self {
            rule,
            is_llama_3: LLAMA_3.contains(&name),
            letters: CharacterClass::parse(r"\p{L}"),
            punctuation: CharacterClass::parse(r"[\p{P}$+<=>^~|]"),
        })
    }

    /// The names of all rules.
    pub fn names() -> String {
        RULES.map(|(name, _)| name).join(", ")
    }

    /// Whether words stay whole if they are a token and texts begin with BOS, as in Llama 3.
    pub fn is_llama_3(&self) -> bool {
        self.is_llama_3
    }

    /// Call `emit` with each word of `text`; the words together are the text.
    pub fn split(&self, text: &str, emit: &mut impl FnMut(&str)) {
        match self.rule {
            Rule::Gpt2 => self.gpt2_words(text, emit),
            Rule::Llama3 { digits } => cut(text, |text| self.llama3_word(text, digits), emit),
            Rule::SingleDigits => alternate(text, char::is_numeric, &mut |run, numeric| {
                if numeric {
                    cut(run, |run| run.chars().next().map_or(0, char::len_utf8), emit);
                } else {
                    self.gpt2_words(run, emit);
                }
            }),
            Rule::Default => {
                let punctuation = |char| self.punctuation.contains(char);
                alternate(text, punctuation, &mut |run, punctuation| {
                    if punctuation {
                        emit(run);
                    } else {
                        self.gpt2_words(run, &mut |word| {
                            alternate(word, char::is_numeric, &mut |run, _| cut_threes(run, emit));
                        });
                    }
                });
            }
        }
    }

    fn gpt2_words(&self, text: &str, emit: &mut impl FnMut(&str)) {
        cut(text, |text| self.gpt2_word(text), emit);
    }

    /// Length of the first word by [`Rule::Gpt2`].
    fn gpt2_word(&self, text: &str) -> usize {
        const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
        if let Some(found) = CONTRACTIONS.iter().find(|c| text.starts_with(**c)) {
            return found.len();
        }
        let space = usize::from(text.starts_with(' '));
        let rest = &text[space..];
        for len in [
            run(rest, |char| self.letters.contains(char)),
            run(rest, char::is_numeric),
            run(rest, |char| self.is_other(char)),
        ] {
            if len > 0 {
                return space + len;
            }
        }
        white_space(text)
    }

    /// Length of the first word by [`Rule::Llama3`].
    fn llama3_word(&self, text: &str, digits: usize) -> usize {
        if let Some(len) = contraction(text) {
            return len;
        }
        let is_letter = |char| self.letters.contains(char);
        let letters = run(text, is_letter);
        if letters > 0 {
            return letters;
        }
        let first = text.chars().next().unwrap_or_default();
        let numeric = first.is_numeric();
        if !numeric && !matches!(first, '\r' | '\n') {
            let letters = run(&text[first.len_utf8()..], is_letter);
            if letters > 0 {
                return first.len_utf8() + letters;
            }
        }
        if numeric {
            let number = text.chars().take(digits).take_while(|c| c.is_numeric());
            return number.map(char::len_utf8).sum();
        }
        let space = usize::from(first == ' ');
        let others = run(&text[space..], |char| self.is_other(char));
        if others > 0 {
            let len = space + others;
            return len + run(&text[len..], |char| matches!(char, '\r' | '\n'));
        }
        let blank = &text[..run(text, char::is_whitespace)];
        match blank.rfind(['\r', '\n']) {
            Some(newline) => newline + 1,
            None => white_space(text),
        }
    }

    /// `[^\s\p{L}\p{N}]`
    fn is_other(&self, char: char) -> bool {
        !(char.is_whitespace() || char.is_numeric() || self.letters.contains(char))
    }
}

/// Call `emit` with one word after the other, whose lengths `first_word` tells.
fn cut(mut text: &str, first_word: impl Fn(&str) -> usize, emit: &mut impl FnMut(&str)) {
    while !text.is_empty() {
        let (word, rest) = text.split_at(first_word(text));
        emit(word);
        text = rest;
    }
}

/// Call `emit` with the longest runs of characters that `is` holds for, or does not.
fn alternate(mut text: &str, is: impl Fn(char) -> bool, emit: &mut impl FnMut(&str, bool)) {
    while let Some(first) = text.chars().next() {
        let kind = is(first);
        let (same, rest) = text.split_at(run(text, |char| is(char) == kind));
        emit(same, kind);
        text = rest;
    }
}

/// Call `emit` with every `[0-9][0-9][0-9]` and with what lies between them.
fn cut_threes(text: &str, emit: &mut impl FnMut(&str)) {
    let bytes = text.as_bytes();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        let threes = bytes[at..].get(..3);
        if threes.is_some_and(|threes| threes.iter().all(u8::is_ascii_digit)) {
            if start < at {
                emit(&text[start..at]);
            }
            emit(&text[at..at + 3]);
            at += 3;
            start = at;
        } else {
            at += 1;
        }
    }
    if start < text.len() {
        emit(&text[start..]);
    }
}

/// Bytes of the characters at the beginning of `text` that `is` holds for.
fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|char| !is(char)).unwrap_or(text.len())
}

/// `\s+(?!\S)|\s+`: white space, but its last character stays with a word that follows it.
fn white_space(text: &str) -> usize {
    let len = run(text, char::is_whitespace);
    let last = text[..len].chars().next_back().map_or(0, char::len_utf8);
    if len < text.len() && last < len {
        len - last
    } else {
        len
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
fn contraction(text: &str) -> Option<usize> {
    let mut letters = text.strip_prefix('\'')?.bytes().map(|b| b.to_ascii_lowercase());
    match (letters.next()?, letters.next()) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// A set of characters.
#[derive(Debug)]
struct CharacterClass {
    ascii: [bool; 128],
    /// Sorted ranges, both ends included.
    ranges: Vec<(char, char)>,
}

impl CharacterClass {
    /// The class that a regular expression of one class describes.
    fn parse(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).map(|hir| hir.into_kind());
        let Ok(HirKind::Class(Class::Unicode(class))) = hir else {
            unreachable!("the patterns are constants of this file");
        };
        let ranges: Vec<_> = class.iter().map(|r| (r.start(), r.end())).collect();
        let mut set = Self { ascii: [false; 128], ranges };
        set.ascii = std::array::from_fn(|code| set.search(char::from(code as u8)));
        set
    }

    fn contains(&self, char: char) -> bool {
        match self.ascii.get(char as usize) {
            Some(&contained) => contained,
            None => self.search(char),
        }
    }

    fn search(&self, char: char) -> bool {
        let index = self.ranges.partition_point(|&(_, end)| end < char);
        self.ranges.get(index).is_some_and(|&(start, _)| start <= char)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(rule: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let rule = Words::named(rule).unwrap();
        rule.split(text, &mut |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text);
        assert!(words.iter().all(|word| !word.is_empty()));
        words
    }

    #[test]
    fn gpt2_keeps_one_space_with_the_next_word() {
        let text = "I'm  here, it's 2024!\n\n x \t";
        let expected = ["I", "'m", " ", " here", ",", " it", "'s", " 2024", "!", "\n\n", " x", " \t"];
        assert_eq!(words("gpt-2", text), expected);
        assert_eq!(words("gpt-2", "\tx 'S"), ["\t", "x", " '", "S"]);
    }

    #[test]
    fn single_digits_stand_alone() {
        assert_eq!(words("smollm", "a 123  4½"), ["a", " ", "1", "2", "3", "  ", "4", "½"]);
    }

    #[test]
    fn llama_3_takes_newlines_and_three_digits() {
        let expected = ["\tif", " (", "x", ")\n\n", "  \n", " ", " y", " ", "123", "45", "'LL", "!"];
        assert_eq!(words("llama-bpe", "\tif (x)\n\n  \n  y 12345'LL!"), expected);
        assert_eq!(words("qwen2", "a12"), ["a", "1", "2"]);
        assert_eq!(words("llama3", "'re're'x'"), ["'re", "'re", "'x", "'"]);
        assert_eq!(words("llama3", "  "), ["  "]);
        // The same words, but merges make them and no BOS comes first.
        let text = "\tif (x)\n\n  \n  y 12345'LL!";
        assert_eq!(words("smaug-bpe", text), words("llama3", text));
        assert!(Words::named("llama3").unwrap().is_llama_3() && !Words::named("smaug-bpe").unwrap().is_llama_3());
    }

    #[test]
    fn default_cuts_punctuation_and_threes() {
        let expected = ["x", "+=", " ", "123", "45", ";", " it", "'", "s", " ", "१२", "345"];
        assert_eq!(words("default", "x+= 12345; it's १२345"), expected);
    }

    #[test]
    fn classes_follow_unicode() {
        let letters = CharacterClass::parse(r"\p{L}");
        for (char, is) in [('a', true), ('É', true), ('中', true), ('\u{0301}', false), ('1', false), ('_', false)] {
            assert_eq!(letters.contains(char), is, "{char}");
        }
    }
}
