//! Many strings in one piece of memory.

/// A list of strings, stored one after the other: a vocabulary takes a quarter of what as many `String`s do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strings {
    text: String,
    /// Where each string ends.
    ends: Vec<usize>,
}

impl Strings {
    /// No strings.
    pub const EMPTY: &Self = &Self { text: String::new(), ends: Vec::new() };

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String number `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<&str> {
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? };
        Some(&self.text[start..*self.ends.get(i)?])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).expect("i is below the number of strings"))
    }

    /// Adds a string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string.as_ref()));
        all.text.shrink_to_fit();
        all.ends.shrink_to_fit();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_as_they_went_in() {
        let all = ["", "a", "", "né", ""];
        let mut strings: Strings = all[..4].iter().collect();
        strings.push(all[4]);
        assert_eq!(strings.len(), 5);
        assert!(strings.iter().eq(all));
        assert_eq!((strings.get(3), strings.get(5)), (Some("né"), None));
        assert!(Strings::EMPTY.is_empty() && !strings.is_empty());
    }
}
