//! Sessions: the mutable state of one sequence over a shared, immutable model.

use crate::attention::patterns::PromptAttention;
use crate::engine::Cache;
use crate::error::{Error, Result};
use crate::model::Model;
use std::ops::Range;
use std::sync::Arc;

/// Tokens of a prompt between two reports of progress.
const PIECE: usize = 512;

/// Positions whose keys and values come out of sparse attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The positions.
    pub positions: Range<usize>,
    /// How the pattern displays.
    pub pattern: Arc<str>,
}

/// The mutable state of one sequence.
pub struct Session {
    model: Arc<Model>,
    cache: Cache,
    tokens: Vec<u32>,
    /// In order; all other positions are exact.
    spans: Vec<Span>,
}

/// A frozen state of a session.
#[derive(Clone)]
pub struct Snapshot {
    model: Arc<Model>,
    cache: Cache,
    tokens: Vec<u32>,
    spans: Vec<Span>,
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
        let cache = model.engine().new_cache();
        Self { model, cache, tokens: Vec::new(), spans: Vec::new() }
    }

    pub(crate) fn from_parts(model: Arc<Model>, cache: Cache, tokens: Vec<u32>, spans: Vec<Span>) -> Self {
        Self { model, cache, tokens, spans }
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

    /// Appends `tokens`, attending to everything; returns the logits after the last `logits` of them,
    /// `[logits][n_vocab]`.
    ///
    /// # Errors
    /// Before any work: [`Error::Argument`] if there are no tokens, `logits` is 0 or more than the tokens, or one is
    /// outside the vocabulary; [`Error::ContextOverflow`] if they do not fit. [`Error::Interrupted`] if `poll` asked to
    /// stop. The session is then as before.
    pub fn forward(&mut self, tokens: &[u32], logits: usize, poll: &mut dyn FnMut() -> bool) -> Result<Vec<f32>> {
        self.check(tokens, logits)?;
        let logits = self.model.engine().forward(&mut self.cache, tokens, logits, None, poll)?;
        self.tokens.extend_from_slice(tokens);
        Ok(logits)
    }

    /// As [`Session::forward`], but returns only the token with the highest of the logits, the first among equals;
    /// `None` if none is above -inf.
    ///
    /// # Errors
    /// As of [`Session::forward`].
    pub fn choose(
        &mut self,
        tokens: &[u32],
        logits: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Option<u32>>> {
        self.check(tokens, logits)?;
        let chosen = self.model.engine().choose(&mut self.cache, tokens, logits, poll)?;
        self.tokens.extend_from_slice(tokens);
        Ok(chosen)
    }

    /// As [`Session::forward`], for a whole prompt: in pieces, between which `progress` is told how many tokens are
    /// done and says whether to go on; and attending to what the pattern of `prompt` keeps.
    ///
    /// # Errors
    /// As of [`Session::forward`], [`Error::Interrupted`] also if `progress` wanted no more; [`Error::Argument`] if the
    /// device cannot run the pattern.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        logits: usize,
        prompt: Option<&PromptAttention>,
        progress: &mut dyn FnMut(usize) -> bool,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        self.check(tokens, logits)?;
        if let Some(prompt) = prompt {
            self.model.engine().check_prompt(prompt)?;
        }
        let start = self.tokens.len();
        let mut out = Vec::new();
        for piece in tokens.chunks(PIECE) {
            let left = start + tokens.len() - self.tokens.len() - piece.len();
            let wanted = logits.saturating_sub(left).min(piece.len());
            let engine = self.model.engine();
            let done = engine.forward(&mut self.cache, piece, wanted, prompt.cloned(), poll).and_then(|logits| {
                out.extend(logits);
                self.tokens.extend_from_slice(piece);
                let go_on = progress(self.tokens.len() - start);
                if go_on {
                    Ok(())
                } else {
                    Err(Error::Interrupted)
                }
            });
            if let Err(error) = done {
                self.truncate(start)?;
                return Err(error);
            }
        }
        if let Some(PromptAttention { pattern, end, .. }) = prompt {
            let sparse = start.max(pattern.dense_below())..self.tokens.len().min(pattern.tail_starts(*end)[1]);
            self.add_span(sparse, &pattern.to_string());
        }
        Ok(out)
    }

    fn check(&self, tokens: &[u32], logits: usize) -> Result<()> {
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
        if needed > self.model.n_ctx() {
            return Err(self.model.overflow(needed));
        }
        Ok(())
    }

    fn add_span(&mut self, positions: Range<usize>, pattern: &str) {
        match self.spans.last_mut() {
            _ if positions.is_empty() => (),
            Some(last) if *last.pattern == *pattern && last.positions.end == positions.start => {
                last.positions.end = positions.end;
            }
            _ => self.spans.push(Span { positions, pattern: pattern.into() }),
        }
    }

    /// The positions that come out of sparse attention, in order; all others are exact.
    pub fn spans(&self) -> &[Span] {
        &self.spans
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
        self.cache.truncate(len);
        self.spans.retain(|span| span.positions.start < len);
        if let Some(last) = self.spans.last_mut() {
            last.positions.end = last.positions.end.min(len);
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.cache = self.model.engine().new_cache();
    }

    /// The present state, which later calls do not change.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            model: self.model.clone(),
            cache: self.cache.clone(),
            tokens: self.tokens.clone(),
            spans: self.spans.clone(),
        }
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
        self.spans.clone_from(&snapshot.spans);
        Ok(())
    }

    /// A second session with the same contents.
    pub fn fork(&self) -> Self {
        let Snapshot { model, cache, tokens, spans } = self.snapshot();
        Self { model, cache, tokens, spans }
    }
}
