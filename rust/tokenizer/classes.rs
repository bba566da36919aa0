//! Sets of characters by Unicode's categories.

use regex_syntax::hir::{Class, HirKind};

/// A set of characters.
#[derive(Debug)]
pub struct CharacterClass {
    ascii: [bool; 128],
    /// Sorted ranges, both ends included.
    ranges: Vec<(char, char)>,
}

impl CharacterClass {
    /// The class that `pattern`, a constant regular expression of one class, describes.
    pub fn parse(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).map(|hir| hir.into_kind());
        let Ok(HirKind::Class(Class::Unicode(class))) = hir else {
            unreachable!("every pattern is a constant: {pattern}");
        };
        let ranges: Vec<_> = class.iter().map(|r| (r.start(), r.end())).collect();
        let mut set = Self { ascii: [false; 128], ranges };
        set.ascii = std::array::from_fn(|code| set.search(char::from(code as u8)));
        set
    }

    /// Whether `char` is one of them.
    pub fn contains(&self, char: char) -> bool {
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

    #[test]
    fn classes_follow_unicode() {
        let letters = CharacterClass::parse(r"\p{L}");
        for (char, is) in [('a', true), ('É', true), ('中', true), ('\u{0301}', false), ('1', false), ('_', false)] {
            assert_eq!(letters.contains(char), is, "{char}");
        }
    }
}
