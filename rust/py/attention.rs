//! Attention patterns in Python: plain values that `specrs.attention` builds.

use super::convert::{shown, Count};
use crate::attention::cache::PAGE;
use crate::attention::patterns::{Counts, Layers, Pattern, PromptAttention};
use crate::error::{Error, Result};
use numpy::{PyArray3, PyArrayMethods, PyReadonlyArray2, PyReadwriteArray3, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use std::sync::Arc;

/// A pattern; `specrs.attention` checks what goes in.
#[pyclass(frozen, module = "specrs._specrs", name = "Pattern")]
pub struct PyPattern(pub Arc<Pattern>);

impl PyPattern {
    fn wrap(&self, wrap: impl FnOnce(Box<Pattern>) -> Pattern) -> Self {
        Self(Arc::new(wrap(Box::new((*self.0).clone()))))
    }
}

#[pymethods]
impl PyPattern {
    /// What `attention="auto"` stands for.
    #[staticmethod]
    fn auto() -> Self {
        Self(Arc::new(Pattern::auto()))
    }

    #[staticmethod]
    fn window(sink: Count, window: Count, log: bool) -> Self {
        Self(Arc::new(Pattern::Window { sink: sink.0 / PAGE, window: window.0 / PAGE, log }))
    }

    #[staticmethod]
    fn block_mean(alpha: f32, spread: f32, least: f32, sink: Count, window: Count, correct: bool) -> Self {
        let [sink, window] = [sink.0 / PAGE, window.0 / PAGE];
        Self(Arc::new(Pattern::BlockMean { alpha, spread, least, sink, window, correct }))
    }

    #[staticmethod]
    fn antidiagonal(stride: Count, tau: f32, sink: Count, window: Count) -> Self {
        let [sink, window] = [sink.0 / PAGE, window.0 / PAGE];
        Self(Arc::new(Pattern::Antidiagonal { stride: stride.0, tau, sink, window }))
    }

    #[staticmethod]
    fn custom(mask: PyReadonlyArray2<'_, bool>) -> PyResult<Self> {
        let blocks = mask.shape()[0];
        if mask.shape()[1] != blocks {
            return Err(PyValueError::new_err(format!("a mask must be square, not {:?}", mask.shape())));
        }
        let kept = mask.as_array().iter().map(|&kept| u8::from(kept)).collect();
        Ok(Self(Arc::new(Pattern::Mask { blocks, kept })))
    }

    fn dense_below(&self, positions: Count) -> Self {
        self.wrap(|inner| Pattern::DenseBelow(positions.0, inner))
    }

    fn dense_layers(&self, first: Layers, last: Layers) -> Self {
        self.wrap(|inner| Pattern::DenseLayers { first, last, inner })
    }

    #[staticmethod]
    fn layer_split(first: Layers, early: &Self, late: &Self) -> Self {
        let [early, late] = [early, late].map(|pattern| Box::new((*pattern.0).clone()));
        Self(Arc::new(Pattern::LayerSplit { first, early, late }))
    }

    fn dense_tail(&self, positions: Count) -> Self {
        self.wrap(|inner| Pattern::DenseTail(positions.0, inner))
    }

    /// The position from which some layer attends exactly because a prompt ends at `end`.
    fn tail_start(&self, end: Count) -> usize {
        self.0.tail_starts(end.0)[0]
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

impl<'py> FromPyObject<'_, 'py> for Layers {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyFloat>() {
            Ok(share) => Ok(Self::Share(share.value() as f32)),
            Err(_) => Count::extract(object).map(|count| Self::Count(count.0)),
        }
    }
}

/// What `attention=` asks for: `None` for "dense".
pub fn pattern(attention: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Pattern>>> {
    if let Ok(name) = attention.extract::<&str>() {
        return match name {
            "dense" => Ok(None),
            "auto" => Ok(Some(Arc::new(Pattern::auto()))),
            _ => Err(PyValueError::new_err(format!(
                "attention=\"{name}\" is unknown; use \"dense\", \"auto\" or a pattern of specrs.attention"
            ))),
        };
    }
    let native = attention.getattr_opt("native")?;
    let native = native.as_ref().and_then(|native| native.cast::<PyPattern>().ok());
    native.map(|native| Some(native.get().0.clone())).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "attention must be \"dense\", \"auto\" or a pattern such as specrs.attention.SinkWindow(), not {}",
            shown(attention)
        ))
    })
}

/// The array that counts are to be added to.
pub fn counted<'a, 'py>(kept: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyArray3<u32>>> {
    kept.cast().map_err(|_| {
        let wanted = "a numpy array of uint32 in three dimensions; make it with kept_shape()";
        PyTypeError::new_err(format!("kept must be {wanted}, not {}", shown(kept)))
    })
}

/// The right to add to `kept`, which nobody else has meanwhile.
pub fn writable<'py>(kept: &Bound<'py, PyArray3<u32>>) -> PyResult<PyReadwriteArray3<'py, u32>> {
    kept.try_readwrite().map_err(|_| PyValueError::new_err("kept cannot be written to; give an array of its own"))
}

/// How a prompt is to attend, checked as far as that can be done without its session.
pub struct PrefillAttention {
    pattern: Option<Arc<Pattern>>,
    /// Positions when the prompt is complete; `None` if it is after the call.
    prompt_length: Option<usize>,
    /// Shape of the array for counts.
    kept: Option<Vec<usize>>,
}

impl PrefillAttention {
    /// Checks the arguments of a prefill; `kept` is an array for counts.
    pub fn new(
        attention: Option<&Bound<'_, PyAny>>,
        prompt_length: Option<Count>,
        kept: Option<&Bound<'_, PyArray3<u32>>>,
    ) -> PyResult<Self> {
        let pattern = attention.map(pattern).transpose()?.flatten();
        if pattern.is_none() && kept.is_some() {
            return Err(PyValueError::new_err("kept counts for a pattern; exact attention keeps everything"));
        }
        let kept = kept.map(|kept| kept.shape().to_vec());
        Ok(Self { pattern, prompt_length: prompt_length.map(|length| length.0), kept })
    }

    /// How the tokens up to position `end` attend in a model of `n_layer` layers.
    ///
    /// # Errors
    /// [`Error::Argument`] if the arguments do not go with these.
    pub fn until(self, end: usize, n_layer: usize) -> Result<Option<PromptAttention>> {
        let length = self.prompt_length.unwrap_or(end);
        if length < end {
            return Err(Error::Argument(format!(
                "prompt_length={length} is less than the {end} positions that are filled after this call"
            )));
        }
        let Some(pattern) = self.pattern else { return Ok(None) };
        let counts = self.kept.map(|shape| match shape[..] {
            [layers, blocks, columns] if layers == n_layer && blocks == columns && blocks * PAGE >= end => {
                Ok(Arc::new(Counts::new(n_layer, blocks)))
            }
            _ => Err(Error::Argument(format!("kept has shape {shape:?}; make it with kept_shape()"))),
        });
        Ok(Some(PromptAttention { pattern, end: length, counts: counts.transpose()? }))
    }
}
