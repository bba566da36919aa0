//! What a pass is asked and what it answers.

use crate::attention::cache::Page;
use crate::attention::patterns::PromptAttention;
use std::sync::Arc;

/// A token to be processed.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its id.
    pub token: u32,
    /// Index into [`Pass::new`]'s `sequences`.
    pub sequence: usize,
    /// Its position in the sequence.
    pub position: usize,
}

/// What a pass gives for every wanted row: what its task asks for.
#[derive(Default)]
pub struct Outcome {
    /// Logits, `[wanted][n_vocab]`.
    pub logits: Vec<f32>,
    /// The most likely token; `None` if no logit is above -inf.
    pub tokens: Vec<Option<u32>>,
}

/// What a pass is to do.
pub struct Task {
    /// The tokens; those of one sequence stand together and in order.
    pub rows: Vec<Row>,
    /// Pages of every sequence.
    pub sequences: Vec<Vec<Arc<Page>>>,
    /// What the rows of each attend to; `None` is everything.
    pub prompts: Vec<Option<PromptAttention>>,
    /// The rows of which an outcome is wanted.
    pub wanted: Vec<usize>,
    /// Whether that is only the most likely token.
    pub choose: bool,
}
