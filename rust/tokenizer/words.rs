//! Cutting text into the words inside which a byte-pair model may merge.
//!
//! The rules are the regular expressions of the models' own tokenizers, written out as code: their look-ahead makes
//! engines that backtrack slow, or fail, on long runs of white space.

use super::classes::CharacterClass;

/// How a family of models cuts text. The rules are alternatives at each place, of which the first that fits counts.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Every character of `\p{N}` alone, the rest by [`Rule::Gpt2`].
    SingleDigits,
    /// Runs of `[\p{P}$+<=>^~|]` alone, the rest by [`Rule::Gpt2`]; in that, numbers alone and in threes.
    Default,
    /// `C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    ///
    /// C is `(?i:'s|'t|'re|'ve|'m|'ll|'d)`. With `marks`, `[\p{L}\p{M}]+` is a word, and `\p{M}` no punctuation.
    Llama3 {
        /// So many digits at most stay together.
        digits: usize,
        /// Whether marks are letters.
        marks: bool,
    },
    /// `P?U*l+C?|P?U+l*C?|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    ///
    /// P is `[^\r\n\p{L}\p{N}]`, U `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, l `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`; C, as above, only with
    /// `contractions`.
    O200k {
        /// So many digits at most stay together.
        digits: usize,
        /// Whether C ends a word.
        contractions: bool,
    },
}

/// A rule with its sets of characters.
#[derive(Debug)]
pub struct Words {
    rule: Rule,
    letters: CharacterClass,
    punctuation: CharacterClass,
    /// U and l of [`Rule::O200k`].
    upper: CharacterClass,
    lower: CharacterClass,
}

