//! The decoder on candle tensors, for the devices that candle drives: `candle-cpu`, `metal`, `cuda`.
//!
//! The interface is that of the CPU engine ([`crate::cpu`]); one code path serves all devices. Sequences run one
//! after the other. Weights stay quantised as in the file, all else is f32.
//!
//! Unlike on the CPU engine, a row depends in its last bits on how many rows are in the call: candle chooses kernels by
//! shape, and with quantised weights such a difference can grow to the size of the rounding of activations. Greedy text
//! can therefore differ where two tokens are nearly as likely.

use candle_core::{Device, Tensor, D};

use crate::arch::config::{Activation, Config};
use crate::arch::description::Description;
use crate::arch::rope::RopeTable;
use crate::attention::cache::{CacheShape, PAGE};
use crate::attention::patterns::{Pattern, PromptAttention};
use crate::attention::units::first_seen;
use crate::candle::cache::{device_error, CandleCache};
use crate::candle::weights::{open_device, Layer, Product, Weights};
use crate::error::{no_room_for_logits, Error, Result};
use crate::forward::task::{Input, Outcome, Wanted};
use crate::identity::Identity;
use crate::sampling::distribution::argmax;

/// Rows of one pass; longer inputs go through in chunks.
const MAX_ROWS: usize = 256;
/// Attention scores of one pass and layer, 256 MB of them: over a long cache chunks become shorter.
const MAX_SCORES: usize = 1 << 26;

/// A loaded model; immutable, shared by any number of caches.
pub struct CandleModel {
    config: Config,
    device: Device,
    weights: Weights,
    /// For each rotation and every dimension of a head its partner in it, itself if it is not rotated.
    partners: Vec<Tensor>,
}

/// What all layers of a pass share.
struct PassPlan {
    /// Position of the first row.
    start: usize,
    rows: usize,
    /// For each rotation of the model the factors of each dimension of a head and those of its partner,
    /// `[rows][1][head_dim]`.
    angles: Vec<[Tensor; 2]>,
    /// 0 where a row may look, minus infinity elsewhere, `[rows][start + rows]`, of each layer; a single row that looks
    /// everywhere needs none.
    masks: Vec<Option<Tensor>>,
    /// What the queries of each row are multiplied with, `[rows][1][1]`.
    query_scale: Tensor,
}

impl CandleModel {
    /// Loads the weights of the decoder described onto `device`: `candle-cpu`, `metal` or `cuda`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the device is unknown, not part of this build, or does not work; [`Error::Gguf`] if the
    /// file has tensors of a type that candle lacks; [`Error::Interrupted`] if `poll` said so.
    pub fn load(description: Description<'_>, device: &str, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let device = open_device(device)?;
        description.file.check_unchanged()?;
        let weights = Weights::load(&description, &device, poll)?;
        let config = description.config;
        let partners = |rope: &RopeTable| {
            let rotated = 2 * rope.freqs.len();
            let partners = (0..config.head_dim).map(|d| if d < rotated { d ^ 1 } else { d } as u32).collect();
            Tensor::from_vec(partners, config.head_dim, &device).map_err(|e| device_error(&device, &e))
        };
        let partners = config.ropes.iter().map(partners).collect::<Result<_>>()?;
        Ok(Self { config, device, weights, partners })
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the tensors add to the identity of the model.
    pub fn identity(&self) -> &Identity {
        &self.weights.identity
    }

    /// Bytes of the weights; on a CPU candle may keep copies of some beside them, in the order its kernels want.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes
    }

    /// The layout of this model's caches.
    pub fn cache_shape(&self) -> CacheShape {
        let Config { n_layer, n_head_kv, head_dim, .. } = self.config;
        CacheShape { n_layer, n_head_kv, head_dim }
    }

    /// An empty cache for this model.
    pub fn new_cache(&self) -> CandleCache {
        CandleCache::new(self.cache_shape(), &self.device)
    }

