//! Sessions: the mutable state of one sequence over a shared, immutable model.

use crate::cache::KvCache;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::kernels::Kernels;
use crate::model::{CpuModel, Input};
use crate::threads;
use half::f16;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// What computes a forward.
enum Engine {
    Cpu(CpuModel),
}

/// The cache that belongs to an engine.
#[derive(Clone)]
pub enum Cache {
    /// Of the CPU engine.
    Cpu(KvCache),
}

/// How to load a model.
pub struct Options<'a> {
    /// Positions of a session; `None` is what the file says.
    pub n_ctx: Option<usize>,
    /// Worker threads; `None` is the number of physical cores this process may use.
    pub threads: Option<usize>,
    /// `cpu`, `candle-cpu`, `metal` or `cuda`.
    pub device: &'a str,
}

/// A model on some device.
pub struct Model {
    engine: Engine,
    device: String,
    n_ctx: usize,
    /// Identifies the weights, so that a saved session is not loaded into another model.
    fingerprint: u64,
}

impl Model {
    /// Loads the model in `file`.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the file cannot be run, [`Error::Argument`] if an option is out of range,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(file: &GgufFile, options: &Options<'_>, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let allowed = threads::allowed_cpus();
        let threads = options.threads.unwrap_or_else(threads::physical_cores);
        if !(1..=allowed).contains(&threads) {
            return Err(Error::Argument(format!(
                "threads={threads} is out of range: this process may use {allowed} CPUs, so 1 to {allowed} are possible"
            )));
        }
        let engine = match options.device {
            "cpu" => Engine::Cpu(CpuModel::load(file, Kernels::detect()?, threads, poll)?),
            other => {
                return Err(Error::Argument(format!(
                    "device \"{other}\" is unknown (known: \"cpu\", \"candle-cpu\", \"metal\", \"cuda\")"
                )))
            }
        };
        let Engine::Cpu(cpu) = &engine;
        let trained = cpu.config().n_ctx_train;
        let n_ctx = options.n_ctx.unwrap_or(trained);
        if !(1..=trained).contains(&n_ctx) {
            return Err(Error::Argument(format!(
                "n_ctx={n_ctx} is out of range: the model's context holds 1 to {trained} positions"
            )));
        }
        Ok(Self { engine, device: options.device.to_owned(), n_ctx, fingerprint: fingerprint(file) })
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        let Engine::Cpu(model) = &self.engine;
        model.config()
    }

    /// Positions of a session.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Worker threads of a forward.
    pub fn threads(&self) -> usize {
        let Engine::Cpu(model) = &self.engine;
        model.threads()
    }

    /// The device it was loaded for.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Name of the kernels in use.
    pub fn kernels(&self) -> &'static str {
        let Engine::Cpu(model) = &self.engine;
        model.kernels().name()
    }

    /// Resident bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        let Engine::Cpu(model) = &self.engine;
        model.weight_bytes()
    }

    /// Bytes of the cache for one position.
    pub fn cache_bytes_per_token(&self) -> usize {
        let Engine::Cpu(model) = &self.engine;
        model.cache_shape().bytes_per_token()
    }

    /// Identifies the weights.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn new_cache(&self) -> Cache {
        let Engine::Cpu(model) = &self.engine;
        Cache::Cpu(KvCache::new(model.cache_shape()))
    }

    /// A cache of `len` positions from saved values; `None` if their number does not fit.
    pub(crate) fn cache_from(&self, len: usize, values: &[f16]) -> Option<Cache> {
        let Engine::Cpu(model) = &self.engine;
        KvCache::from_values(model.cache_shape(), len, values).map(Cache::Cpu)
    }

    fn forward(
        &self,
        cache: &mut Cache,
        tokens: &[u32],
        logits: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        match (&self.engine, cache) {
            (Engine::Cpu(model), Cache::Cpu(cache)) => model.forward(&mut [Input { cache, tokens, logits }], poll),
        }
    }
}