impl Words {
    /// Words by `rule`.
    pub fn new(rule: Rule) -> Self {
        let marks = matches!(rule, Rule::Llama3 { marks: true, .. });
        Self {
            rule,
            letters: CharacterClass::parse(if marks { r"[\p{L}\p{M}]" } else { r"\p{L}" }),
            punctuation: CharacterClass::parse(r"[\p{P}$+<=>^~|]"),
            upper: CharacterClass::parse(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
            lower: CharacterClass::parse(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
        }
    }

    /// Call `emit` with each word of `text`; the words together are the text.
    pub fn split(&self, text: &str, emit: &mut impl FnMut(&str)) {
        match self.rule {
            Rule::Gpt2 => self.gpt2_words(text, emit),
            Rule::Llama3 { digits, .. } => cut(text, |text| self.llama3_word(text, digits), emit),
            Rule::O200k { digits, contractions } => {
                cut(text, |text| self.o200k_word(text, digits, contractions), emit);
            }
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
        if let Some(rest) = self.after_prefix(text) {
            let letters = run(rest, is_letter);
            if letters > 0 {
                return text.len() - rest.len() + letters;
            }
        }
        self.other_word(text, digits, |char| matches!(char, '\r' | '\n'))
    }

    /// Length of the first word by [`Rule::O200k`].
    fn o200k_word(&self, text: &str, digits: usize, contractions: bool) -> usize {
        let rest = self.after_prefix(text);
        let with_prefix = |word: &dyn Fn(&str) -> Option<usize>| {
            let rest = rest?;
            Some(text.len() - rest.len() + word(rest)?)
        };
        let lower_word = |text: &str| self.lower_word(text);
        let upper_word = |text: &str| Some(run(text, |char| self.upper.contains(char))).filter(|&len| len > 0);
        let word = with_prefix(&lower_word)
            .or_else(|| lower_word(text))
            .or_else(|| with_prefix(&upper_word))
            .or_else(|| upper_word(text));
        match word {
            Some(len) if contractions => len + contraction(&text[len..]).unwrap_or(0),
            Some(len) => len,
            None => self.other_word(text, digits, |char| matches!(char, '\r' | '\n' | '/')),
        }
    }

    /// `U*l+` of [`Rule::O200k`]
    fn lower_word(&self, text: &str) -> Option<usize> {
        let upper = run(text, |char| self.upper.contains(char));
        let lower = run(&text[upper..], |char| self.lower.contains(char));
        if lower > 0 {
            return Some(upper + lower);
        }
        // U* took all that l+ could have: it gives back down to the last character that is in both.
        let both = text[..upper].char_indices().rfind(|&(_, char)| self.lower.contains(char));
        both.map(|(start, char)| start + char.len_utf8())
    }

    /// What follows one character of `[^\r\n\p{L}\p{N}]`.
    fn after_prefix<'a>(&self, text: &'a str) -> Option<&'a str> {
        let mut chars = text.chars();
        let first = chars.next()?;
        let is_prefix = !(matches!(first, '\r' | '\n') || first.is_numeric() || self.letters.contains(first));
        is_prefix.then_some(chars.as_str())
    }

    /// `\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+T*|\s*[\r\n]+|\s+(?!\S)|\s+`, where T are the characters that `trail` holds for.
    fn other_word(&self, text: &str, digits: usize, trail: impl Fn(char) -> bool) -> usize {
        let number: usize = text.chars().take(digits).take_while(|c| c.is_numeric()).map(char::len_utf8).sum();
        if number > 0 {
            return number;
        }
        let space = usize::from(text.starts_with(' '));
        let others = run(&text[space..], |char| self.is_other(char));
        if others > 0 {
            let len = space + others;
            return len + run(&text[len..], trail);
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
    let mut letters = text.strip_prefix('\'')?.chars().map(|char| char.to_ascii_lowercase());
    match (letters.next()?, letters.next()) {
        ('s' | 't' | 'm' | 'd', _) => Some(2),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        // The long s is an s without its case.
        ('ſ', _) => Some(1 + 'ſ'.len_utf8()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA_3: Rule = Rule::Llama3 { digits: 3, marks: false };
    const O200K: Rule = Rule::O200k { digits: 3, contractions: true };

    fn words(rule: Rule, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        Words::new(rule).split(text, &mut |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text);
        assert!(words.iter().all(|word| !word.is_empty()));
        words
    }

    #[test]
    fn gpt2_keeps_one_space_with_the_next_word() {
        let text = "I'm  here, it's 2024!\n\n x \t";
        let expected = ["I", "'m", " ", " here", ",", " it", "'s", " 2024", "!", "\n\n", " x", " \t"];
        assert_eq!(words(Rule::Gpt2, text), expected);
        assert_eq!(words(Rule::Gpt2, "\tx 'S"), ["\t", "x", " '", "S"]);
    }

    #[test]
    fn single_digits_stand_alone() {
        assert_eq!(words(Rule::SingleDigits, "a 123  4½"), ["a", " ", "1", "2", "3", "  ", "4", "½"]);
    }

    #[test]
    fn llama_3_takes_newlines_and_three_digits() {
        let expected = ["\tif", " (", "x", ")\n\n", "  \n", " ", " y", " ", "123", "45", "'LL", "!"];
        assert_eq!(words(LLAMA_3, "\tif (x)\n\n  \n  y 12345'LL!"), expected);
        assert_eq!(words(Rule::Llama3 { digits: 1, marks: false }, "a12"), ["a", "1", "2"]);
        assert_eq!(words(LLAMA_3, "'re're'x'"), ["'re", "'re", "'x", "'"]);
        assert_eq!(words(LLAMA_3, "it'ſ"), ["it", "'ſ"]);
        assert_eq!(words(LLAMA_3, "  "), ["  "]);
    }

    #[test]
    fn marks_are_letters_where_the_rule_says_so() {
        let marks = Rule::Llama3 { digits: 1, marks: true };
        assert_eq!(words(LLAMA_3, "e\u{301}t!\u{301}"), ["e", "\u{301}t", "!\u{301}"]);
        assert_eq!(words(marks, "e\u{301}t!\u{301}"), ["e\u{301}t", "!\u{301}"]);
        assert_eq!(words(marks, "1\u{301}\u{302}  \u{301}"), ["1", "\u{301}\u{302}", " ", " \u{301}"]);
    }

    #[test]
    fn o200k_cuts_before_capitals() {
        assert_eq!(words(O200K, "camelCase HTMLPage ABC"), ["camel", "Case", " HTMLPage", " ABC"]);
        assert_eq!(words(O200K, "I'm HE'LL it's'd"), ["I'm", " HE'LL", " it's", "'d"]);
        let tekken = Rule::O200k { digits: 1, contractions: false };
        assert_eq!(words(tekken, "it's 42"), ["it", "'s", " ", "4", "2"]);
        assert_eq!(words(O200K, "a//\n/\n!  \n x 1234"), ["a", "//\n/\n", "!", "  \n", " x", " ", "123", "4"]);
    }

    #[test]
    fn o200k_gives_back_what_both_classes_have() {
        // Letters without a case, and marks, are in U and in l: the last of them ends a word among capitals.
        assert_eq!(words(O200K, "あABC"), ["あ", "ABC"]);
        assert_eq!(words(O200K, "ABあC"), ["ABあ", "C"]);
        assert_eq!(words(O200K, "E\u{301}Te\u{301}"), ["E\u{301}Te\u{301}"]);
        assert_eq!(words(O200K, "\u{301}ABC"), ["\u{301}", "ABC"]);
        assert_eq!(words(O200K, "\u{301}\u{301}"), ["\u{301}\u{301}"]);
        assert_eq!(words(O200K, "!\u{301} \u{301}"), ["!\u{301}", " \u{301}"]);
    }

    #[test]
    fn default_cuts_punctuation_and_threes() {
        let expected = ["x", "+=", " ", "123", "45", ";", " it", "'", "s", " ", "१२", "345"];
        assert_eq!(words(Rule::Default, "x+= 12345; it's १२345"), expected);
    }
}
