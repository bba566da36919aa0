//! A model on some device, and how to load it; immutable, shared by any number of sessions.

use crate::arch::config::{Config, Experts};
use crate::arch::describe;
use crate::arch::description::Description;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gguf::file::GgufFile;
use crate::weights::load::{bytes_for_a_row, weight_bytes};
use crate::workers::threads;

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
    /// What a user may want to know of how the model will run.
    pub notes: Vec<String>,
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
        let mut description = describe(file)?;
        if self.device != "cpu" && description.config.experts.is_some() {
            return Err(file.metadata().error(format_args!(
                "device \"{}\" does not run mixtures of experts; use device=\"cpu\"",
                self.device
            )));
        }
        let trained = description.config.n_ctx_train;
        let n_ctx = self.n_ctx.unwrap_or(trained);
        if !(1..=trained).contains(&n_ctx) {
            return Err(Error::Argument(format!(
                "n_ctx={n_ctx} is out of range: the model's context holds 1 to {trained} positions"
            )));
        }
        let mut notes = description.config.settle(n_ctx);
        if let Some(Experts { count, used, .. }) = description.config.experts {
            let Description { config, tensors, .. } = &description;
            let [read, all] = [bytes_for_a_row(config, tensors), weight_bytes(tensors)].map(|bytes| bytes as f64 / 1e9);
            notes.push(format!(
                "a token uses {used} of the {count} experts of a block, and so reads {read:.2} GB of {all:.2} GB"
            ));
        }
        let unread = description
            .unread
            .iter()
            .map(|name| format!("metadata `{name}` is not known to this family and has no effect"));
        notes.extend(unread);
        Ok(Checked { description, device: self.device, n_ctx, threads, notes })
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
    /// [`Error::Memory`] if there is no memory for the weights, [`Error::Gguf`] if the device lacks the type of a tensor,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(checked: Checked<'_>, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Checked { description, device, n_ctx, threads, .. } = checked;
        let engine = Engine::load(description, device, threads, poll)?;
        let mut identity = engine.identity().clone();
        engine.config().identify(&mut identity);
        let fingerprint = identity.fingerprint();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{tiny_llama, GgufWriter};
    use crate::gguf::metadata::Value;
    use crate::gguf::types::GgmlType;

    fn fingerprint_on(writer: &GgufWriter, device: &str) -> u64 {
        let file = writer.file();
        let file = GgufFile::open(file.path()).unwrap();
        let options = Options { n_ctx: None, threads: None, device };
        Model::load(options.check(&file).unwrap(), &mut || false).unwrap().fingerprint()
    }

    fn fingerprint(writer: &GgufWriter) -> u64 {
        fingerprint_on(writer, "cpu")
    }

    /// A quantised matrix beside the float ones, of which the last tile has few rows.
    fn model() -> GgufWriter {
        let mut model = tiny_llama();
        let index = model.tensors.iter().position(|tensor| tensor.name == "blk.1.ffn_up.weight").unwrap();
        model.tensors.remove(index);
        model.tensor("blk.1.ffn_up.weight", GgmlType::Q8_0, &[64, 96]);
        for name in ["token_embd.weight", "output.weight"] {
            let tensor = model.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
            tensor.shape[1] += 3;
            tensor.data.extend([1; 3 * 64 * 4]);
        }
        model
    }

    #[test]
    fn loading_polls_for_every_piece_and_stops_when_told() {
        const N_FF: u64 = 8192;
        let mut wide = tiny_llama();
        wide.set("llama.feed_forward_length", Value::U64(N_FF));
        for tensor in &mut wide.tensors {
            if let Some(n) = tensor.shape.iter_mut().find(|n| **n == 96) {
                *n = N_FF;
                tensor.data.resize(tensor.shape.iter().product::<u64>() as usize * 4, 1);
            }
        }
        let file = wide.file();
        let file = GgufFile::open(file.path()).unwrap();
        let load = |last: Option<usize>| {
            let mut polls = 0;
            let mut poll = || {
                polls += 1;
                Some(polls) == last
            };
            let options = Options { n_ctx: None, threads: Some(1), device: "cpu" };
            let result = Model::load(options.check(&file).unwrap(), &mut poll);
            (polls, result.err())
        };
        let (polls, error) = load(None);
        assert!(error.is_none() && file.size() > 12 << 20);
        // One for half a megabyte, which is packed in a millisecond: a larger file has as many more.
        assert!(polls as u64 * (1 << 19) > file.size(), "{polls} polls for {} bytes", file.size());
        let (polls, error) = load(Some(3));
        assert!(matches!(error, Some(Error::Interrupted)) && polls == 3);
    }

    #[test]
    fn a_new_version_of_the_program_knows_old_fingerprints() {
        assert_eq!(format!("{:016x}", fingerprint(&model())), "53aa36f2bfc5a51a");
    }

    #[test]
    fn a_fingerprint_is_that_of_the_model_on_every_device() {
        let mut same = model();
        same.tensors.rotate_left(5);
        same.set("general.name", Value::String("renamed".into())).tensor("unused.weight", GgmlType::F32, &[7]);
        assert_eq!(fingerprint(&same), fingerprint(&model()));
        assert_eq!(fingerprint_on(&model(), "candle-cpu"), fingerprint(&model()));
    }

    #[test]
    fn any_byte_of_a_tensor_makes_another_fingerprint() {
        let model = model();
        let own = fingerprint(&model);
        for index in 0..model.tensors.len() {
            let len = model.tensors[index].data.len();
            // The first byte, one in the middle, and the last, which no tile but the last has.
            for at in [0, len / 2, len - 1] {
                let mut other = model.clone();
                other.tensors[index].data[at] ^= 1;
                assert_ne!(fingerprint(&other), own, "byte {at} of {}", model.tensors[index].name);
            }
        }
    }

    #[test]
    fn any_value_that_matters_makes_another_fingerprint() {
        let own = fingerprint(&model());
        for (key, value) in [
            ("llama.context_length", Value::U32(127)),
            ("llama.attention.head_count", Value::U32(8)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(2e-5)),
            ("llama.rope.freq_base", Value::F32(20_000.0)),
            ("llama.rope.scaling.factor", Value::F32(2.0)),
            ("llama.rope.dimension_count", Value::U32(8)),
        ] {
            let mut other = model();
            other.set(key, value);
            if key == "llama.attention.head_count" {
                other.set("llama.attention.head_count_kv", Value::U32(4));
            }
            assert_ne!(fingerprint(&other), own, "{key}");
        }
        // Bytes that mean the same in another place.
        let mut swapped = model();
        let [a, b] = ["blk.0.attn_k.weight", "blk.0.attn_v.weight"]
            .map(|name| swapped.tensors.iter().position(|tensor| tensor.name == name).unwrap());
        swapped.tensors[a].data[5] ^= 1;
        let other = fingerprint(&swapped);
        swapped.tensors[a].data[5] ^= 1;
        swapped.tensors[b].data[5] ^= 1;
        assert_ne!(fingerprint(&swapped), other);
    }
}
