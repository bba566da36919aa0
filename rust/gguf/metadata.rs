//! The key/value part of a GGUF header: values of a few types, read by key with the type checked.

use std::collections::{btree_map, BTreeMap};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::gguf::strings::Strings;

/// One metadata value.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value, stored without a tag per element: vocabularies have some 100,000.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The value as messages show it: its type, and what it holds if that is short.
    fn describe(&self) -> String {
        match self {
            Self::U8(v) => format!("{v} (u8)"),
            Self::I8(v) => format!("{v} (i8)"),
            Self::U16(v) => format!("{v} (u16)"),
            Self::I16(v) => format!("{v} (i16)"),
            Self::U32(v) => format!("{v} (u32)"),
            Self::I32(v) => format!("{v} (i32)"),
            Self::F32(v) => format!("{v} (f32)"),
            Self::Bool(v) => format!("{v} (bool)"),
            Self::String(v) if v.chars().count() > 40 => "a long string".to_owned(),
            Self::String(v) => format!("the string {v:?}"),
            Self::Array(v) => format!("an array of {}", v.element_type()),
            Self::U64(v) => format!("{v} (u64)"),
            Self::I64(v) => format!("{v} (i64)"),
            Self::F64(v) => format!("{v} (f64)"),
        }
    }
}

impl Array {
    /// What its values are.
    pub fn element_type(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "strings",
            Self::Array(_) => "arrays",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// How many values it holds.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All metadata of a file: a map sorted by key, with getters that check the type.
///
/// The getters answer `None` for an absent key and an [`Error::Gguf`] for a value of the wrong type.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    /// Shared by clones: a vocabulary takes tens of megabytes.
    values: Arc<BTreeMap<String, Value>>,
}

impl Metadata {
    /// The metadata `values` of the file `path`, which error messages name.
    pub fn new(path: &Path, values: BTreeMap<String, Value>) -> Self {
        let path = path.to_owned();
        Self { path, values: Arc::new(values) }
    }

    /// The file the values come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// An [`Error::Gguf`] that names the file before `message`.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::Gguf(format!("{}: {}", self.path.display(), printable(&message.to_string())))
    }

    /// A number that is not negative, of any integer type.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer that is not negative", |value| match *value {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        })
    }

    /// A floating-point number of either width.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a floating-point number", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A truth value.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn get_strings(&self, key: &str) -> Result<Option<&Strings>> {
        self.get_array(key, "an array of strings", |array| match array {
            Array::String(v) => Some(v),
            _ => array.is_empty().then_some(Strings::EMPTY),
        })
    }

    /// An array of 32-bit floating-point numbers.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.get_array(key, "an array of f32", |array| match array {
            Array::F32(v) => Some(v.as_slice()),
            _ => array.is_empty().then_some(&[]),
        })
    }

    /// An array of integers of any type that fit i64.
    pub fn get_integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        fn widen<T: Copy + Into<i64>>(values: &[T]) -> Option<Vec<i64>> {
            Some(values.iter().map(|&v| v.into()).collect())
        }
        self.get_array(key, "an array of integers", |array| match array {
            Array::U8(v) => widen(v),
            Array::I8(v) => widen(v),
            Array::U16(v) => widen(v),
            Array::I16(v) => widen(v),
            Array::U32(v) => widen(v),
            Array::I32(v) => widen(v),
            Array::I64(v) => widen(v),
            Array::U64(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
            _ => array.is_empty().then(Vec::new),
        })
    }

    fn get_array<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Array) -> Option<T>,
    ) -> Result<Option<T>> {
        self.typed(key, expected, |value| match value {
            Value::Array(array) => convert(array),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.error(format_args!("metadata `{key}` must be {expected} but is {}", value.describe())))
    }
}

impl Deref for Metadata {
    type Target = BTreeMap<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.values
    }
}

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a String, &'a Value);
    type IntoIter = btree_map::Iter<'a, String, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

/// `message` without what a file may put into it to confuse: control characters, and too much of anything.
fn printable(message: &str) -> String {
    const MOST: usize = 2000;
    let escaped = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    let mut shown: String = message.chars().take(MOST).map(escaped).collect();
    if message.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(value: Value) -> Metadata {
        let values = BTreeMap::from([("key".to_owned(), value)]);
        Metadata::new(Path::new("model.gguf"), values)
    }

    #[test]
    fn every_integer_type_is_a_u64() {
        for value in [
            Value::U8(7),
            Value::I8(7),
            Value::U16(7),
            Value::I16(7),
            Value::U32(7),
            Value::I32(7),
            Value::U64(7),
            Value::I64(7),
        ] {
            assert_eq!(metadata(value).get_u64("key").unwrap(), Some(7));
        }
        assert_eq!(metadata(Value::U8(7)).get_u64("absent").unwrap(), None);
    }

    #[test]
    fn a_wrong_type_names_key_expected_and_found() {
        let error = metadata(Value::String("x".into())).get_u64("key").unwrap_err();
        assert_eq!(
            error.to_string(),
            "model.gguf: metadata `key` must be an integer that is not negative but is the string \"x\""
        );
        let error = metadata(Value::I64(-1)).get_u64("key").unwrap_err();
        assert!(error.to_string().ends_with("but is -1 (i64)"), "{error}");
        let error = metadata(Value::U32(1)).get_f32("key").unwrap_err();
        assert!(error.to_string().contains("floating-point"), "{error}");
        let array = Value::Array(Array::F32(vec![1.0]));
        let error = metadata(array).get_strings("key").unwrap_err();
        assert!(error.to_string().ends_with("but is an array of f32"), "{error}");
        let huge = Value::Array(Array::U64(vec![1, u64::MAX]));
        assert!(metadata(huge).get_integers("key").is_err());
    }

    #[test]
    fn an_empty_array_has_every_type() {
        let empty = metadata(Value::Array(Array::I32(vec![])));
        assert_eq!(empty.get_strings("key").unwrap(), Some(Strings::EMPTY));
        assert_eq!(empty.get_f32s("key").unwrap(), Some(&[][..]));
        assert_eq!(empty.get_integers("key").unwrap(), Some(vec![]));
    }
}
