//! The CPU engine: loads a model and runs forwards over several sequences at once.

use crate::arch::config::Config;
use crate::arch::description::Description;
use crate::attention::cache::{CacheShape, KvCache};
use crate::error::{Error, Result};
use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::plan::Pass;
use crate::forward::task::{Choice, Input, Outcome, Row, Sequence, Task};
use crate::identity::Identity;
use crate::kernels::table::Kernels;
use crate::weights::load::{weight_bytes, Weights};
use crate::workers::threads;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of one pass; longer inputs go through in chunks.
const MAX_ROWS: usize = 256;

/// How many passes over the weights there were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passes {
    /// All of them.
    pub all: u64,
    /// Those that had fewer workers than asked for, because other processes held the cores or the system refused threads.
    pub short: u64,
}

/// A loaded model; immutable, shared by any number of caches.
pub struct CpuModel {
    decoder: Arc<Decoder>,
    threads: usize,
    /// Passes so far, and how many had fewer workers than `threads`.
    passes: [AtomicU64; 2],
    /// How many rows went to each expert, `[layers][experts]`.
    expert_rows: Vec<AtomicU64>,
    /// Buffers that no forward is using.
    idle: Mutex<Vec<Buffers>>,
}

/// Bytes that a model needs.
pub struct MemoryNeeds {
    /// Resident bytes of the weights.
    pub weight_bytes: usize,
    /// Bytes of a cached position.
    pub cache_bytes_per_token: usize,
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
    /// [`Error::Memory`] if there is no memory for them, [`Error::Interrupted`] if `poll` said so.
    pub fn load(
        description: Description<'_>,
        kernels: Kernels,
        threads: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Self> {
        let weights = Weights::load(&description, threads, poll)?;
        let decoder = Arc::new(Decoder { config: description.config, kernels, weights });
        let experts = decoder.config.experts.map_or(0, |experts| experts.count * decoder.config.n_layer);
        let expert_rows = (0..experts).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { decoder, threads, passes: Default::default(), expert_rows, idle: Mutex::new(Vec::new()) })
    }

    /// What the decoder described needs, from the header of its file alone.
    pub fn memory(description: &Description<'_>) -> MemoryNeeds {
        MemoryNeeds {
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

    /// Passes over the weights so far.
    pub fn passes(&self) -> Passes {
        let [all, short] = self.passes.each_ref().map(|count| count.load(Ordering::Relaxed));
        Passes { all, short }
    }

    /// How many rows went to each expert so far, `[layers][experts]`; empty without experts.
    pub fn expert_rows(&self) -> Vec<u64> {
        self.expert_rows.iter().map(|rows| rows.load(Ordering::Relaxed)).collect()
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

    /// Appends the tokens of every input to its cache; all sequences share each pass over the weights. Returns what is
    /// wanted of each. `poll` is asked about once a layer whether to stop.
    ///
    /// # Errors
    /// [`Error::Memory`] before any work if there is no room for what is wanted or for the tokens, [`Error::Interrupted`]
    /// if `poll` said so; the caches are then as before.
    ///
    /// # Panics
    /// If a token is outside the vocabulary.
    pub fn forward(&self, inputs: &mut [Input<'_, KvCache>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<Outcome>> {
        let sequences = inputs.iter_mut().map(|input| Sequence::new(input, self.config().n_vocab));
        let sequences = Arc::new(sequences.collect::<Result<Vec<_>>>()?);
        let mut rows = Vec::with_capacity(inputs.iter().map(|input| input.tokens.len()).sum());
        for (sequence, input) in inputs.iter().enumerate() {
            let positions = input.sequence.len()..;
            rows.extend(input.tokens.iter().zip(positions).map(|(&token, position)| Row { token, sequence, position }));
        }
        let mut choices = vec![Vec::new(); inputs.len()];
        for rows in rows.chunks(MAX_ROWS) {
            for Choice { sequence, token } in
                self.pass(Task { rows: rows.to_vec(), sequences: sequences.clone() }, poll)?
            {
                choices[sequence].push(token);
            }
        }
        for input in inputs {
            input.sequence.commit(input.tokens.len());
        }
        let sequences = Arc::into_inner(sequences).expect("a pass drops its task");
        Ok(sequences.into_iter().zip(choices).map(|(sequence, choices)| sequence.into_outcome(choices)).collect())
    }

    /// Runs a pass; its choices, in the order of their rows.
    fn pass(&self, task: Task, poll: &mut dyn FnMut() -> bool) -> Result<Vec<Choice>> {
        let buffers = self.buffers(task.rows.len());
        let pass = Pass::new(self.decoder.clone(), buffers, task, self.threads);
        let pass = Arc::new(pass);
        let program = pass.clone();
        let workers = threads::run(self.threads, Arc::new(move |worker| program.run(worker)), poll);
        let pass = Arc::into_inner(pass).expect("workers drop the program before a run ends");
        let (choices, buffers) = pass.finish();
        if choices.is_some() {
            buffers.count_experts(&self.expert_rows);
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        let workers = workers.ok_or(Error::Interrupted)?;
        self.passes[0].fetch_add(1, Ordering::Relaxed);
        self.passes[1].fetch_add(u64::from(workers < self.threads), Ordering::Relaxed);
        choices.ok_or(Error::Interrupted)
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
