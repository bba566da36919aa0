//! The tokenizer and its stream.

use super::convert::{token_ids, Count};
use super::lock;
use crate::tokenizer::{codec, text_stream};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// The tokenizer a GGUF file describes (SPM or BPE).
#[pyclass(frozen, module = "specrs._specrs", name = "Tokenizer")]
pub struct PyTokenizer(pub Arc<codec::Tokenizer>);

#[pymethods]
impl PyTokenizer {
    /// Number of tokens.
    #[getter]
    fn n_vocab(&self) -> usize {
        self.0.n_vocab()
    }

    /// The beginning-of-sequence id, if there is one.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.0.bos()
    }

    /// The end-of-sequence id, if there is one.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.0.eos()
    }

    /// Every id that ends a generation: end of sequence, of turn, of message.
    #[getter]
    fn end_ids(&self) -> Vec<u32> {
        self.0.end_ids().to_vec()
    }

    /// Whether the file wants a beginning-of-sequence token first.
    #[getter]
    fn add_bos(&self) -> bool {
        self.0.add_bos()
    }

    /// The chat template of the file, if there is one.
    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.0.chat_template()
    }

    /// The ids of `text`.
    #[pyo3(signature = (text, *, add_bos=None, parse_special=false))]
    fn encode(&self, py: Python<'_>, text: &str, add_bos: Option<bool>, parse_special: bool) -> PyResult<Vec<u32>> {
        Ok(py.detach(|| self.0.encode(text, add_bos, parse_special))?)
    }

    /// The ids of a chat in pieces of text, each with whether it is the template's own, in which marks count; BOS is not
    /// added.
    fn encode_pieces(&self, py: Python<'_>, pieces: Vec<(String, bool)>) -> Vec<u32> {
        let marks = |own: bool| if own { codec::Marks::All } else { codec::Marks::Quoted };
        let pieces: Vec<_> = pieces.iter().map(|(text, own)| (text.as_str(), marks(*own))).collect();
        py.detach(|| self.0.encode_pieces(&pieces))
    }

    /// Text of `tokens`; bytes that are no UTF-8 become U+FFFD.
    #[pyo3(signature = (tokens, *, skip_special_tokens=true))]
    fn decode(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, skip_special_tokens: bool) -> PyResult<String> {
        let tokens = token_ids(tokens)?;
        Ok(py.detach(|| self.0.decode(&tokens, skip_special_tokens))?)
    }

    /// The bytes that a token adds to a text; none if it is a mark.
    fn token_bytes(&self, id: Count) -> PyResult<&[u8]> {
        Ok(self.0.token_bytes(id.id())?)
    }

    /// What the file says and cannot be followed, a sentence each.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().to_vec()
    }

    /// The vocabulary's own string of `id`, for messages and comparisons.
    fn token(&self, id: Count) -> PyResult<&str> {
        Ok(self.0.token(id.id())?)
    }

    /// The control token that is called `name`.
    fn control_id(&self, name: &str) -> Option<u32> {
        self.0.control_id(name)
    }

    /// Whether a token is a mark, never text.
    fn is_control(&self, id: Count) -> PyResult<bool> {
        Ok(self.0.is_control(id.id())?)
    }

    /// Whether `id` is an unused row that only pads the vocabulary.
    fn is_padding(&self, id: Count) -> PyResult<bool> {
        Ok(self.0.is_padding(id.id())?)
    }

    /// A stream for ids that begin a text, or that continue one (a first space then belongs to it).
    #[pyo3(signature = (*, continuing=false, skip_special_tokens=true))]
    fn stream(&self, continuing: bool, skip_special_tokens: bool) -> PyTextStream {
        let stream = if continuing { text_stream::TextStream::continuing } else { text_stream::TextStream::new };
        let stream = stream(self.0.clone());
        PyTextStream(Mutex::new(if skip_special_tokens { stream } else { stream.with_marks() }))
    }
}

/// Turns ids into text piece by piece; every piece is whole UTF-8 and the pieces join to `Tokenizer.decode`.
#[pyclass(frozen, module = "specrs._specrs", name = "TextStream")]
pub struct PyTextStream(Mutex<text_stream::TextStream>);

#[pymethods]
impl PyTextStream {
    /// Text that became complete with `token`, often empty in the middle of a character.
    fn push(&self, token: Count) -> PyResult<String> {
        Ok(lock(&self.0).push(token.id())?)
    }

    /// What was held back: one U+FFFD for each incomplete character.
    fn finish(&self) -> String {
        lock(&self.0).finish()
    }
}
