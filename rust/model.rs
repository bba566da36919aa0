//! A model on some device, and how to load it; immutable, shared by any number of sessions.

use crate::arch::config::Config;
use crate::arch::describe;
use crate::arch::description::Description;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gguf::file::GgufFile;
use crate::workers::threads;
use xxhash_rust::xxh3::Xxh3;

/// Bytes to hash before asking whether to stop: some ten milliseconds.
const HASHED_BETWEEN_POLLS: usize = 16 << 20;

/// How to load a model.
pub struct Options<'a> {
    /// Positions of a session; `None` is what the file says.
    pub n_ctx: Option<usize>,
    /// Worker threads; `None` is the number of physical cores this process may use.
    pub threads: Option<usize>,
    /// `cpu`, `candle-cpu`, `metal` or `cuda`.
    pub device: &'a str,
}

/// What [`Options::check`] made of the options and the header of a file: a model that can be loaded.
pub struct Checked<'a> {
    /// The decoder.
    pub description: Description<'a>,
    /// The device.
    pub device: &'a str,
    /// Positions of a session.
    pub n_ctx: usize,
    /// Worker threads.
    pub threads: usize,
}

impl<'a> Options<'a> {
    /// Checks the options and the header of `file`, without reading weights.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the file cannot be run, [`Error::Argument`] if an option is out of range.
    pub fn check(&self, file: &'a GgufFile) -> Result<Checked<'a>> {
        Engine::check_device(self.device)?;
        let allowed = threads::allowed_cpus();
        let threads = self.threads.unwrap_or_else(threads::physical_cores);
        if !(1..=allowed).contains(&threads) {
            return Err(Error::Argument(format!(
                "threads={threads} is out of range: this process may use {allowed} CPUs, so 1 to {allowed} are possible"
            )));
        }
        if self.threads.is_some() && self.device != "cpu" {
            return Err(Error::Argument(format!(
                "threads={threads} has no effect on device \"{}\", where candle decides; leave it out",
                self.device
            )));
        }
        let description = describe(file)?;
        let trained = description.config.n_ctx_train;
        let n_ctx = self.n_ctx.unwrap_or(trained);
        if !(1..=trained).contains(&n_ctx) {
            return Err(Error::Argument(format!(
                "n_ctx={n_ctx} is out of range: the model's context holds 1 to {trained} positions"
            )));
        }
        Ok(Checked { description, device: self.device, n_ctx, threads })
    }
}

/// A model on some device.
pub struct Model {
    engine: Engine,
    device: String,
    threads: usize,
    n_ctx: usize,
    /// Identifies weights and configuration, so that a saved session is not loaded into another model.
    fingerprint: u64,
}

impl Model {
    /// Loads a model that was checked.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no memory for the weights, [`Error::Gguf`] if the device lacks the type of a tensor,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(checked: Checked<'_>, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Checked { description, device, n_ctx, threads } = checked;
        let fingerprint = fingerprint(description.file, &description.config, poll)?;
        let engine = Engine::load(description, device, threads, poll)?;
        Ok(Self { engine, device: device.to_owned(), threads, n_ctx, fingerprint })
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        self.engine.config()
    }

    /// What computes its forwards.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Positions of a session.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Worker threads of a forward.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The device it was loaded for.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The error for `needed` positions, more than a session has.
    pub fn overflow(&self, needed: usize) -> Error {
        Error::ContextOverflow { needed, n_ctx: self.n_ctx, n_ctx_train: self.config().n_ctx_train }
    }

    /// Identifies the weights and the configuration.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

/// A hash of everything that identifies a model: its configuration, and names, types, shapes and bytes of its tensors.
fn fingerprint(file: &GgufFile, config: &Config, poll: &mut dyn FnMut() -> bool) -> Result<u64> {
    let mut hash = Xxh3::new();
    file.check_unchanged()?;
    hash.update(format!("{config:?}\n").as_bytes());
    for tensor in file.tensors() {
        hash.update(format!("{} {:?} {:?}\n", tensor.name, tensor.dtype, tensor.shape).as_bytes());
        for part in file.data(tensor).chunks(HASHED_BETWEEN_POLLS) {
            if poll() {
                return Err(Error::Interrupted);
            }
            hash.update(part);
        }
        // Loading reads it again from the system's cache; resident twice it would double peak memory.
        file.release(tensor);
    }
    Ok(hash.digest())
}
