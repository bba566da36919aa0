//! The two engines behind one interface: our own CPU kernels, and candle for its devices.

use crate::arch::config::Config;
use crate::arch::description::Description;
use crate::attention::cache::KvCache;
use crate::attention::patterns::{Pattern, PromptAttention};
use crate::candle::cache::CandleCache;
use crate::candle::decoder::CandleModel;
use crate::candle::weights::check_device;
use crate::cpu::{CpuModel, Passes};
use crate::error::{Error, Result};
use crate::forward::task::{Input, Outcome};
use crate::identity::Identity;
use crate::kernels::table::Kernels;

/// The devices a model can be loaded on.
const DEVICES: [&str; 4] = ["cpu", "candle-cpu", "metal", "cuda"];

/// What computes a forward.
pub enum Engine {
    /// Our kernels on the CPU.
    Cpu(CpuModel),
    /// candle's tensors.
    Candle(Box<CandleModel>),
}

/// The key/value cache that belongs to an engine.
#[derive(Clone)]
pub enum Cache {
    /// Of [`Engine::Cpu`].
    Cpu(KvCache),
    /// Of [`Engine::Candle`].
    Candle(CandleCache),
}

impl Engine {
    /// Whether this build and this machine have `device`; cheap.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is unknown or not built in, or the kernels asked for are.
    pub fn check_device(device: &str) -> Result<()> {
        match device {
            "cpu" => Kernels::detect().map(drop),
            _ if DEVICES.contains(&device) => check_device(device),
            _ => {
                Err(Error::Argument(format!("device \"{device}\" is unknown (known: \"{}\")", DEVICES.join("\", \""))))
            }
        }
    }

    /// Loads the decoder described on `device`; on the CPU a forward will use `threads` threads.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the device cannot run it, [`Error::Argument`] if the device is unknown or not built in,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(
        description: Description<'_>,
        device: &str,
        threads: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Self> {
        Self::check_device(device)?;
        Ok(match device {
            "cpu" => Self::Cpu(CpuModel::load(description, Kernels::detect()?, threads, poll)?),
            _ => Self::Candle(Box::new(CandleModel::load(description, device, poll)?)),
        })
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        match self {
            Self::Cpu(model) => model.config(),
            Self::Candle(model) => model.config(),
        }
    }

    /// Name of the kernels in use.
    pub fn kernels(&self) -> &'static str {
        match self {
            Self::Cpu(model) => model.kernels().name(),
            Self::Candle(_) => "candle",
        }
    }

    /// What the tensors add to the identity of the model.
    pub fn identity(&self) -> &Identity {
        match self {
            Self::Cpu(model) => model.identity(),
            Self::Candle(model) => model.identity(),
        }
    }

    /// Resident bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Self::Cpu(model) => model.weight_bytes(),
            Self::Candle(model) => model.weight_bytes(),
        }
    }

    /// Passes over the weights so far; candle does not count them.
    pub fn passes(&self) -> Passes {
        match self {
            Self::Cpu(model) => model.passes(),
            Self::Candle(_) => Passes::default(),
        }
    }

    /// How many rows went to each expert so far, `[layers][experts]`; empty without experts.
    pub fn expert_rows(&self) -> Vec<u64> {
        match self {
            Self::Cpu(model) => model.expert_rows(),
            Self::Candle(_) => Vec::new(),
        }
    }

    /// Bytes of a cache for one position.
    pub fn cache_bytes_per_token(&self) -> usize {
        match self {
            Self::Cpu(model) => model.cache_shape().bytes_per_token(),
            Self::Candle(model) => model.new_cache().bytes_per_token(),
        }
    }

    /// An empty cache.
    pub fn new_cache(&self) -> Cache {
        match self {
            Self::Cpu(model) => Cache::Cpu(KvCache::new(model.cache_shape())),
            Self::Candle(model) => Cache::Candle(model.new_cache()),
        }
    }

    /// A cache of `len` positions from [`Cache::to_bytes`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the bytes are not those of such a cache, or candle's device fails.
    pub fn cache_from_bytes(&self, len: usize, bytes: &[u8]) -> Result<Cache> {
        match self {
            Self::Cpu(model) => KvCache::from_bytes(model.cache_shape(), len, bytes).map(Cache::Cpu),
            Self::Candle(model) => {
                CandleCache::from_bytes(model.cache_shape(), model.device(), len, bytes).map(Cache::Candle)
            }
        }
    }

    /// Whether this engine can run `pattern`.
    ///
    /// # Errors
    /// [`Error::Argument`] if not.
    pub fn check_pattern(&self, pattern: &Pattern) -> Result<()> {
        if self.config().blocks.iter().all(|block| block.window.is_some()) {
            return Err(Error::Argument(format!(
                "attention={pattern} has nothing to choose: every block of this model sees only a window of the last \
                 positions, which is exact; leave `attention` out"
            )));
        }
        match self {
            Self::Candle(_) if pattern.is_dynamic() => Err(Error::Argument(format!(
                "attention={pattern} chooses blocks by their contents, which only device=\"cpu\" can do; \
                 use SinkWindow, SinkWindowLog or Custom, or load the model on \"cpu\""
            ))),
            _ => Ok(()),
        }
    }

    /// Whether this engine can run `attention`.
    ///
    /// # Errors
    /// [`Error::Argument`] if not.
    pub fn check_attention(&self, attention: &PromptAttention) -> Result<()> {
        self.check_pattern(&attention.pattern)?;
        match self {
            Self::Candle(_) if attention.counts.is_some() => Err(Error::Argument(
                "what a pattern keeps is counted on device=\"cpu\" only; load the model there to compare".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Appends the tokens of every input to its cache and returns what is wanted of each. On the CPU all inputs share each
    /// pass over the weights, and every row has the bits that it has alone; candle takes one input after the other.
    ///
    /// # Errors
    /// [`Error::Memory`] before any work if there is no room for what is wanted or for the tokens,
    /// [`Error::Interrupted`] if `poll` asked to stop; the caches are then as before.
    ///
    /// # Panics
    /// If a cache is another engine's.
    pub fn forward(&self, inputs: &mut [Input<'_, Cache>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<Outcome>> {
        let inputs = inputs.iter_mut();
        match self {
            Self::Cpu(model) => model.forward(&mut inputs.map(|input| input.of(Cache::cpu)).collect::<Vec<_>>(), poll),
            Self::Candle(model) => {
                model.forward(&mut inputs.map(|input| input.of(Cache::candle)).collect::<Vec<_>>(), poll)
            }
        }
    }
}

impl Cache {
    fn cpu(&mut self) -> &mut KvCache {
        match self {
            Self::Cpu(cache) => cache,
            Self::Candle(_) => unreachable!("a session's cache is made by its own engine"),
        }
    }

    fn candle(&mut self) -> &mut CandleCache {
        match self {
            Self::Candle(cache) => cache,
            Self::Cpu(_) => unreachable!("a session's cache is made by its own engine"),
        }
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Self::Cpu(cache) => cache.truncate(len),
            Self::Candle(cache) => cache.truncate(len),
        }
    }

    /// The cached values, for saving.
    ///
    /// # Errors
    /// [`Error::Argument`] if candle cannot read them back from its device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        match self {
            Self::Cpu(cache) => Ok(cache.to_bytes()),
            Self::Candle(cache) => cache.to_bytes(),
        }
    }
}
