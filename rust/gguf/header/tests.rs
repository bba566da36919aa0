use super::*;
use crate::fixture::{FileTensor, GgufWriter};
use crate::gguf::metadata::{Array, Value};

fn parse(bytes: &[u8]) -> Result<Header> {
    Header::parse(Path::new("model.gguf"), bytes)
}

fn message(bytes: &[u8]) -> String {
    parse(bytes).unwrap_err().to_string()
}

fn one_tensor(type_id: u32, shape: &[u64], offset: u64, data: usize) -> GgufWriter {
    let mut file = GgufWriter::new();
    file.tensors.push(FileTensor {
        name: "x".to_owned(),
        type_id,
        shape: shape.to_vec(),
        offset: Some(offset),
        data: vec![0; data],
    });
    file
}

/// A file with every kind of value and two tensors.
fn rich() -> GgufWriter {
    let mut file = GgufWriter::new();
    let nested = Array::Array(vec![Array::U8(vec![1]), Array::String(["a"].into_iter().collect())]);
    for (key, value) in [
        ("u8", Value::U8(250)),
        ("i8", Value::I8(-3)),
        ("u16", Value::U16(60_000)),
        ("i16", Value::I16(-300)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-70_000)),
        ("f32", Value::F32(1.5)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("añb".into())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(-2.5)),
        ("u8s", Value::Array(Array::U8(vec![1, 2]))),
        ("i8s", Value::Array(Array::I8(vec![-1, 2]))),
        ("u16s", Value::Array(Array::U16(vec![1, 2]))),
        ("i16s", Value::Array(Array::I16(vec![-1, 2]))),
        ("u32s", Value::Array(Array::U32(vec![1, 2]))),
        ("i32s", Value::Array(Array::I32(vec![-1, 2]))),
        ("f32s", Value::Array(Array::F32(vec![0.5]))),
        ("bools", Value::Array(Array::Bool(vec![true, false]))),
        ("strings", Value::Array(Array::String(["", "b"].into_iter().collect()))),
        ("arrays", Value::Array(nested)),
        ("u64s", Value::Array(Array::U64(vec![7]))),
        ("i64s", Value::Array(Array::I64(vec![-7]))),
        ("f64s", Value::Array(Array::F64(vec![0.25]))),
    ] {
        file.set(key, value);
    }
    file.tensor("a", GgmlType::F32, &[3, 5]);
    file.tensor("b", GgmlType::Q4_0, &[64, 2]);
    file
}

#[test]
fn reads_back_every_kind_of_value() {
    for version in [2, 3] {
        let mut file = rich();
        file.version = version;
        let bytes = file.bytes();
        let header = parse(&bytes).unwrap();
        assert_eq!(header.version, version);
        assert_eq!(header.metadata.len(), file.values.len());
        for (key, value) in &file.values {
            assert_eq!(header.metadata.get(key), Some(value));
        }
        let [a, b] = &header.tensors[..] else { panic!("two tensors") };
        assert_eq!((a.columns(), a.rows(), a.bytes()), (3, 5, 60));
        assert_eq!((b.columns(), b.rows(), b.bytes()), (64, 2, 72));
        assert_eq!(bytes[a.range.clone()], file.tensors[0].data);
        assert_eq!(bytes[b.range.clone()], file.tensors[1].data);
    }
}

#[test]
fn a_cut_at_any_byte_is_an_error() {
    let bytes = rich().bytes();
    for len in 0..bytes.len() {
        let error = message(&bytes[..len]);
        let says = if len == 0 { "the file is empty" } else { "is damaged or was not downloaded completely" };
        assert!(error.contains(says), "cut at {len}: {error}");
    }
    let error = message(&bytes[..bytes.len() - 1]);
    assert!(error.contains("tensor `b`: needs 72 bytes"), "{error}");
    assert!(error.contains("only 71 are available"), "{error}");
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    let mut file = GgufWriter::new();
    file.set("k", Value::String("value".into()));
    file.set("a", Value::Array(Array::F32(vec![1.0])));
    file.set("s", Value::Array(Array::String(["x"].into_iter().collect())));
    file.tensor("t", GgmlType::F32, &[1]);
    let bytes = file.bytes();
    let find = |needle: &[u8]| {
        let found = bytes.windows(needle.len()).position(|w| w == needle);
        found.unwrap() + needle.len()
    };
    let places = [
        (8, "the list of tensors"),
        (16, "metadata needs"),
        (24, "key 0"),
        (find(b"k\x08\0\0\0"), "value of `k`"),
        (find(b"a\x09\0\0\0\x06\0\0\0"), "array `a`"),
        (find(b"s\x09\0\0\0\x08\0\0\0"), "array `s`"),
        (find(b"s\x09\0\0\0\x08\0\0\0") + 8, "element 0 of `s`"),
        (find(b"x"), "name of tensor 0"),
    ];
    for (place, field) in places {
        for huge in [1 << 31, 1 << 40, 1 << 62, 1 << 63, u64::MAX] {
            let mut bytes = bytes.clone();
            bytes[place..place + 8].copy_from_slice(&u64::to_le_bytes(huge));
            let error = message(&bytes);
            assert!(error.contains(field), "{field} of {huge}: {error}");
            assert!(error.contains("byte ") && error.contains(" are left"), "{error}");
        }
    }
}

