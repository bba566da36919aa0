//! A GGUF model file, or all parts of a split one: metadata, and the bytes of each tensor.

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::gguf::header::Header;
pub use crate::gguf::header::TensorInfo;
use crate::gguf::mapping::Mapping;
use crate::gguf::metadata::Metadata;

/// An opened model file.
///
/// Only the header is read; the bytes of the tensors stay in the file until they are touched.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    /// At least one; the first holds the metadata of the model.
    parts: Vec<Part>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Part {
    mapping: Mapping,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Part {
    fn open(path: &Path) -> Result<Self> {
        let mapping = Mapping::open(path)?;
        let Header { version, metadata, tensors } = Header::parse(path, &mapping)?;
        Ok(Self { mapping, version, metadata, tensors })
    }
}

impl GgufFile {
    /// Open the model at `path`; if that is a part of a split model (`…-00001-of-00003.gguf`), open all its parts.
    ///
    /// An [`Error::Io`](crate::error::Error::Io) names the file that cannot be read, an
    /// [`Error::Gguf`](crate::error::Error::Gguf) says what is wrong with its contents.
    pub fn open(path: &Path) -> Result<Self> {
        let part = Part::open(path)?;
        let count = part.metadata.get_u64("split.count")?.unwrap_or(1);
        let parts = match count {
            0 | 1 => vec![part],
            _ => open_split(&part.metadata, count)?,
        };
        Self::join(path, parts)
    }

    fn join(path: &Path, mut parts: Vec<Part>) -> Result<Self> {
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut by_name = HashMap::new();
        for (index, part) in parts.iter_mut().enumerate() {
            for mut tensor in mem::take(&mut part.tensors) {
                tensor.part = index;
                if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                    let message = format_args!("another part has a tensor `{}` too", tensor.name);
                    return Err(part.metadata.error(message));
                }
                tensors.push(tensor);
            }
        }
        let path = path.to_owned();
        Ok(Self { path, parts, tensors, by_name })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts[0].version
    }

    /// Bytes of all parts.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.mapping.len() as u64).sum()
    }

    /// The metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].metadata
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The tensor called `name`, which the model cannot do without.
    pub fn require(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor(name).ok_or_else(|| self.metadata().error(format_args!("tensor `{name}` is missing")))
    }

    /// The bytes of one of [`Self::tensors`]; aligned as the file's `general.alignment` says, which may be 1.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.parts[tensor.part].mapping[tensor.range.clone()]
    }

    /// Drop the resident pages of the file; reading it again takes time only.
    pub fn release(&self) {
        self.parts.iter().for_each(|part| part.mapping.release());
    }

    /// An [`Error::Io`](crate::error::Error::Io) if a part changed its length since it was opened.
    ///
    /// Reading beyond the end of a file that became shorter kills the process, so ask before reading [`Self::data`].
    pub fn check_unchanged(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.mapping.check_unchanged())
    }
}

/// Open the `count` parts of the split model to which the file of `metadata` belongs.
fn open_split(metadata: &Metadata, count: u64) -> Result<Vec<Part>> {
    let stem = split_stem(metadata, count)?;
    let parts = (1..=count)
        .map(|number| {
            let part = Part::open(&part_path(&stem, number, count))?;
            check_part(&part.metadata, number, count)?;
            Ok(part)
        })
        .collect::<Result<Vec<_>>>()?;
    let declared = metadata.get_u64("split.tensors.count")?;
    let found: usize = parts.iter().map(|part| part.tensors.len()).sum();
    match declared {
        Some(declared) if declared != found as u64 => Err(metadata.error(format_args!(
            "metadata `split.tensors.count` is {declared} but the {count} parts hold {found} tensors"
        ))),
        _ => Ok(parts),
    }
}

/// The path of every part without its ending `-00001-of-00003.gguf`.
fn split_stem(metadata: &Metadata, count: u64) -> Result<String> {
    let number = metadata.get_u64("split.no")?.map_or(1, |index| index.saturating_add(1));
    let ending = part_ending(number, count);
    metadata.path().to_str().and_then(|path| path.strip_suffix(&ending)).map(str::to_owned).ok_or_else(|| {
        metadata.error(format_args!(
            "this is part {number} of a model of {count} parts, which are found by name only: \
                 its name must end in {ending}"
        ))
    })
}

