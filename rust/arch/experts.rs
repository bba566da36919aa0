//! Mixtures of experts: feed-forward layers of which a router picks a few for each row.

use crate::arch::config::{Config, Experts};
use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::roles::BlockRole::{
    FfnDown, FfnDownExperts, FfnDownShared, FfnGate, FfnGateExperts, FfnGateShared, FfnRouter, FfnUp, FfnUpExperts,
    FfnUpShared,
};
use crate::arch::roles::Role;
use crate::arch::tensors::Tensor;
use crate::error::Result;

const COUNT: &str = "expert_count";
const USED: &str = "expert_used_count";
/// Experts of a block; no model has a tenth of it.
const MAX_EXPERTS: u64 = 1 << 13;

impl Config {
    /// What the keys say of a decoder with experts only, each as wide as `feed_forward_length` says.
    ///
    /// # Errors
    /// As [`Config::dense`].
    pub fn with_experts(keys: &Keys<'_>) -> Result<Self> {
        let count = keys.required_count(COUNT, MAX_EXPERTS)?;
        let used = keys.required_count(USED, MAX_EXPERTS)?;
        if count < 2 {
            return Err(
                keys.error(format_args!("metadata `{}` is {count}, but a router needs 2 or more", keys.name(COUNT)))
            );
        }
        if used > count {
            return Err(keys.error(format_args!(
                "metadata `{}` is {used}, but there are only {count} experts (`{}`)",
                keys.name(USED),
                keys.name(COUNT)
            )));
        }
        let config = Self::common(keys)?;
        Ok(Self { n_ff: 0, experts: Some(Experts { count, used, n_ff: config.n_ff }), ..config })
    }

    /// The same with experts as wide as `n_ff` says, if it says so.
    pub fn with_expert_width(mut self, n_ff: Option<usize>) -> Self {
        if let (Some(experts), Some(n_ff)) = (&mut self.experts, n_ff) {
            experts.n_ff = n_ff;
        }
        self
    }

    /// The same with an expert in each block that all rows use, if the file has one: what a decoder without others has as
    /// its feed-forward layer.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names a value that is wrong.
    pub fn with_shared_expert(self, keys: &Keys<'_>) -> Result<Self> {
        let n_ff = keys.switched_count("expert_shared_feed_forward_length", MAX_WIDTH)?.unwrap_or(0);
        Ok(Self { n_ff, ..self })
    }
}

/// `tensors`, those of a dense decoder, with experts in place of the feed-forward layers, if `config` has any. A layer that
/// remains is the expert that all rows use.
pub fn with_experts(config: &Config, tensors: Vec<Tensor>) -> Vec<Tensor> {
    let Some(Experts { count, n_ff, .. }) = config.experts else { return tensors };
    let n_embd = config.n_embd;
    let remaining = |tensor: Tensor| {
        let (block, shared) = match tensor.role {
            Role::Block(block, FfnGate) => (block, FfnGateShared),
            Role::Block(block, FfnUp) => (block, FfnUpShared),
            Role::Block(block, FfnDown) => (block, FfnDownShared),
            Role::Bias(_, FfnGate | FfnUp | FfnDown) => return None,
            _ => return Some(tensor),
        };
        (config.n_ff > 0).then(|| tensor.called(Role::Block(block, shared)))
    };
    let experts = [
        (FfnRouter, &[n_embd, count][..]),
        (FfnGateExperts, &[n_embd, n_ff, count]),
        (FfnUpExperts, &[n_embd, n_ff, count]),
        (FfnDownExperts, &[n_ff, n_embd, count]),
    ];
    let of_block = |block| experts.map(|(role, shape)| Tensor::new(Role::Block(block, role), shape));
    tensors.into_iter().filter_map(remaining).chain((0..config.n_layer).flat_map(of_block)).collect()
}

#[cfg(test)]
mod tests;
