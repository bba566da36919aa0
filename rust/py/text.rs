//! The tokenizer and its stream.

use super::convert::{token_ids, Count};
use super::lock;
use crate::{text_stream, tokenizer};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

#[pyclass(frozen, module = "specrs._specrs", name = "Tokenizer")]
pub struct PyTokenizer(pub Arc<tokenizer::Tokenizer>);

#[pymethods]
impl PyTokenizer {
    #[getter]
    fn n_vocab(&self) -> usize {
        self.0.n_vocab()
    }

    #[getter]
    fn bos(&self) -> Option<u32> {
        self.0.bos()
    }

    #[getter]
    fn eos(&self) -> Option<u32> {
        self.0.eos()
    }

    #[getter]
    fn end_ids(&self) -> Vec<u32> {
        self.0.end_ids().to_vec()
    }

    #[getter]
    fn add_bos(&self) -> bool {
        self.0.add_bos()
    }

    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.0.chat_template()
    }

    #[pyo3(signature = (text, *, add_bos=None, parse_special=false))]
    fn encode(&self, py: Python<'_>, text: &str, add_bos: Option<bool>, parse_special: bool) -> PyResult<Vec<u32>> {
        Ok(py.detach(|| self.0.encode(text, add_bos, parse_special))?)
    }

    fn decode(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<String> {
        let tokens = token_ids(tokens)?;
        Ok(py.detach(|| self.0.decode(&tokens))?)
    }

    fn token(&self, id: Count) -> PyResult<&str> {
        Ok(self.0.token(id.id())?)
    }

    fn is_control(&self, id: Count) -> PyResult<bool> {
        Ok(self.0.is_control(id.id())?)
    }

    fn is_padding(&self, id: Count) -> PyResult<bool> {
        Ok(self.0.is_padding(id.id())?)
    }

    #[pyo3(signature = (*, continuing=false))]
    fn stream(&self, continuing: bool) -> PyTextStream {
        let stream = if continuing { text_stream::TextStream::continuing } else { text_stream::TextStream::new };
        PyTextStream(Mutex::new(stream(self.0.clone())))
    }
}

#[pyclass(frozen, module = "specrs._specrs", name = "TextStream")]
pub struct PyTextStream(Mutex<text_stream::TextStream>);

#[pymethods]
impl PyTextStream {
    fn push(&self, token: Count) -> PyResult<String> {
        Ok(lock(&self.0).push(token.id())?)
    }

    fn finish(&self) -> String {
        lock(&self.0).finish()
    }
}