fn part_ending(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn part_path(stem: &str, number: u64, count: u64) -> PathBuf {
    PathBuf::from(stem.to_owned() + &part_ending(number, count))
}

/// Check that the file of `metadata` is part `number` of `count`.
fn check_part(metadata: &Metadata, number: u64, count: u64) -> Result<()> {
    for (key, expected) in [("split.no", number - 1), ("split.count", count)] {
        match metadata.get_u64(key)? {
            Some(found) if found == expected => (),
            found => {
                let found = found.map_or("missing".to_owned(), |found| found.to_string());
                return Err(metadata.error(format_args!(
                    "metadata `{key}` is {found} but must be {expected} in part {number} of {count}"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::fixture::{GgufWriter, TempFile};
    use crate::gguf::metadata::Value;
    use crate::gguf::types::GgmlType;

    /// Three parts of a split model, which hold the tensors `t0`, `t1` and `t2`.
    fn parts() -> Vec<GgufWriter> {
        let part = |number: u16| {
            let mut part = GgufWriter::new();
            part.set("split.no", Value::U16(number))
                .set("split.count", Value::U16(3))
                .set("split.tensors.count", Value::I32(3))
                .tensor(&format!("t{number}"), GgmlType::F32, &[4 + u64::from(number)]);
            if number == 0 {
                part.set("general.name", Value::String("split".into()));
            }
            part
        };
        (0..3).map(part).collect()
    }

    fn write(name: &str, parts: &[GgufWriter]) -> Vec<TempFile> {
        let file = |(i, part): (usize, &GgufWriter)| {
            let name = format!("{name}-{:05}-of-{:05}.gguf", i + 1, parts.len());
            TempFile::named(&name, &part.bytes())
        };
        parts.iter().enumerate().map(file).collect()
    }

    fn message(file: &TempFile) -> String {
        GgufFile::open(file.path()).unwrap_err().to_string()
    }

    #[test]
    fn any_part_opens_the_whole_model() {
        let written = parts();
        let files = write("whole", &written);
        for file in &files {
            let model = GgufFile::open(file.path()).unwrap();
            assert_eq!(model.path(), file.path());
            assert_eq!(model.metadata().get_str("general.name").unwrap(), Some("split"));
            let size: usize = written.iter().map(|part| part.bytes().len()).sum();
            assert_eq!(model.size(), size as u64);
            assert_eq!(model.tensors().len(), 3);
            for (i, tensor) in model.tensors().iter().enumerate() {
                assert_eq!(tensor.name, format!("t{i}"));
                assert_eq!(model.data(tensor), written[i].tensors[0].data);
                model.release();
                assert_eq!(model.data(tensor), written[i].tensors[0].data);
            }
        }
    }

    #[test]
    fn a_missing_part_is_named() {
        let mut files = write("missing", &parts());
        let removed = files.remove(1).path().to_owned();
        let error = GgufFile::open(files[1].path()).unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if *path == removed), "{error}");
    }

    #[test]
    fn parts_that_do_not_belong_together_are_refused() {
        let mut wrong = parts();
        wrong[1].set("split.no", Value::U16(2));
        let files = write("number", &wrong);
        assert!(message(&files[0]).contains("`split.no` is 2 but must be 1 in part 2 of 3"));

        let mut wrong = parts();
        wrong[2].remove("split.count");
        let files = write("count", &wrong);
        assert!(message(&files[0]).contains("`split.count` is missing but must be 3"));

        let mut wrong = parts();
        wrong[2].tensors[0].name = "t0".to_owned();
        let files = write("names", &wrong);
        assert!(message(&files[0]).contains("another part has a tensor `t0` too"));

        let mut wrong = parts();
        wrong[2].tensors.clear();
        let files = write("tensors", &wrong);
        assert!(message(&files[0]).contains("is 3 but the 3 parts hold 2 tensors"));

        let alone = TempFile::named("renamed.gguf", &parts()[1].bytes());
        assert!(message(&alone).contains("must end in -00002-of-00003.gguf"));

        let mut huge = parts().remove(0);
        huge.set("split.count", Value::U64(u64::MAX));
        assert!(message(&huge.file()).contains("must end in -00001-of-18446744073709551615"));
    }

    #[test]
    fn tensors_are_found_by_name() {
        let mut writer = GgufWriter::new();
        writer.tensor("a", GgmlType::F32, &[2]).tensor("b", GgmlType::F16, &[2]);
        let file = writer.file();
        let model = GgufFile::open(file.path()).unwrap();
        assert_eq!(model.tensor("b").unwrap().dtype, GgmlType::F16);
        assert_eq!(model.require("a").unwrap().dtype, GgmlType::F32);
        assert!(model.tensor("c").is_none());
        let error = model.require("c").unwrap_err().to_string();
        assert!(error.ends_with(": tensor `c` is missing"), "{error}");
        model.check_unchanged().unwrap();
    }
}
