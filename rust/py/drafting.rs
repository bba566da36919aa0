//! The indexes that drafters look things up in. Tokens come as lists here: the quickest way for a few of them.

use super::convert::{shown, Count};
use super::lock;
use crate::drafting::ngrams::{self, Occurrence};
use crate::drafting::suffix::{self, SuffixTree};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// An occurrence by its name.
struct OccurrenceName(Occurrence);

impl<'py> FromPyObject<'_, 'py> for OccurrenceName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<&str>() {
            Ok("last") => Ok(Self(Occurrence::Last)),
            Ok("first") => Ok(Self(Occurrence::First)),
            Ok("most_frequent") => Ok(Self(Occurrence::MostFrequent)),
            _ => {
                let text = shown(&object);
                Err(PyValueError::new_err(format!("occurrence must be 'last', 'first' or 'most_frequent', not {text}")))
            }
        }
    }
}

/// Where the n-grams of a history occurred; sizes from `min_size` to `max_size`.
#[pyclass(frozen, module = "specrs._specrs", name = "NgramIndex")]
pub struct PyNgramIndex(Mutex<ngrams::NgramIndex>);

#[pymethods]
impl PyNgramIndex {
    #[new]
    fn new(min_size: Count, max_size: Count, occurrence: OccurrenceName, min_hits: Count) -> PyResult<Self> {
        if min_size.0 < 1 || max_size.0 < min_size.0 {
            return Err(PyValueError::new_err("1 <= min_size <= max_size is needed"));
        }
        let sizes = min_size.0..=max_size.0;
        Ok(Self(Mutex::new(ngrams::NgramIndex::new(sizes, occurrence.0, min_hits.id()))))
    }

    fn __len__(&self) -> usize {
        lock(&self.0).ids().len()
    }

    /// Forget the history.
    fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Append to the history.
    fn extend(&self, py: Python<'_>, tokens: Vec<u32>) {
        py.detach(|| lock(&self.0).extend(&tokens));
    }

    /// Up to `k` ids that followed the longest final n-gram which occurred before, and its size.
    fn propose(&self, k: Count) -> (Vec<u32>, usize) {
        lock(&self.0).propose(k.0).map_or((Vec::new(), 0), |(ids, n)| (ids.to_vec(), n))
    }
}

/// How often every string of at most `depth` ids occurs in the texts added; from 2 on.
#[pyclass(frozen, module = "specrs._specrs", name = "SuffixTree")]
pub struct PySuffixTree(Arc<RwLock<SuffixTree>>);

#[pymethods]
impl PySuffixTree {
    #[new]
    fn new(depth: Count) -> PyResult<Self> {
        Ok(Self(Arc::new(RwLock::new(SuffixTree::new(checked_depth(depth)?)))))
    }

    fn __len__(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).text().len()
    }

    /// Add a text.
    fn add(&self, py: Python<'_>, tokens: Vec<u32>) {
        py.detach(|| {
            let mut tree = self.0.write().unwrap_or_else(PoisonError::into_inner);
            tokens.iter().for_each(|&id| tree.push(id));
            tree.end_sequence();
        });
    }
}

/// A history whose end is looked up in its own past and in a corpus.
#[pyclass(frozen, module = "specrs._specrs", name = "SuffixIndex")]
pub struct PySuffixIndex(Mutex<suffix::SuffixIndex>);

#[pymethods]
impl PySuffixIndex {
    #[new]
    #[pyo3(signature = (depth, corpus=None))]
    fn new(depth: Count, corpus: Option<&PySuffixTree>) -> PyResult<Self> {
        let corpus = corpus.map(|corpus| corpus.0.clone());
        Ok(Self(Mutex::new(suffix::SuffixIndex::new(checked_depth(depth)?, corpus))))
    }

    fn __len__(&self) -> usize {
        lock(&self.0).ids().len()
    }

    /// Forget the history.
    fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Append to the history.
    fn extend(&self, py: Python<'_>, tokens: Vec<u32>) {
        py.detach(|| lock(&self.0).extend(&tokens));
    }

    /// The guess of up to `k` ids with the most right ones to expect.
    fn propose(&self, py: Python<'_>, k: Count, min_probability: f32) -> (Vec<u32>, usize, f32) {
        let guess = py.detach(|| lock(&self.0).propose(k.0, min_probability));
        (guess.ids, guess.matched, guess.score)
    }
}

fn checked_depth(depth: Count) -> PyResult<usize> {
    if depth.0 < 2 {
        return Err(PyValueError::new_err(format!("depth must be at least 2, not {}", depth.0)));
    }
    Ok(depth.0)
}
