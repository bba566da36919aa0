//! Sessions in Python.

use super::convert::{shown, Count};
use super::lease::PyLease;
use super::locked::{Holder, Locked, Prefill};
use crate::attention::cache::PAGE;
use crate::{saved, session};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A frozen state of a session; cheap, and never changed by what the session does later.
#[pyclass(frozen, module = "specrs._specrs", name = "Snapshot")]
pub struct PySnapshot(session::Snapshot);

#[pymethods]
impl PySnapshot {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// The tokens of one sequence with their cached keys and values. Calls from several threads wait for each other.
#[pyclass(frozen, module = "specrs._specrs", name = "Session")]
pub struct PySession(Arc<Locked>);

impl From<session::Session> for PySession {
    fn from(session: session::Session) -> Self {
        Self(Arc::new(session.into()))
    }
}

impl PySession {
    /// The session that `object` is or has leased, and on whose behalf it changes the session.
    pub fn or_lease<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<(&'a Locked, Holder)> {
        if let Ok(session) = object.cast::<Self>() {
            return Ok((&session.get().0, Holder::ANYONE));
        }
        object
            .cast::<PyLease>()
            .map(|lease| lease.get().parts())
            .map_err(|_| PyTypeError::new_err(format!("a session or a lease of one is needed, not {}", shown(object))))
    }
}

#[pymethods]
impl PySession {
    /// The cached ids.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.0.read(py, |session| Ok(session.tokens().to_vec()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.read(py, |session| Ok(session.tokens().len()))
    }

    /// Append `tokens`; logits [n_vocab] after the last of them.
    fn forward<'py>(&self, py: Python<'py>, tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let logits = self.0.logits(py, Holder::ANYONE, tokens, Some(1))?;
        let n_vocab = logits.shape()[1];
        logits.reshape([n_vocab])
    }

    /// Append `tokens`; logits [len(tokens), n_vocab] after each of them.
    fn forward_all_positions<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.0.logits(py, Holder::ANYONE, tokens, None)
    }

    /// Append `tokens`; logits [positions, n_vocab] after the last `positions` of them.
    fn forward_last<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Count,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.0.logits(py, Holder::ANYONE, tokens, Some(positions.0))
    }

    /// Append `tokens`; the ids with the highest logits after the last `positions` of them.
    fn choose_last(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, positions: Count) -> PyResult<Vec<Option<u32>>> {
        self.0.choose(py, Holder::ANYONE, tokens, positions.0)
    }

    /// Append the rest of a prompt; logits [positions, n_vocab] after the last ones.
    #[pyo3(signature = (
        tokens, *, attention=None, positions=Count(1), progress=None, prompt_length=None, kept=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn prefill<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        attention: Option<&Bound<'py, PyAny>>,
        positions: Count,
        progress: Option<Py<PyAny>>,
        prompt_length: Option<Count>,
        kept: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let how = Prefill { attention, positions, progress, prompt_length, kept };
        self.0.prefill(py, Holder::ANYONE, tokens, how)
    }

    /// The shape of `kept` for `length` more tokens.
    fn kept_shape(&self, py: Python<'_>, length: Count) -> PyResult<(usize, usize, usize)> {
        self.0.read(py, |session| {
            let (model, needed) = (session.model(), session.tokens().len().saturating_add(length.0));
            if needed > model.n_ctx() {
                return Err(model.overflow(needed));
            }
            let blocks = needed.div_ceil(PAGE);
            Ok((model.config().n_layer, blocks, blocks))
        })
    }

    /// The positions that were attended to sparsely: start, end and pattern of each span.
    #[getter]
    fn sparse_spans(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize, String)>> {
        let span = |span: &session::Span| (span.positions.start, span.positions.end, span.pattern.to_string());
        self.0.read(py, |session| Ok(session.spans().iter().map(span).collect()))
    }

    /// Forget all ids from position `length` on; ValueError if the session is shorter.
    fn truncate(&self, py: Python<'_>, length: Count) -> PyResult<()> {
        self.0.change(py, Holder::ANYONE, |session, _| session.truncate(length.0))
    }

    /// Forget everything.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.change(py, Holder::ANYONE, |session, _| {
            session.reset();
            Ok(())
        })
    }

    /// The state of now, for `restore`.
    fn snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        self.0.read(py, |session| Ok(PySnapshot(session.snapshot())))
    }

    /// Go back to `snapshot`; ValueError if it was taken on another model.
    fn restore(&self, py: Python<'_>, snapshot: &PySnapshot) -> PyResult<()> {
        let snapshot = &snapshot.0;
        self.0.change(py, Holder::ANYONE, |session, _| session.restore(snapshot))
    }

    /// A second session with the same contents; shared memory is copied only where it is written.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        self.0.read(py, |session| Ok(Self::from(session.fork())))
    }

    /// Write the session to a file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.0.read(py, |session| saved::save(session, &path))
    }

    /// Keep this session for one user; RuntimeError if somebody has it already.
    fn lease(&self, py: Python<'_>) -> PyResult<PyLease> {
        PyLease::new(py, self.0.clone())
    }
}
