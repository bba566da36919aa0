//! The choice of the next token: penalties by what came before, biases, filters, and a draw that a seed determines.

use crate::error::{Error, Result};
use crate::sampling::distribution::{argmax, Filters, Scratch};
use crate::sampling::noise::Noise;
use std::collections::HashMap;

/// How tokens are chosen.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Determines every draw, together with position and token id.
    pub seed: u64,
    /// None takes the most likely token.
    pub filters: Option<Filters>,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 is none (Keskar et al., 2019).
    pub repetition_penalty: f64,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of every token that was generated.
    pub presence_penalty: f64,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Settings {
    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// How often a token occurred.
#[derive(Clone, Copy, Default)]
struct Occurrences {
    anywhere: u32,
    generated: u32,
}

/// Chooses token after token of one sequence, and knows what came before each.
///
/// A choice is a pure function of settings, history and logits; cutting the history undoes choices exactly.
pub struct Sampler {
    settings: Settings,
    prompt_tokens: usize,
    history: Vec<u32>,
    /// Of every token of the history, kept only where a penalty needs it.
    occurrences: HashMap<u32, Occurrences>,
    adjusted: Vec<f32>,
    scratch: Scratch,
}

impl Sampler {
    /// A sampler with an empty history, whose first `prompt_tokens` ids count as not generated.
    pub fn new(settings: Settings, prompt_tokens: usize) -> Self {
        Self {
            settings,
            prompt_tokens,
            history: Vec::new(),
            occurrences: HashMap::new(),
            adjusted: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Length of the history: the position of the next choice.
    pub fn position(&self) -> usize {
        self.history.len()
    }

    /// Appends `tokens` to the history.
    pub fn extend(&mut self, tokens: &[u32]) {
        if self.settings.penalises() {
            for (&token, position) in tokens.iter().zip(self.history.len()..) {
                let occurrences = self.occurrences.entry(token).or_default();
                occurrences.anywhere += 1;
                occurrences.generated += u32::from(position >= self.prompt_tokens);
            }
        }
        self.history.extend_from_slice(tokens);
    }

    /// Cuts the history to `length` ids.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        let have = self.history.len();
        if length > have {
            return Err(Error::Argument(format!("cannot cut a history of {have} tokens to {length}")));
        }
        for position in length..have {
            let token = self.history[position];
            if let Some(occurrences) = self.occurrences.get_mut(&token) {
                occurrences.anywhere -= 1;
                occurrences.generated -= u32::from(position >= self.prompt_tokens);
                if occurrences.anywhere == 0 {
                    self.occurrences.remove(&token);
                }
            }
        }
        self.history.truncate(length);
        Ok(())
    }

    /// Applies penalties and biases to the logits at the end of the history.
    pub fn adjust(&self, row: &mut [f32]) {
        let Settings { repetition_penalty, frequency_penalty, presence_penalty, ref logit_bias, .. } = self.settings;
        for (&token, occurrences) in &self.occurrences {
            if let Some(logit) = row.get_mut(token as usize) {
                let x = f64::from(*logit);
                let mut x = if x > 0.0 { x / repetition_penalty } else { x * repetition_penalty };
                if occurrences.generated > 0 {
                    x -= frequency_penalty * f64::from(occurrences.generated) + presence_penalty;
                }
                *logit = x as f32;
            }
        }
        for &(token, bias) in logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    /// Chooses the token after the history from the model's logits and appends it.
    pub fn pick(&mut self, logits: &[f32]) -> Result<u32> {
        if self.occurrences.is_empty() && self.settings.logit_bias.is_empty() {
            return self.pick_adjusted(logits);
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        self.adjust(&mut adjusted);
        let picked = self.pick_adjusted(&adjusted);
        self.adjusted = adjusted;
        picked
    }

    /// As [`Self::pick`], for logits to which penalties and biases were applied already.
    pub fn pick_adjusted(&mut self, logits: &[f32]) -> Result<u32> {
        let position = self.position();
        let picked = match &self.settings.filters {
            None => argmax(logits),
            Some(filters) => {
                let noise = Noise::new(self.settings.seed, position as u64);
                self.scratch.draw(logits, filters, noise)
            }
        };
        let token = picked.ok_or_else(|| {
            Error::Argument(format!(
                "no token can be chosen at position {position}: every logit is -inf or NaN; a logit_bias or \
                 logits_processor must leave at least one token possible"
            ))
        })?;
        self.extend(&[token]);
        Ok(token)
    }

    /// The log-probability the model itself gives `token`, and the `count` most likely tokens with theirs.
    pub fn log_probabilities(&mut self, logits: &[f32], token: u32, count: usize) -> Result<(f64, Vec<(u32, f64)>)> {
        self.scratch
            .log_probabilities(logits, token, count)
            .ok_or_else(|| Error::Argument(format!("token {token} has no probability among {} logits", logits.len())))
    }
}

#[cfg(test)]
mod tests;
