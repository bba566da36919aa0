//! The primitives of the GGUF format, read from bytes that are not trusted.
//!
//! Lengths are compared with the bytes that are left before anything is allocated. An error says at which byte, which
//! field, how many bytes it needs and how many are left.

use std::collections::BTreeMap;
use std::fmt::{Arguments, Display};
use std::path::Path;

use crate::error::{Error, Result};
use crate::gguf::metadata::{Array, Value};

/// Arrays may hold arrays, to this depth; no known file has more than one level.
const MAX_ARRAY_DEPTH: usize = 4;

/// Reads one field after another; each error says where, which field, how many bytes it needs and how many are left.
pub struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first of `bytes`, the whole of the file `path`.
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, position: 0 }
    }

    /// The byte that is read next.
    pub fn position(&self) -> usize {
        self.position
    }

    /// An [`Error::Gguf`] about the field that begins at byte `position`.
    pub fn error_at(&self, position: usize, message: impl Display) -> Error {
        Error::Gguf(format!("{}: byte {position}: {message}", self.path.display()))
    }

    fn error(&self, message: impl Display) -> Error {
        self.error_at(self.position, message)
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// Refuse `count` elements of at least `size` bytes each if so many bytes are not left.
    pub fn check_count(&self, count: u64, size: u64, field: Arguments) -> Result<()> {
        let needed = u128::from(count) * u128::from(size);
        let available = self.left();
        if needed <= available.into() {
            return Ok(());
        }
        Err(self.error(format_args!(
            "{field} needs at least {needed} bytes for {count} entries but only {available} are left; \
             the file is damaged or was not downloaded completely"
        )))
    }

    fn take(&mut self, len: u64, field: Arguments) -> Result<&'a [u8]> {
        let available = self.left();
        if len > available {
            return Err(self.error(format_args!(
                "{field} needs {len} bytes but only {available} are left; \
                 the file is damaged or was not downloaded completely"
            )));
        }
        let start = self.position;
        self.position += len as usize;
        Ok(&self.bytes[start..self.position])
    }

    fn array<const N: usize>(&mut self, field: Arguments) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, field)?);
        Ok(bytes)
    }

    /// A 32-bit number.
    pub fn u32(&mut self, field: Arguments) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A 64-bit number.
    pub fn u64(&mut self, field: Arguments) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn bool(&mut self, field: Arguments) -> Result<bool> {
        let start = self.position;
        match self.array(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.error_at(start, format_args!("{field} must be 0 or 1 but is {other}"))),
        }
    }

    /// A string, its length before it.
    pub fn string(&mut self, field: Arguments) -> Result<String> {
        let len = self.u64(format_args!("length of {field}"))?;
        let start = self.position;
        let bytes = self.take(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(string) => Ok(string.to_owned()),
            Err(error) => {
                let position = start + error.valid_up_to();
                Err(self.error_at(position, format_args!("{field} is not UTF-8")))
            }
        }
    }

    /// The magic and, after it, the version.
    pub fn version(&mut self) -> Result<u32> {
        if self.bytes.is_empty() {
            return Err(self.error("the file is empty"));
        }
        let magic: [u8; 4] = self.array(format_args!("the magic \"GGUF\""))?;
        if &magic != b"GGUF" {
            return Err(self.error_at(
                0,
                format_args!("this is no GGUF file: it begins with \"{}\", not with \"GGUF\"", magic.escape_ascii()),
            ));
        }
        match self.u32(format_args!("version"))? {
            version @ (2 | 3) => Ok(version),
            version => {
                let message = if matches!(version.swap_bytes(), 1..=3) {
                    "the file is big endian; make it little endian with gguf-convert-endian".to_owned()
                } else {
                    format!("GGUF version {version} is not supported (2 and 3 are); convert the model again")
                };
                Err(self.error_at(4, message))
            }
        }
    }

    /// `count` metadata values.
    pub fn values(&mut self, count: u64) -> Result<BTreeMap<String, Value>> {
        let mut values = BTreeMap::new();
        for index in 0..count {
            let start = self.position;
            let key = self.string(format_args!("key {index}"))?;
            if values.contains_key(&key) {
                return Err(self.error_at(start, format_args!("metadata `{key}` is there twice")));
            }
            let value = self.value(&key)?;
            values.insert(key, value);
        }
        Ok(values)
    }

    fn value(&mut self, key: &str) -> Result<Value> {
        let start = self.position;
        let id = self.u32(format_args!("type of `{key}`"))?;
        let field = format_args!("value of `{key}`");
        Ok(match id {
            0 => Value::U8(u8::from_le_bytes(self.array(field)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(field)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(field)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(field)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(field)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(field)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(field)?)),
            7 => Value::Bool(self.bool(field)?),
            8 => Value::String(self.string(field)?),
            9 => Value::Array(self.elements(key, MAX_ARRAY_DEPTH)?),
            10 => Value::U64(u64::from_le_bytes(self.array(field)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(field)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(field)?)),
            _ => return Err(self.unknown_type(start, id, key)),
        })
    }

    fn unknown_type(&self, start: usize, id: u32, key: &str) -> Error {
        let message = format_args!("`{key}` has the unknown value type {id} (0 to 12 are known)");
        self.error_at(start, message)
    }

    /// The elements of an array that may be nested `depth` deep, itself included.
    fn elements(&mut self, key: &str, depth: usize) -> Result<Array> {
        if depth == 0 {
            let message = format_args!("`{key}` nests arrays more than {MAX_ARRAY_DEPTH} deep");
            return Err(self.error(message));
        }
        let start = self.position;
        let id = self.u32(format_args!("element type of `{key}`"))?;
        let len = self.u64(format_args!("array length of `{key}`"))?;
        Ok(match id {
            0 => Array::U8(self.numbers(key, len, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, len, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, len, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, len, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, len, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, len, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, len, f32::from_le_bytes)?),
            7 => Array::Bool(self.compound(key, len, 1, Self::bool)?),
            8 => Array::String(self.compound(key, len, 8, Self::string)?),
            9 => Array::Array(self.compound(key, len, 12, |reader, _| reader.elements(key, depth - 1))?),
            10 => Array::U64(self.numbers(key, len, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, len, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, len, f64::from_le_bytes)?),
            _ => return Err(self.unknown_type(start, id, key)),
        })
    }

    fn numbers<T, const N: usize>(&mut self, key: &str, len: u64, convert: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let field = format_args!("array `{key}`");
        self.check_count(len, N as u64, field)?;
        let bytes = self.take(len * N as u64, field)?;
        Ok(bytes
            .chunks_exact(N)
            .map(|chunk| {
                let mut number = [0; N];
                number.copy_from_slice(chunk);
                convert(number)
            })
            .collect())
    }

    /// `len` elements of at least `size` bytes each, read by `element`.
    fn compound<T, C: FromIterator<T>>(
        &mut self,
        key: &str,
        len: u64,
        size: u64,
        mut element: impl FnMut(&mut Self, Arguments) -> Result<T>,
    ) -> Result<C> {
        self.check_count(len, size, format_args!("array `{key}`"))?;
        (0..len).map(|index| element(self, format_args!("element {index} of `{key}`"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::GgufWriter;

    fn message<T>(result: Result<T>) -> String {
        result.err().unwrap().to_string()
    }

    fn version(bytes: &[u8]) -> Result<u32> {
        Reader::new(Path::new("x"), bytes).version()
    }

    /// The bytes of the value `value` alone.
    fn value(bytes: &[u8]) -> Result<Value> {
        Reader::new(Path::new("x"), bytes).value("key")
    }

    #[test]
    fn other_formats_are_told_apart() {
        assert_eq!(version(b"GGUF\x03\0\0\0").unwrap(), 3);
        for (bytes, says) in [
            (&b""[..], "x: byte 0: the file is empty"),
            (b"GG", "needs 4 bytes but only 2 are left"),
            (b"PK\x03\x04", "begins with \"PK\\x03\\x04\", not with \"GGUF\""),
            (b"GGUF\x01\0\0\0", "byte 4: GGUF version 1 is not supported (2 and 3 are)"),
            (b"GGUF\x04\0\0\0", "version 4 is not supported"),
            (b"GGUF\0\0\0\x03", "big endian"),
        ] {
            let error = message(version(bytes));
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn odd_values_are_refused() {
        for (bytes, says) in [
            (&b"\x0d\0\0\0"[..], "x: byte 0: `key` has the unknown value type 13"),
            (b"\x07\0\0\0\x02", "byte 4: value of `key` must be 0 or 1 but is 2"),
            (b"\x08\0\0\0\x02\0\0\0\0\0\0\0a\xff", "byte 13: value of `key` is not UTF-8"),
            (b"\x09\0\0\0\x63\0\0\0\0\0\0\0\0\0\0\0", "byte 4: `key` has the unknown value type 99"),
        ] {
            let error = message(value(bytes));
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn nesting_of_arrays_is_bounded() {
        let nested = |depth: usize| {
            let inner = Array::U8(vec![]);
            let array = (1..depth).fold(inner, |inner, _| Array::Array(vec![inner]));
            let mut file = GgufWriter::new();
            file.set("key", Value::Array(array));
            file.bytes()
        };
        let read = |depth| {
            let bytes = nested(depth);
            let mut reader = Reader::new(Path::new("x"), &bytes[24..]);
            reader.values(1)
        };
        read(MAX_ARRAY_DEPTH).unwrap();
        for depth in [MAX_ARRAY_DEPTH + 1, 1000] {
            let error = message(read(depth));
            assert!(error.contains("nests arrays more than 4 deep"), "{error}");
        }
    }
}
