//! Memory from the system: a file, whose pages can be dropped again once they have been used, and zeros.

use std::fs::{self, File};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, MmapRaw};

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

/// Zeroed memory that large pages may back, which saves misses in the address cache: with the key/value cache in it,
/// forwards of 1 to 8 rows at 1,500 positions take 11 to 15 % less time.
pub fn anonymous(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // A refusal only costs speed.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// One of several equal parts of zeroed memory. When it is dropped, its whole pages go back to the system; where that is
/// not possible (Windows), all go when the last one is dropped.
pub struct Zeros {
    all: Arc<MmapRaw>,
    bytes: Range<usize>,
}

/// `count` parts of `bytes` bytes each, one after the other.
pub fn zeros(bytes: usize, count: usize) -> io::Result<impl Iterator<Item = Zeros>> {
    let all = Arc::new(MmapRaw::from(anonymous(bytes * count)?));
    Ok((0..count).map(move |i| Zeros { all: all.clone(), bytes: i * bytes..(i + 1) * bytes }))
}

impl Zeros {
    /// Its first byte. Nobody else has access to it.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.all.as_mut_ptr().wrapping_add(self.bytes.start)
    }
}

#[cfg(unix)]
impl Drop for Zeros {
    fn drop(&mut self) {
        /// No system has larger pages, other than those that it splits when asked.
        const PAGE: usize = 1 << 16;
        // Neighbours may share the first and the last page.
        let (start, end) = (self.bytes.start.next_multiple_of(PAGE), self.bytes.end / PAGE * PAGE);
        // There, DONTNEED keeps the contents of anonymous memory.
        #[cfg(target_vendor = "apple")]
        let advice = memmap2::UncheckedAdvice::Free;
        #[cfg(not(target_vendor = "apple"))]
        let advice = memmap2::UncheckedAdvice::DontNeed;
        if Arc::strong_count(&self.all) > 1 && start < end {
            // SAFETY: these pages belong to this part alone, and nothing refers to it any more.
            let _ = unsafe { self.all.unchecked_advise_range(advice, start, end - start) };
        }
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
