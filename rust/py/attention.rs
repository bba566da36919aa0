//! Attention patterns in Python: plain values that `specrs.attention` builds.

use super::convert::{shown, Count};
use crate::attention::cache::PAGE;
use crate::attention::patterns::{Counts, Layers, Pattern, PromptAttention};
use numpy::{PyArray3, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
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

/// The arguments of a prefill: `end` is where its tokens end, `kept` an array for the counts of `n_layer` layers.
pub fn prompt(
    attention: Option<&Bound<'_, PyAny>>,
    end: usize,
    n_layer: usize,
    prompt_length: Option<Count>,
    kept: Option<&Bound<'_, PyArray3<u32>>>,
) -> PyResult<Option<PromptAttention>> {
    let length = prompt_length.map_or(end, |length| length.0);
    if length < end {
        return Err(PyValueError::new_err(format!(
            "prompt_length={length} is less than the {end} positions that are filled after this call"
        )));
    }
    let Some(pattern) = attention.map(pattern).transpose()?.flatten() else {
        return match kept {
            Some(_) => Err(PyValueError::new_err("kept counts for a pattern; exact attention keeps everything")),
            None => Ok(None),
        };
    };
    let counts = kept.map(|kept| match *kept.shape() {
        _ if kept.try_readwrite().is_err() => {
            Err(PyValueError::new_err("kept cannot be written to; give an array of its own"))
        }
        [layers, blocks, columns] if layers == n_layer && blocks == columns && blocks * PAGE >= end => {
            Ok(Arc::new(Counts::new(n_layer, blocks)))
        }
        _ => Err(PyValueError::new_err(format!("kept has shape {:?}; make it with kept_shape()", kept.shape()))),
    });
    Ok(Some(PromptAttention { pattern, end: length, counts: counts.transpose()? }))
}
