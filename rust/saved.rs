//! Session files: a cache and its ids on disk, versioned and checked against the model.
//!
//! Layout, little endian: magic, version `u32`, fingerprint of the model `u64`, device name (length `u64` and bytes),
//! number of ids `u64`, ids `u32`, cache, and the XXH3 hash of all that.

use crate::error::{Error, Result};
use crate::session::{Model, Session};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"specrsKV";
const VERSION: u32 = 2;

/// Writes `session` to `path`, atomically: a reader sees the old file or the whole new one.
///
/// # Errors
/// [`Error::Io`] if the file cannot be written.
pub fn save(session: &Session, path: &Path) -> Result<()> {
    let model = session.model();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&model.fingerprint().to_le_bytes());
    bytes.extend_from_slice(&(model.device().len() as u64).to_le_bytes());
    bytes.extend_from_slice(model.device().as_bytes());
    bytes.extend_from_slice(&(session.tokens().len() as u64).to_le_bytes());
    bytes.extend(session.tokens().iter().flat_map(|id| id.to_le_bytes()));
    bytes.extend(session.cache().to_bytes()?);
    let hash = xxh3_64(&bytes);
    bytes.extend_from_slice(&hash.to_le_bytes());

    // A name of its own, also when several threads save to one path.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let partial = PathBuf::from(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|source| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&partial);
        Error::io(path, source)
    })
}

/// Reads a session of `model` from `path`.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::Argument`] if it is no session file, of another version, of
/// another model or device, or damaged; [`Error::ContextOverflow`] if it is longer than the model's context.
pub fn load(model: Arc<Model>, path: &Path) -> Result<Session> {
    let bytes = fs::read(path).map_err(|source| Error::io(path, source))?;
    let refuse = |why: String| Error::Argument(format!("{}: {why}", path.display()));
    let damaged = || refuse("the session file is damaged; save the session again".to_owned());
    if !bytes.starts_with(MAGIC) {
        return Err(refuse("this is not a session file of specrs".to_owned()));
    }
    let (body, hash) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
    let mut reader = Reader { rest: body };
    reader.take::<8>().ok_or_else(damaged)?;
    let version = u32::from_le_bytes(reader.take().ok_or_else(damaged)?);
    if version != VERSION {
        return Err(refuse(format!(
            "the session file has version {version}, this build reads version {VERSION}; save the session again"
        )));
    }
    if xxh3_64(body) != u64::from_le_bytes(*hash) {
        return Err(damaged());
    }
    let fingerprint = reader.number().ok_or_else(damaged)?;
    if fingerprint != model.fingerprint() {
        return Err(refuse(format!(
            "the session was saved with another model (fingerprint {fingerprint:016x}, this model has {:016x}); \
             load it with the file it was made with, or evaluate its tokens again",
            model.fingerprint()
        )));
    }
    let len = reader.number().ok_or_else(damaged)?;
    let device = reader.bytes(len).ok_or_else(damaged)?;
    if device != model.device().as_bytes() {
        return Err(refuse(format!(
            "the session was saved on device \"{0}\", the model is loaded on \"{1}\"; \
             load the model with device=\"{0}\", or evaluate the tokens again",
            String::from_utf8_lossy(device),
            model.device()
        )));
    }
    let count = reader.number().ok_or_else(damaged)?;
    let ids = count.checked_mul(4).and_then(|len| reader.bytes(len)).ok_or_else(damaged)?;
    let tokens: Vec<u32> = ids.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    if tokens.len() > model.n_ctx() {
        return Err(model.overflow(tokens.len()));
    }
    let cache = model.engine().cache_from_bytes(tokens.len(), reader.rest).map_err(|error| refuse(error.to_string()))?;
    Ok(Session::from_parts(model, cache, tokens))
}

/// Takes fields off the front; `None` when the bytes run out.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(head)
    }
}