#[test]
fn alignment_is_a_power_of_two() {
    for alignment in [1u32, 8, 64, 4096] {
        let mut file = rich();
        file.alignment = alignment as usize;
        file.set("general.alignment", Value::U32(alignment));
        let bytes = file.bytes();
        let header = parse(&bytes).unwrap();
        for (tensor, written) in header.tensors.iter().zip(&file.tensors) {
            assert_eq!(bytes[tensor.range.clone()], written.data);
        }
    }
    for (alignment, says) in [
        (Value::U32(0), "must be a power of two below 2^32 but is 0"),
        (Value::U32(3), "must be a power of two below 2^32 but is 3"),
        (Value::U64(1 << 63), "must be a power of two below 2^32"),
        (Value::String("32".into()), "must be an integer"),
        (Value::U32(1 << 30), "are available"),
    ] {
        let mut file = rich();
        file.set("general.alignment", alignment);
        let error = message(&file.bytes());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn wrong_tensors_are_named() {
    let f32 = GgmlType::F32.id();
    let q8 = GgmlType::Q8_0.id();
    for (file, says) in [
        (one_tensor(f32, &[1 << 63, 2], 0, 64), "more bytes than can be counted"),
        (one_tensor(f32, &[(1 << 42) + 1, 32], 0, 64), "only 64 are available"),
        (one_tensor(f32, &[u64::MAX; 4], 0, 64), "more bytes than can be counted"),
        (one_tensor(q8, &[1 << 63, 4], 0, 64), "more bytes than can be counted"),
        (one_tensor(f32, &[1 << 40, 1 << 40, 1 << 40, 1 << 40], 0, 64), "more bytes than"),
        (one_tensor(f32, &[4, 0], 0, 64), "dimension of 0"),
        (one_tensor(q8, &[33], 0, 64), "no multiple of the 32 of a Q8_0 block"),
        (one_tensor(f32, &[4], 4, 64), "offset 4 is no multiple of the alignment 32"),
        (one_tensor(f32, &[4], 64, 64), "needs 16 bytes"),
        (one_tensor(f32, &[4], u64::MAX - 31, 64), "only 0 are available"),
        (one_tensor(f32, &[1, 1, 1, 1, 1], 0, 64), "5 dimensions"),
        (one_tensor(16, &[256], 0, 66), "type IQ2_XXS, which is not supported (supported: F32,"),
        (one_tensor(39, &[32], 0, 64), "type MXFP4"),
        (one_tensor(26, &[32], 0, 128), "type I32"),
        (one_tensor(999, &[32], 0, 64), "unknown type 999"),
    ] {
        let error = message(&file.bytes());
        assert!(error.contains("tensor `x`") && error.contains(says), "{says}: {error}");
    }
    for id in 0..64 {
        assert!(GgmlType::from_id(id).is_none() || UNSUPPORTED_TYPES.iter().all(|t| t.0 != id));
    }
}

#[test]
fn tensors_share_neither_bytes_nor_names() {
    let mut file = rich();
    file.tensors[1].offset = Some(32);
    let error = message(&file.bytes());
    let says = "tensor `a`: its 60 bytes at offset 0 overlap those of tensor `b` at offset 32";
    assert!(error.contains(says), "{error}");
    let mut file = rich();
    file.tensors[1].name = "a".to_owned();
    let error = message(&file.bytes());
    assert!(error.contains("tensor `a`: the file has two of this name"), "{error}");
    let mut file = rich();
    file.values.push(("u8".to_owned(), Value::U8(1)));
    let error = message(&file.bytes());
    assert!(error.contains("metadata `u8` is there twice"), "{error}");
}

#[test]
fn no_change_of_a_byte_is_more_than_an_error() {
    let bytes = rich().bytes();
    let mut accepted = 0;
    for place in 0..bytes.len() {
        for byte in [0, 1, 9, 0x7F, 0x80, 0xFF] {
            let mut bytes = bytes.clone();
            bytes[place] = byte;
            // What is accepted must be usable: all tensors lie in the file.
            if let Ok(header) = parse(&bytes) {
                accepted += 1;
                for tensor in header.tensors {
                    assert_eq!(bytes[tensor.range.clone()].len(), tensor.bytes());
                }
            }
        }
    }
    assert!(accepted > 0);
}