/// A hash of everything that identifies a model: names, types, shapes and the first bytes of every tensor.
fn fingerprint(file: &GgufFile) -> u64 {
    let mut hash = Xxh3::new();
    for tensor in file.tensors() {
        hash.update(format!("{} {:?} {:?}\n", tensor.name, tensor.dtype, tensor.shape).as_bytes());
        let data = file.data(tensor);
        hash.update(&data[..data.len().min(256)]);
    }
    hash.digest()
}

/// The mutable state of one sequence.
pub struct Session {
    model: Arc<Model>,
    cache: Cache,
    tokens: Vec<u32>,
}

/// A frozen state of a session.
#[derive(Clone)]
pub struct Snapshot {
    model: Arc<Model>,
    cache: Cache,
    tokens: Vec<u32>,
}

impl Snapshot {
    /// Number of cached ids.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl Session {
    /// An empty session.
    pub fn new(model: Arc<Model>) -> Self {
        let cache = model.new_cache();
        Self { model, cache, tokens: Vec::new() }
    }

    pub(crate) fn from_parts(model: Arc<Model>, cache: Cache, tokens: Vec<u32>) -> Self {
        Self { model, cache, tokens }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The model it runs on.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The cached ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Appends `tokens`; returns the logits after the last `logits` of them, `[logits][n_vocab]`.
    ///
    /// # Errors
    /// Before any work: [`Error::Argument`] if there are no tokens, `logits` is 0 or more than the tokens, or one
    /// is outside the vocabulary; [`Error::ContextOverflow`] if they do not fit. [`Error::Interrupted`] if `poll` asked to stop.
    /// The session is then as before.
    pub fn forward(&mut self, tokens: &[u32], logits: usize, poll: &mut dyn FnMut() -> bool) -> Result<Vec<f32>> {
        let n_vocab = self.model.config().n_vocab;
        if tokens.is_empty() {
            return Err(Error::Argument("there are no tokens to process; at least one is needed".to_owned()));
        }
        if !(1..=tokens.len()).contains(&logits) {
            return Err(Error::Argument(format!(
                "logits of the last {logits} positions are wanted; with {} tokens 1 to {0} are possible",
                tokens.len()
            )));
        }
        if let Some((i, id)) = tokens.iter().enumerate().find(|(_, &id)| id as usize >= n_vocab) {
            return Err(Error::Argument(format!(
                "token id {id} at index {i} is outside the vocabulary of {n_vocab} ids (0 to {})",
                n_vocab - 1
            )));
        }
        let needed = self.tokens.len() + tokens.len();
        if needed > self.model.n_ctx {
            return Err(Error::ContextOverflow { needed, n_ctx: self.model.n_ctx });
        }
        let logits = self.model.forward(&mut self.cache, tokens, logits, poll)?;
        self.tokens.extend_from_slice(tokens);
        Ok(logits)
    }

    /// Forgets the ids from position `len` on.
    ///
    /// # Errors
    /// [`Error::Argument`] if the session is shorter.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.tokens.len() {
            return Err(Error::Argument(format!(
                "cannot truncate to {len} positions: the session holds {}",
                self.tokens.len()
            )));
        }
        self.tokens.truncate(len);
        match &mut self.cache {
            Cache::Cpu(cache) => cache.truncate(len),
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.cache = self.model.new_cache();
    }

    /// The present state, which later calls do not change.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { model: self.model.clone(), cache: self.cache.clone(), tokens: self.tokens.clone() }
    }

    /// Goes back to `snapshot`.
    ///
    /// # Errors
    /// [`Error::Argument`] if it was taken on another model.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        if !Arc::ptr_eq(&self.model, &snapshot.model) {
            return Err(Error::Argument(
                "the snapshot was taken on another model; restore it to a session of that model".to_owned(),
            ));
        }
        self.cache = snapshot.cache.clone();
        self.tokens.clone_from(&snapshot.tokens);
        Ok(())
    }

    /// A second session with the same contents.
    pub fn fork(&self) -> Self {
        let Snapshot { model, cache, tokens } = self.snapshot();
        Self { model, cache, tokens }
    }
}