    /// Appends the tokens of every input to its cache, one input after the other; none may have a dynamic pattern.
    /// Returns what is wanted of each. `poll` is asked twice a layer whether to stop. On an error the caches are as before.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `poll` said so, [`Error::Memory`] before any work if there is no room for the logits,
    /// [`Error::Argument`] if a token is outside the vocabulary or the device fails.
    pub fn forward(
        &self,
        inputs: &mut [Input<'_, CandleCache>],
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Outcome>> {
        let n_vocab = self.config.n_vocab;
        if let Some(token) = inputs.iter().flat_map(|input| input.tokens).find(|&&token| token as usize >= n_vocab) {
            return Err(Error::Argument(format!("token {token} is outside the vocabulary of {n_vocab} tokens")));
        }
        let mut outcomes = inputs.iter().map(|input| self.room(input)).collect::<Result<Vec<_>>>()?;
        for (input, outcome) in inputs.iter_mut().zip(&mut outcomes) {
            self.append(input, outcome, poll)?;
        }
        for input in inputs {
            input.sequence.commit(input.tokens.len());
        }
        Ok(outcomes)
    }

    /// Nothing yet, with room for what is wanted of an input.
    fn room(&self, input: &Input<'_, CandleCache>) -> Result<Outcome> {
        let positions = input.tokens.len() - input.unwanted();
        Ok(match input.wanted {
            Wanted::Choices(_) => Outcome::Choices(Vec::with_capacity(positions)),
            Wanted::Logits(_) => {
                let (mut logits, count) = (Vec::new(), positions.saturating_mul(self.config.n_vocab));
                logits.try_reserve_exact(count).map_err(|_| no_room_for_logits(count))?;
                Outcome::Logits(logits)
            }
        })
    }

    /// Runs the tokens of one input in chunks; its cache holds them afterwards, not yet committed.
    fn append(
        &self,
        input: &mut Input<'_, CandleCache>,
        outcome: &mut Outcome,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let first_wanted = input.unwanted();
        let Input { sequence: cache, tokens, attention, .. } = input;
        let failed = |source| device_error(&self.device, &source);
        cache.reserve(tokens.len()).map_err(failed)?;
        let mut done = 0;
        while done < tokens.len() {
            let start = cache.len() + done;
            let rows = self.pass_rows(start).min(tokens.len() - done);
            let x = self.pass(cache, &tokens[done..done + rows], start, *attention, poll)?;
            let skipped = first_wanted.saturating_sub(done);
            if skipped < rows {
                let rows = self.logits(&x, skipped).map_err(failed)?;
                match outcome {
                    Outcome::Choices(tokens) => tokens.extend(rows.chunks_exact(self.config.n_vocab).map(argmax)),
                    Outcome::Logits(logits) => logits.extend(rows),
                }
            }
            done += rows;
        }
        Ok(())
    }

    /// Rows of a pass from position `start` on.
    fn pass_rows(&self, start: usize) -> usize {
        (MAX_SCORES / (self.config.n_head * (start + MAX_ROWS))).clamp(1, MAX_ROWS)
    }

    /// The residual stream after the last layer, `[tokens][n_embd]`, of tokens from position `start` on.
    fn pass(
        &self,
        cache: &mut CandleCache,
        tokens: &[u32],
        start: usize,
        attention: Option<&PromptAttention>,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Tensor> {
        let failed = |source| device_error(&self.device, &source);
        let mut check = || if poll() { Err(Error::Interrupted) } else { Ok(()) };
        let pass = self.plan(start, tokens.len(), attention).map_err(failed)?;
        let ids = Tensor::new(tokens, &self.device).map_err(failed)?;
        let scale = f64::from(self.config.embedding_scale);
        let mut x = self.weights.embedding.embedding(&ids).and_then(|x| x * scale).map_err(failed)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            check()?;
            x = self.attend(index, &x, &pass, cache).map_err(failed)?;
            check()?;
            x = self.feed_forward(layer, &x).map_err(failed)?;
        }
        Ok(x)
    }

    fn plan(&self, start: usize, rows: usize, attention: Option<&PromptAttention>) -> candle_core::Result<PassPlan> {
        let angles = self.config.ropes.iter().map(|rope| self.angles(rope, start, rows));
        // What a layer's rows look at: its window, or else the rule of each row.
        let looks = |layer: usize| -> (Option<usize>, Vec<Option<&Pattern>>) {
            let window = self.config.blocks[layer].window;
            let attention = attention.filter(|_| window.is_none());
            let rule = |row: usize| attention?.rule(self.config.n_layer, layer, (start + row) / PAGE);
            (window, (0..rows).map(rule).collect())
        };
        let looks: Vec<_> = (0..self.config.n_layer).map(looks).collect();
        let mut masks: Vec<Option<Tensor>> = Vec::new();
        for (layer, (window, rules)) in looks.iter().enumerate() {
            if let Some(same) = looks[..layer].iter().rposition(|other| *other == looks[layer]) {
                masks.push(masks[same].clone());
                continue;
            }
            let hides = window.is_some_and(|window| start + rows > window);
            let needed = rows > 1 || hides || rules.iter().any(Option::is_some);
            masks.push(needed.then(|| self.mask(start, *window, rules)).transpose()?);
        }
        // Scores are not to base 2 here.
        let scale = |position| self.config.query_scale(position) * std::f32::consts::LN_2;
        let query_scale = Tensor::from_vec((start..start + rows).map(scale).collect(), (rows, 1, 1), &self.device)?;
        Ok(PassPlan { start, rows, angles: angles.collect::<candle_core::Result<_>>()?, masks, query_scale })
    }

    /// Factors of each dimension of a head, and of its partner, in the rotation of rows from position `start` on.
    fn angles(&self, rope: &RopeTable, start: usize, rows: usize) -> candle_core::Result<[Tensor; 2]> {
        let head_dim = self.config.head_dim;
        let mut cos = vec![1f32; rows * head_dim];
        let mut sin = vec![0f32; rows * head_dim];
        for (row, (cos, sin)) in cos.chunks_exact_mut(head_dim).zip(sin.chunks_exact_mut(head_dim)).enumerate() {
            for (pair, freq) in rope.freqs.iter().enumerate() {
                let angle = (start + row) as f64 * freq;
                let [cosine, sine] = [angle.cos(), angle.sin()].map(|factor| (factor * rope.magnitude) as f32);
                cos[2 * pair..2 * pair + 2].fill(cosine);
                sin[2 * pair..2 * pair + 2].copy_from_slice(&[-sine, sine]);
            }
        }
        let tensor = |factors| Tensor::from_vec(factors, (rows, 1, head_dim), &self.device);
        Ok([tensor(cos)?, tensor(sin)?])
    }

    /// The mask of rows from position `start` on, each with its rule, in a `window` if there is one.
    fn mask(&self, start: usize, window: Option<usize>, rules: &[Option<&Pattern>]) -> candle_core::Result<Tensor> {
        let (rows, end) = (rules.len(), start + rules.len());
        let mut mask = Vec::with_capacity(rows * end);
        for (position, rule) in (start..end).zip(rules) {
            let own = position / PAGE;
            let first = first_seen(position, window);
            let looks = |key: usize| {
                (first..=position).contains(&key)
                    && rule.is_none_or(|rule| key / PAGE == own || rule.always_keeps(own, key / PAGE))
            };
            mask.extend((0..end).map(|key| if looks(key) { 0.0 } else { f32::NEG_INFINITY }));
        }
        Tensor::from_vec(mask, (rows, end), &self.device)
    }

    /// Adds the attention of layer `index` to the residual stream.
    fn attend(
        &self,
        index: usize,
        x: &Tensor,
        pass: &PassPlan,
        cache: &mut CandleCache,
    ) -> candle_core::Result<Tensor> {
        let Config { n_head, n_head_kv, head_dim, .. } = self.config;
        let layer = &self.weights.layers[index];
        let normed = self.norm(x, layer.attn_norm.as_ref())?;
        let project = |product: &Product, gains: Option<&Tensor>, heads: usize| {
            let mut all = product.forward(&normed)?;
            if let Some(gains) = gains {
                // Of every head, or of all together.
                let shape = all.shape().clone();
                let apart = all.reshape((pass.rows, (), gains.elem_count()))?;
                all = self.norm(&apart, Some(gains))?.reshape(shape)?;
            }
            all.reshape((pass.rows, heads, head_dim))
        };
        let queries = project(&layer.attn_q, layer.attn_q_norm.as_ref(), n_head)?;
        let queries = self.rotate(index, queries, pass)?.broadcast_mul(&pass.query_scale)?.transpose(0, 1)?;
        let keys = project(&layer.attn_k, layer.attn_k_norm.as_ref(), n_head_kv)?;
        let keys = self.rotate(index, keys, pass)?.transpose(0, 1)?;
        let values = project(&layer.attn_v, None, n_head_kv)?.transpose(0, 1)?;
        let [keys, values] = cache.store(index, pass.start, &keys, &values)?;

        // The query heads that share keys and values become rows of one product.
        let grouped = (n_head_kv, n_head / n_head_kv * pass.rows, ());
        let queries = queries.contiguous()?.reshape(grouped)?;
        let mut scores = capped(queries.matmul(&keys.t()?)?, self.config.score_cap)?;
        if let Some(mask) = &pass.masks[index] {
            scores = scores.reshape((n_head, pass.rows, ()))?.broadcast_add(mask)?.reshape(grouped)?;
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let sums = weights.sum_keepdim(D::Minus1)?;
        let attended = weights.matmul(&values)?.broadcast_div(&sums)?;
        let attended = attended.reshape((n_head, pass.rows, head_dim))?.transpose(0, 1)?.contiguous()?;
        let branch = layer.attn_output.forward(&attended.reshape((pass.rows, n_head * head_dim))?)?;
        self.add_branch(x, &branch, layer.post_attn_norm.as_ref())
    }

    /// Adds a branch to the residual stream, normed if there are gains.
    fn add_branch(&self, x: &Tensor, branch: &Tensor, gains: Option<&Tensor>) -> candle_core::Result<Tensor> {
        x + (self.norm(branch, gains)? * f64::from(self.config.residual_scale))?
    }

    /// Rotates pairs `(2i, 2i + 1)` of each head of `x`, `[rows][heads][head_dim]`, if layer `index` rotates any.
    fn rotate(&self, index: usize, x: Tensor, pass: &PassPlan) -> candle_core::Result<Tensor> {
        let Some(rope) = self.config.blocks[index].rope else { return Ok(x) };
        let [cos, sin] = &pass.angles[rope];
        let partners = x.index_select(&self.partners[rope], D::Minus1)?;
        x.broadcast_mul(cos)? + partners.broadcast_mul(sin)?
    }

    /// Adds the feed-forward part of a layer to the residual stream.
    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> candle_core::Result<Tensor> {
        let normed = self.norm(x, layer.ffn_norm.as_ref())?;
        let gate = layer.ffn_gate.forward(&normed)?;
        let gate = match self.config.activation {
            Activation::Silu => gate.silu()?,
            Activation::Gelu => gate.gelu()?,
        };
        let hidden = (gate * layer.ffn_up.forward(&normed)?)?;
        self.add_branch(x, &layer.ffn_down.forward(&hidden)?, layer.post_ffn_norm.as_ref())
    }

    /// RMSNorm of every row of `x`, if there are gains.
    fn norm(&self, x: &Tensor, gains: Option<&Tensor>) -> candle_core::Result<Tensor> {
        let Some(gains) = gains else { return Ok(x.clone()) };
        let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
        let scale = (mean_square + f64::from(self.config.rms_eps))?.sqrt()?;
        x.broadcast_div(&scale)?.broadcast_mul(gains)
    }

    /// The logits of all rows of the residual stream but the first `skipped`.
    fn logits(&self, x: &Tensor, skipped: usize) -> candle_core::Result<Vec<f32>> {
        let x = x.narrow(0, skipped, x.dim(0)? - skipped)?;
        let normed = self.norm(&x, Some(&self.weights.output_norm))?;
        let logits = (self.weights.output.forward(&normed)? / f64::from(self.config.logit_divisor))?;
        capped(logits, self.config.logit_cap)?.flatten_all()?.to_vec1()
    }
}

/// `cap * tanh(x / cap)`, if there is a cap.
fn capped(x: Tensor, cap: Option<f32>) -> candle_core::Result<Tensor> {
    match cap.map(f64::from) {
        Some(cap) => (x / cap)?.tanh()? * cap,
        None => Ok(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::describe;
    use crate::arch::roles::Role;
    use crate::fixture::{tiny_llama, GgufWriter};
    use crate::gguf::file::GgufFile;
    use crate::gguf::types::GgmlType;

    fn load(model: &GgufWriter, device: &str) -> Result<CandleModel> {
        CandleModel::load(describe(&GgufFile::open(model.file().path())?)?, device, &mut || false)
    }

    fn message(model: &GgufWriter, device: &str) -> String {
        load(model, device).err().unwrap().to_string()
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_the_way_out() {
        let model = tiny_llama();
        for (device, compiled) in [("metal", cfg!(feature = "metal")), ("cuda", cfg!(feature = "cuda"))] {
            if !compiled {
                let message = message(&model, device);
                assert!(message.contains(&format!("device \"{device}\" needs a build")), "{message}");
                assert!(message.contains(&format!("--features=python,{device}`")), "{message}");
            }
        }
        for device in ["cpu", "gpu", ""] {
            let error = load(&model, device).err().unwrap();
            assert!(matches!(error, Error::Argument(_)));
            let message = error.to_string();
            assert!(message.contains(&format!("device \"{device}\" is unknown")), "{message}");
        }
    }

    #[test]
    fn types_that_candle_lacks_are_refused_by_name() {
        let mut model = tiny_llama();
        model.tensors.retain(|tensor| tensor.name != "blk.1.attn_k.weight");
        model.tensor("blk.1.attn_k.weight", GgmlType::IQ4_NL, &[64, 32]);
        assert!(matches!(load(&model, "candle-cpu"), Err(Error::Gguf(_))));
        let message = message(&model, "candle-cpu");
        assert!(message.contains("tensor `blk.1.attn_k.weight` has type IQ4_NL, which the candle engine lacks"));
        assert!(message.ends_with("use device=\"cpu\""), "{message}");
    }

    #[test]
    fn tied_embeddings_are_kept_once() {
        let untied = tiny_llama();
        let mut tied = untied.clone();
        tied.tensors.retain(|tensor| tensor.name != Role::Output.to_string());
        let bytes = |model| load(model, "candle-cpu").unwrap().weight_bytes();
        assert_eq!(bytes(&untied) - bytes(&tied), 64 * 80 * size_of::<f32>());
        let matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96);
        assert_eq!(bytes(&tied), (64 * 80 + matrices) * size_of::<f32>());
    }

    #[test]
    fn passes_over_long_caches_are_shorter() {
        let model = load(&tiny_llama(), "candle-cpu").unwrap();
        assert_eq!(model.pass_rows(0), MAX_ROWS);
        for start in [1 << 16, 1 << 18, 1 << 22] {
            let rows = model.pass_rows(start);
            assert!((1..MAX_ROWS).contains(&rows) && rows * 4 * (start + rows) <= MAX_SCORES, "{rows} from {start}");
        }
    }
}
