//! A lease of a session in Python.

use super::convert::Count;
use super::locked::{Holder, Locked, Prefill};
use numpy::PyArray2;
use pyo3::prelude::*;
use std::sync::Arc;

/// The right to change a session, which nobody else has until it is released.
#[pyclass(frozen, module = "specrs._specrs", name = "Lease")]
pub struct PyLease {
    session: Arc<Locked>,
    holder: Holder,
}

impl PyLease {
    /// Leases `session`, once the calls that use it are done.
    pub fn new(py: Python<'_>, session: Arc<Locked>) -> PyResult<Self> {
        let holder = session.lease(py)?;
        Ok(Self { session, holder })
    }

    /// What is leased, and to whom.
    pub fn parts(&self) -> (&Locked, Holder) {
        (&self.session, self.holder)
    }
}

impl Drop for PyLease {
    fn drop(&mut self) {
        self.session.release(self.holder);
    }
}

#[pymethods]
impl PyLease {
    /// As `Session.forward_last`.
    fn forward_last<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Count,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.session.logits(py, self.holder, tokens, Some(positions.0))
    }

    /// As `Session.choose_last`.
    fn choose_last(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, positions: Count) -> PyResult<Vec<Option<u32>>> {
        self.session.choose(py, self.holder, tokens, positions.0)
    }

    /// As `Session.prefill`.
    #[pyo3(signature = (tokens, *, attention=None, positions=Count(1), progress=None, prompt_length=None))]
    fn prefill<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        attention: Option<&Bound<'py, PyAny>>,
        positions: Count,
        progress: Option<Py<PyAny>>,
        prompt_length: Option<Count>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let how = Prefill { attention, positions, progress, prompt_length, kept: None };
        self.session.prefill(py, self.holder, tokens, how)
    }

    /// As `Session.truncate`.
    fn truncate(&self, py: Python<'_>, length: Count) -> PyResult<()> {
        self.session.change(py, self.holder, |session, _| session.truncate(length.0))
    }

    /// Let others change the session again; what was released stays so.
    fn release(&self) {
        self.session.release(self.holder);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.release();
    }
}
