//! From a row of logits to a token: [`distribution`] filters, [`noise`] draws, [`picks`] chooses and remembers.

pub mod noise;
pub mod distribution;
pub mod picks;
