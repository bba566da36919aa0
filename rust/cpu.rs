//! The CPU engine: loads a model and runs forwards over several sequences at once.

use crate::arch::config::Config;
use crate::arch::description::Description;
use crate::attention::cache::{CacheShape, KvCache};
use crate::attention::patterns::PromptAttention;
use crate::error::{room_for_logits, Error, Result};
use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::plan::Pass;
use crate::forward::task::{Outcome, Row, Task};
use crate::identity::Identity;
use crate::kernels::table::Kernels;
use crate::weights::load::{weight_bytes, Weights};
use crate::workers::threads;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of one pass; longer inputs go through in chunks.
const MAX_ROWS: usize = 256;

/// A loaded model; immutable, shared by any number of caches.
pub struct CpuModel {
    decoder: Arc<Decoder>,
    threads: usize,
    /// Passes so far, and how many had fewer workers than `threads`.
    passes: [AtomicU64; 2],
    /// Buffers that no forward is using.
    idle: Mutex<Vec<Buffers>>,
}

/// Bytes that a model needs.
pub struct Memory {
    /// Resident bytes of the weights.
    pub weight_bytes: usize,
    /// Bytes of a cached position.
    pub cache_bytes_per_token: usize,
}

/// New tokens of one sequence.
pub struct Input<'a> {
    /// The sequence's cache; the tokens come after what it holds.
    pub cache: &'a mut KvCache,
    /// The tokens.
    pub tokens: &'a [u32],
    /// How many of the last positions need logits.
    pub logits: usize,
    /// What the tokens attend to; `None` is everything.
    pub prompt: Option<PromptAttention>,
}

/// The layout of the caches of a model.
fn cache_shape(config: &Config) -> CacheShape {
    let Config { n_layer, n_head_kv, head_dim, .. } = *config;
    CacheShape { n_layer, n_head_kv, head_dim }
}

impl CpuModel {
    /// Loads the weights of the decoder described; a forward will use `threads` threads.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no memory for them, [`Error::Interrupted`] if `poll` said so.
    pub fn load(
        description: Description<'_>,
        kernels: Kernels,
        threads: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Self> {
        let weights = Weights::load(&description, threads, poll)?;
        let decoder = Arc::new(Decoder { config: description.config, kernels, weights });
        Ok(Self { decoder, threads, passes: Default::default(), idle: Mutex::new(Vec::new()) })
    }

    /// What the decoder described needs, from the header of its file alone.
    pub fn memory(description: &Description<'_>) -> Memory {
        Memory {
            weight_bytes: weight_bytes(&description.tensors),
            cache_bytes_per_token: cache_shape(&description.config).bytes_per_token(),
        }
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.decoder.kernels
    }

    /// Passes over the weights so far, and how many of them had fewer workers than asked for, because other processes
    /// held the cores or the system refused threads.
    pub fn passes(&self) -> (u64, u64) {
        let [all, short] = &self.passes;
        (all.load(Ordering::Relaxed), short.load(Ordering::Relaxed))
    }

    /// What the tensors add to the identity of the model.
    pub fn identity(&self) -> &Identity {
        &self.decoder.weights.identity
    }

    /// Resident bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        self.decoder.weights.bytes
    }

    /// The layout of this model's caches.
    pub fn cache_shape(&self) -> CacheShape {
        cache_shape(self.config())
    }

    /// Appends the tokens of every input to its cache; all sequences share each pass over the weights.
    ///
    /// Returns the wanted logits, `[sum of logits][n_vocab]`, in the order of the inputs. `poll` is asked about once
    /// a layer whether to stop.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `poll` said so, [`Error::Memory`] if the logits do not fit; the caches are then as
    /// before.
    ///
    /// # Panics
    /// If a token is outside the vocabulary.
    pub fn forward(&self, inputs: &mut [Input<'_>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<f32>> {
        let tokens: usize = inputs.iter().map(|input| input.tokens.len()).sum();
        let mut logits = match tokens {
            // The one pass has room of its own.
            0..=MAX_ROWS => Vec::new(),
            _ => room_for_logits(inputs.iter().map(|input| input.logits).sum(), self.config().n_vocab)?,
        };
        self.passes_over(inputs, false, poll, |outcome| match logits.capacity() {
            0 => logits = outcome.logits,
            _ => logits.extend(outcome.logits),
        })?;
        Ok(logits)
    }

    /// As [`CpuModel::forward`], but returns only the token with the highest of the logits, the first among equals;
    /// `None` if none is above -inf. Faster, since most logits need not be computed in full.
    pub fn choose(&self, inputs: &mut [Input<'_>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<Option<u32>>> {
        let mut tokens = Vec::new();
        self.passes_over(inputs, true, poll, |outcome| tokens.extend(outcome.tokens))?;
        Ok(tokens)
    }

    /// Runs the passes that `inputs` take.
    fn passes_over(
        &self,
        inputs: &mut [Input<'_>],
        choose: bool,
        poll: &mut dyn FnMut() -> bool,
        mut take: impl FnMut(Outcome),
    ) -> Result<()> {
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        let mut sequences = Vec::new();
        let mut prompts = Vec::new();
        for (sequence, input) in inputs.iter_mut().enumerate() {
            input.cache.reserve(input.tokens.len())?;
            sequences.push(input.cache.pages().to_vec());
            prompts.push(input.prompt.clone());
            for (i, &token) in input.tokens.iter().enumerate() {
                rows.push(Row { token, sequence, position: input.cache.len() + i });
                wanted.push(input.tokens.len() - i <= input.logits);
            }
        }
        for (rows, wanted) in rows.chunks(MAX_ROWS).zip(wanted.chunks(MAX_ROWS)) {
            let wanted = (0..wanted.len()).filter(|&i| wanted[i]).collect();
            let (sequences, prompts) = (sequences.clone(), prompts.clone());
            take(self.pass(Task { rows: rows.to_vec(), sequences, prompts, wanted, choose }, poll)?);
        }
        for input in inputs {
            input.cache.commit(input.tokens.len());
        }
        Ok(())
    }

    fn pass(&self, task: Task, poll: &mut dyn FnMut() -> bool) -> Result<Outcome> {
        let buffers = self.buffers(task.rows.len());
        let pass = Pass::new(self.decoder.clone(), buffers, task, self.threads);
        let pass = Arc::new(pass);
        let program = pass.clone();
        let workers = threads::run(self.threads, Arc::new(move |worker| program.run(worker)), poll);
        let pass = Arc::into_inner(pass).expect("workers drop the program before a run ends");
        let (outcome, buffers) = pass.finish();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        let workers = workers.ok_or(Error::Interrupted)?;
        self.passes[0].fetch_add(1, Ordering::Relaxed);
        self.passes[1].fetch_add(u64::from(workers < self.threads), Ordering::Relaxed);
        outcome.ok_or(Error::Interrupted)
    }

    /// Idle buffers with room for `rows` rows, or new ones; smaller ones are dropped.
    fn buffers(&self, rows: usize) -> Buffers {
        let large_enough = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|buffers| buffers.rows >= rows);
            idle.pop()
        };
        large_enough.unwrap_or_else(|| Buffers::new(&self.decoder, rows.next_power_of_two().clamp(16, MAX_ROWS)))
    }
}
