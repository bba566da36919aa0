//! A file in memory, whose pages can be dropped again once they have been used.

use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// The bytes of a file, mapped into memory.
///
/// Nobody may shorten the file while it is mapped: reading beyond its new end kills the process (SIGBUS). Ask
/// [`Mapping::check_unchanged`] before reading what was mapped some time ago.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl Mapping {
    /// Map the regular file `path`; anything else is an [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let error = |source| Error::io(path, source);
        // Asked before opening, because opening a pipe would wait for its writer.
        let metadata = fs::metadata(path).map_err(error)?;
        if metadata.is_dir() {
            return Err(error(io::Error::new(io::ErrorKind::IsADirectory, "is a directory, not a model file")));
        }
        if !metadata.is_file() {
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")));
        }
        let file = File::open(path).map_err(error)?;
        // SAFETY: the map is only read. That no one else shortens or rewrites the file meanwhile cannot be enforced by
        // any program; the type's documentation demands it and `check_unchanged` detects a shorter file.
        let map = unsafe { Mmap::map(&file) }.map_err(error)?;
        let path = path.to_owned();
        Ok(Self { path, file, map })
    }

    /// The file mapped.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An [`Error::Io`] if the file no longer has the length it was mapped with.
    pub fn check_unchanged(&self) -> Result<()> {
        let error = |source| Error::io(&self.path, source);
        let now = self.file.metadata().map_err(error)?.len();
        let mapped = self.map.len() as u64;
        if now == mapped {
            return Ok(());
        }
        Err(error(io::Error::other(format!(
            "the file had {mapped} bytes when it was opened and has {now} now; open it again"
        ))))
    }

    /// Drop all resident pages; they are read from the file again if they are needed.
    ///
    /// All, not those of a range: with a page that is read the system maps its neighbours, up to megabytes of them, so
    /// reading a file part by part would bring back what was dropped before.
    ///
    /// Only a hint: where the system knows no such call, nothing happens.
    pub fn release(&self) {
        #[cfg(unix)]
        if !self.map.is_empty() {
            // SAFETY: the pages of a read-only map hold nothing but the file's bytes, so dropping them changes no value
            // that a reference into the map can see.
            let _ = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TempFile;

    #[test]
    fn reads_the_bytes_again_after_release() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 31 % 251) as u8).collect();
        let file = TempFile::new(&bytes);
        let mapping = Mapping::open(file.path()).unwrap();
        for _ in 0..3 {
            assert!(mapping[..] == bytes[..]);
            mapping.release();
        }
    }

    #[test]
    fn refuses_what_is_no_file() {
        for path in ["/nonexistent/model.gguf", "/tmp", "/dev/zero"] {
            let error = Mapping::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{error}");
            assert!(error.to_string().starts_with(path), "{error}");
        }
    }

    #[test]
    fn notices_a_file_that_became_shorter() {
        let file = TempFile::new(&[7; 10_000]);
        let mapping = Mapping::open(file.path()).unwrap();
        mapping.check_unchanged().unwrap();
        let writer = File::options().write(true).open(file.path()).unwrap();
        writer.set_len(9_999).unwrap();
        let error = mapping.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("10000") && error.contains("9999"), "{error}");
    }

    #[test]
    fn maps_an_empty_file() {
        let file = TempFile::new(&[]);
        let mapping = Mapping::open(file.path()).unwrap();
        assert!(mapping.is_empty());
        mapping.release();
    }
}
