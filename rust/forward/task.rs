//! The inputs and outcomes of a forward, and the part of it that one pass does.

use crate::attention::cache::{KvCache, Page};
use crate::attention::patterns::PromptAttention;
use crate::error::{no_room_for_logits, Result};
use crate::kernels::layout::GROUP;
use crate::workers::shared::{Name, Shared, Table};
use std::sync::Arc;

/// New tokens of one sequence.
pub struct Input<'a, S> {
    /// The sequence, or its cache alone; the tokens come after what it holds.
    pub sequence: &'a mut S,
    /// The tokens.
    pub tokens: &'a [u32],
    /// What is wanted of the last of them.
    pub wanted: Wanted,
    /// What they attend to; `None` is everything.
    pub attention: Option<&'a PromptAttention>,
}

impl<S> Input<'_, S> {
    /// The same for a part of the sequence.
    pub fn of<'b, T>(&'b mut self, part: impl FnOnce(&'b mut S) -> &'b mut T) -> Input<'b, T> {
        let Self { sequence, tokens, wanted, attention } = self;
        Input { sequence: part(sequence), tokens, wanted: *wanted, attention: *attention }
    }

    /// How many tokens stand before the first one of which something is wanted.
    pub fn unwanted(&self) -> usize {
        self.tokens.len().saturating_sub(self.wanted.positions())
    }
}

/// What is wanted of the last tokens of an input; nothing of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The most likely next tokens after so many positions.
    Choices(usize),
    /// The logits after so many positions.
    Logits(usize),
}

impl Wanted {
    /// Of how many positions.
    pub fn positions(self) -> usize {
        match self {
            Self::Choices(positions) | Self::Logits(positions) => positions,
        }
    }
}

/// What was wanted of an input.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// The tokens with the highest logits, the first among equals; `None` where none is above -inf.
    Choices(Vec<Option<u32>>),
    /// Logits, `[positions][n_vocab]`.
    Logits(Vec<f32>),
}

impl Outcome {
    /// The choices, if these were wanted.
    pub fn choices(self) -> Vec<Option<u32>> {
        match self {
            Self::Choices(tokens) => tokens,
            Self::Logits(_) => Vec::new(),
        }
    }

    /// The logits, if these were wanted.
    pub fn logits(self) -> Vec<f32> {
        match self {
            Self::Choices(_) => Vec::new(),
            Self::Logits(logits) => logits,
        }
    }
}

pub(super) const LOGITS: Name = Name::new(15, "logits");

/// What the passes of a forward read of a sequence, and what they give for it.
pub struct Sequence {
    pub(super) pages: Vec<Arc<Page>>,
    pub(super) attention: Option<PromptAttention>,
    wanted: Wanted,
    /// Position of the first row of which it is wanted.
    first_wanted: usize,
    /// The logits, if wanted, `[positions][n_vocab]`.
    pub(super) logits: Shared<f32>,
}

impl Sequence {
    /// Makes room for the tokens of `input` and for what is wanted of them.
    ///
    /// # Errors
    /// [`crate::error::Error::Memory`] if there is none; the cache is then as before.
    pub fn new(input: &mut Input<'_, KvCache>, n_vocab: usize) -> Result<Self> {
        let rows = match input.wanted {
            Wanted::Choices(_) => 0,
            Wanted::Logits(_) => input.tokens.len() - input.unwanted(),
        };
        let logits = Shared::try_zeroed(LOGITS, Table::new(rows, n_vocab).by_columns(GROUP));
        let logits = logits.ok_or_else(|| no_room_for_logits(rows.saturating_mul(n_vocab)))?;
        input.sequence.reserve(input.tokens.len())?;
        Ok(Self {
            pages: input.sequence.pages().to_vec(),
            attention: input.attention.cloned(),
            wanted: input.wanted,
            first_wanted: input.sequence.len() + input.unwanted(),
            logits,
        })
    }

    /// Which of the results is that of the row at `position`, if it has one.
    pub(super) fn result_at(&self, position: usize) -> Option<usize> {
        position.checked_sub(self.first_wanted)
    }

    /// Whether the results are choices.
    pub(super) fn chooses(&self) -> bool {
        matches!(self.wanted, Wanted::Choices(_))
    }

    /// What was wanted, once all passes are done; `choices` are what they chose.
    pub fn into_outcome(self, choices: Vec<Option<u32>>) -> Outcome {
        match self.wanted {
            Wanted::Choices(_) => Outcome::Choices(choices),
            Wanted::Logits(_) => Outcome::Logits(self.logits.into_vec()),
        }
    }
}

/// The most likely token after a row.
pub struct Choice {
    /// Index into [`Task::sequences`].
    pub sequence: usize,
    /// `None` if no logit is above -inf.
    pub token: Option<u32>,
}

/// A token to be processed.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its id.
    pub token: u32,
    /// Index into [`Task::sequences`].
    pub sequence: usize,
    /// Its position in the sequence.
    pub position: usize,
}

/// What a pass is to do.
pub struct Task {
    /// The tokens; those of one sequence stand together and in order.
    pub rows: Vec<Row>,
    /// All sequences of the forward.
    pub sequences: Arc<Vec<Sequence>>,
}

impl Task {
    pub(super) fn sequence(&self, row: usize) -> &Sequence {
        &self.sequences[self.rows[row].sequence]
    }
}
