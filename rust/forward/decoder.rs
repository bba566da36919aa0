//! What a forward reads and never changes.

use crate::arch::config::Config;
use crate::kernels::layout::GROUP;
use crate::kernels::table::Kernels;
use crate::weights::load::Weights;

/// What a forward reads and never changes.
pub struct Decoder {
    /// Shapes and constants.
    pub config: Config,
    /// The kernels in use.
    pub kernels: Kernels,
    /// The packed weights.
    pub weights: Weights,
}

impl Decoder {
    /// Whether the outputs of an attention head are whole groups of activations.
    pub(super) fn heads_are_groups(&self) -> bool {
        self.config.head_dim.is_multiple_of(GROUP)
    }

    /// Whether a logit has two parts.
    pub(super) fn splits_output(&self) -> bool {
        !self.weights.output.dtype.is_float()
    }
}
