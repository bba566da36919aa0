//! Text to token ids and back, as the metadata of a model file describes it: [`codec`] does both, [`text_stream`] piece
//! by piece.

pub mod classes;
pub mod words;
pub mod pre;
pub mod vocabulary;
pub mod specials;
pub mod turns;
pub mod markers;
pub mod merging;
pub mod spm;
pub mod bpe;
pub mod codec;
pub mod text_stream;
