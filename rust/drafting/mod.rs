//! What drafters look up: [`ngrams`] of a history, and [`suffix`] trees over many texts.

pub mod ngrams;
pub mod suffix;
