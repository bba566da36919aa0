//! The sampler, on numpy rows in place.

use super::convert::{token_ids, Count};
use super::lock;
use crate::sampling::distribution::Filters;
use crate::sampling::picks::{Sampler, Settings};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::Mutex;

/// Chooses the tokens of one sequence and keeps their history; see `specrs.Sampling`.
#[pyclass(frozen, module = "specrs._specrs", name = "Sampler")]
pub struct PySampler(Mutex<Sampler>);

/// A row of logits, borrowed from numpy.
struct Row<'py>(PyReadonlyArray1<'py, f32>);

impl<'py> FromPyObject<'_, 'py> for Row<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<PyReadonlyArray1<'py, f32>>() {
            Ok(row) if row.as_slice().is_ok() => Ok(Self(row)),
            _ => Err(PyTypeError::new_err("logits must be a contiguous float32 array of one dimension")),
        }
    }
}

impl Row<'_> {
    fn values(&self) -> &[f32] {
        self.0.as_slice().unwrap_or_default()
    }
}

#[pymethods]
impl PySampler {
    #[new]
    #[pyo3(signature = (
        *, prompt_tokens=Count(0), seed=0, temperature=0.0, top_k=Count(0), top_p=1.0, min_p=0.0,
        repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=Vec::new()
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        prompt_tokens: Count,
        seed: u64,
        temperature: f64,
        top_k: Count,
        top_p: f64,
        min_p: f64,
        repetition_penalty: f64,
        frequency_penalty: f64,
        presence_penalty: f64,
        logit_bias: Vec<(u32, f32)>,
    ) -> Self {
        let filters = Filters { temperature: temperature as f32, top_k: top_k.0, top_p, min_p: min_p as f32 };
        let filters = (temperature > 0.0).then_some(filters);
        let settings = Settings { seed, filters, repetition_penalty, frequency_penalty, presence_penalty, logit_bias };
        Self(Mutex::new(Sampler::new(settings, prompt_tokens.0)))
    }

    fn __len__(&self) -> usize {
        lock(&self.0).position()
    }

    /// Append `tokens` to the history.
    fn extend(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = token_ids(tokens)?;
        py.detach(|| lock(&self.0).extend(&tokens));
        Ok(())
    }

    /// Cut the history; ValueError if it is shorter.
    fn truncate(&self, length: Count) -> PyResult<()> {
        Ok(lock(&self.0).truncate(length.0)?)
    }

    /// New logits with penalties and biases applied, as the history demands.
    fn adjust<'py>(&self, py: Python<'py>, logits: Row<'py>) -> Bound<'py, PyArray1<f32>> {
        let mut row = logits.values().to_vec();
        py.detach(|| lock(&self.0).adjust(&mut row));
        PyArray1::from_vec(py, row)
    }

    /// Choose the next token and append it; `adjusted` logits come from `adjust`.
    #[pyo3(signature = (logits, *, adjusted=false))]
    fn pick(&self, py: Python<'_>, logits: Row<'_>, adjusted: bool) -> PyResult<u32> {
        let row = logits.values();
        let pick = if adjusted { Sampler::pick_adjusted } else { Sampler::pick };
        Ok(py.detach(|| pick(&mut lock(&self.0), row))?)
    }

    /// The log-softmax of `logits` at `token`, and the `count` largest with their ids, descending.
    fn log_probabilities(
        &self,
        py: Python<'_>,
        logits: Row<'_>,
        token: Count,
        count: Count,
    ) -> PyResult<(f64, Vec<(u32, f64)>)> {
        let row = logits.values();
        Ok(py.detach(|| lock(&self.0).log_probabilities(row, token.id(), count.0))?)
    }
}
