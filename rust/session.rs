//! Sessions: the mutable state of one sequence over a shared, immutable model.

use crate::attention::patterns::PromptAttention;
use crate::engine::Cache;
use crate::error::{no_room_for_logits, Error, Result};
use crate::forward::task::{Input, Outcome, Wanted};
use crate::model::Model;
use std::ops::Range;
use std::sync::Arc;

/// Tokens of a prompt between two reports of progress.
const TOKENS_BETWEEN_REPORTS: usize = 512;

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
    /// outside the vocabulary; [`Error::ContextOverflow`] if they do not fit; [`Error::Memory`] if there is no room.
    /// [`Error::Interrupted`] if `poll` asked to stop. The session is then as before.
    pub fn forward(&mut self, tokens: &[u32], logits: usize, poll: &mut dyn FnMut() -> bool) -> Result<Vec<f32>> {
        self.check(tokens, Wanted::Logits(logits), 1)?;
        Ok(self.append(tokens, Wanted::Logits(logits), None, poll)?.logits())
    }

    /// As [`Session::forward`], but returns only the token with the highest of the logits, the first among equals;
    /// `None` if none is above -inf.
    ///
    /// # Errors
    /// As of [`Session::forward`].
    pub fn choose(
        &mut self,
        tokens: &[u32],
        positions: usize,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Option<u32>>> {
        self.check(tokens, Wanted::Choices(positions), 1)?;
        Ok(self.append(tokens, Wanted::Choices(positions), None, poll)?.choices())
    }

    /// As [`Session::forward`], for a whole prompt, of which nothing need be wanted: in pieces, between which `progress` is told how many tokens are
    /// done and says whether to go on; and attending to what the pattern of `attention` keeps.
    ///
    /// # Errors
    /// As of [`Session::forward`], [`Error::Interrupted`] also if `progress` wanted no more; [`Error::Argument`] if the
    /// device cannot run the pattern.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        logits: usize,
        attention: Option<&PromptAttention>,
        progress: &mut dyn FnMut(usize) -> bool,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        self.check(tokens, Wanted::Logits(logits), 0)?;
        attention.map_or(Ok(()), |attention| self.model.engine().check_attention(attention))?;
        let (start, mut out) = (self.tokens.len(), Vec::new());
        let count = logits.saturating_mul(self.model.config().n_vocab);
        out.try_reserve_exact(count).map_err(|_| no_room_for_logits(count))?;
        for piece in tokens.chunks(TOKENS_BETWEEN_REPORTS) {
            let left = start + tokens.len() - self.tokens.len() - piece.len();
            let wanted = Wanted::Logits(logits.saturating_sub(left).min(piece.len()));
            let done = self.append(piece, wanted, attention, poll).and_then(|outcome| {
                out.extend(outcome.logits());
                match progress(self.tokens.len() - start) {
                    true => Ok(()),
                    false => Err(Error::Interrupted),
                }
            });
            if let Err(error) = done {
                self.truncate(start)?;
                return Err(error);
            }
        }
        Ok(out)
    }

    /// Appends what was checked.
    fn append(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        attention: Option<&PromptAttention>,
        poll: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        let model = self.model.clone();
        let mut outcomes = append(&model, &mut [Input { sequence: self, tokens, wanted, attention }], poll)?;
        Ok(outcomes.pop().expect("one outcome for one input"))
    }

    /// Appends the tokens of every input to its session; on the CPU all share each pass over the weights, and every row
    /// has the bits that it has alone. Returns what is wanted of each, which may be nothing.
    ///
    /// # Errors
    /// Before any work [`Error::Input`] with what [`Session::forward`] refuses, a pattern that the device cannot run, or a
    /// session of another model than the first one's; [`Error::Memory`] if there is no room. [`Error::Interrupted`] if
    /// `poll` asked to stop. The sessions are then as before.
    pub fn forward_many(inputs: &mut [Input<'_, Self>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<Outcome>> {
        let Some(first) = inputs.first() else { return Ok(Vec::new()) };
        let model = first.sequence.model.clone();
        for (index, Input { sequence: session, tokens, wanted, attention }) in inputs.iter().enumerate() {
            if !Arc::ptr_eq(&session.model, &model) {
                let message = "the session is of another model than that of inputs[0]; call once for each model";
                return Err(Error::Argument(message.to_owned()).at(index));
            }
            let pattern = attention.map_or(Ok(()), |attention| model.engine().check_attention(attention));
            pattern.and_then(|()| session.check(tokens, *wanted, 0)).map_err(|error| error.at(index))?;
        }
        append(&model, inputs, poll)
    }

    /// Whether at least `least` positions are wanted, and all can be computed.
    fn check(&self, tokens: &[u32], wanted: Wanted, least: usize) -> Result<()> {
        let n_vocab = self.model.config().n_vocab;
        if tokens.is_empty() {
            return Err(Error::Argument("there are no tokens to process; at least one is needed".to_owned()));
        }
        if !(least..=tokens.len()).contains(&wanted.positions()) {
            let (what, positions) = match wanted {
                Wanted::Choices(positions) => ("choices", positions),
                Wanted::Logits(positions) => ("logits", positions),
            };
            return Err(Error::Argument(format!(
                "{what} of the last {positions} positions are wanted; with {} tokens {least} to {0} are possible",
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

    /// Counts as appended what the cache holds already.
    fn extend(&mut self, tokens: &[u32], attention: Option<&PromptAttention>) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        if let Some(PromptAttention { pattern, end, .. }) = attention {
            let sparse = start.max(pattern.dense_below())..self.tokens.len().min(pattern.tail_starts(*end)[1]);
            self.add_span(sparse, &pattern.to_string());
        }
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

/// Appends inputs that were checked to sessions of `model`.
fn append(model: &Model, inputs: &mut [Input<'_, Session>], poll: &mut dyn FnMut() -> bool) -> Result<Vec<Outcome>> {
    let mut of_caches: Vec<_> = inputs.iter_mut().map(|input| input.of(|session| &mut session.cache)).collect();
    let outcomes = model.engine().forward(&mut of_caches, poll)?;
    for Input { sequence: session, tokens, attention, .. } in inputs {
        session.extend(tokens, *attention);
    }
    Ok(outcomes)
}
