//! The same decoder on candle's tensors, for the devices that candle drives: `candle-cpu`, `metal`, `cuda`.

pub mod cache;
pub mod weights;
pub mod decoder;
