//! Session files: a cache and its ids on disk, versioned and checked against the model.
//!
//! Layout, little endian: magic, version `u32`, fingerprint of the model `u64`, device name (length `u64` and bytes),
//! number of ids `u64`, ids `u32`, number of sparse spans `u64`, for each its first position and its end `u64` and its
//! pattern (length `u64` and bytes), cache, and the XXH3 hash of all that.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::session::{Session, Span};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"specrsKV";
const VERSION: u32 = 6;

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
    bytes.extend_from_slice(&(session.spans().len() as u64).to_le_bytes());
    for Span { positions, pattern } in session.spans() {
        for number in [positions.start, positions.end, pattern.len()] {
            bytes.extend_from_slice(&(number as u64).to_le_bytes());
        }
        bytes.extend_from_slice(pattern.as_bytes());
    }
    bytes.extend(session.cache().to_bytes()?);
    let hash = xxh3_64(&bytes);
    bytes.extend_from_slice(&hash.to_le_bytes());

    // A name of its own, also when several threads save to one path; and a short one, since that of the path may be as long
    // as the system allows.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let partial = path.with_file_name(format!(".specrs-{}-{count}.partial", std::process::id()));
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
    let refuse = |why: String| Error::Argument(format!("{}: {why}", path.display()));
    let damaged = || refuse("the session file is damaged; save the session again".to_owned());
    let foreign = || refuse("this is not a session file of specrs".to_owned());
    let io = |source| Error::io(path, source);
    let mut file = File::open(path).map_err(io)?;
    // Devices and pipes have no end, and a large file of another kind need not be read.
    if !file.metadata().map_err(io)?.is_file() {
        return Err(foreign());
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(io)?;
    if bytes != MAGIC {
        return Err(foreign());
    }
    file.read_to_end(&mut bytes).map_err(io)?;
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
            "the session was saved with another model, or with an n_ctx for which this one computes differently \
             (fingerprint {fingerprint:016x}, this model has {:016x}); load it with the file and the n_ctx it was \
             made with, or evaluate its tokens again",
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
    let count = reader.number().ok_or_else(damaged)?;
    let spans = (0..count).map(|_| reader.span(tokens.len())).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
    let cache =
        model.engine().cache_from_bytes(tokens.len(), reader.rest).map_err(|error| refuse(error.to_string()))?;
    Ok(Session::from_parts(model, cache, tokens, spans))
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

    /// A span of a session of `len` positions.
    fn span(&mut self, len: usize) -> Option<Span> {
        let [start, end, name] = [self.number()?, self.number()?, self.number()?];
        let pattern = std::str::from_utf8(self.bytes(name)?).ok()?.into();
        let positions = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        (positions.start < positions.end && positions.end <= len).then_some(Span { positions, pattern })
    }

    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(head)
    }
}
