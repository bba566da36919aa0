//! Sessions in Python.

use super::attention::{counted, prompt};
use super::convert::{shown, token_ids, Count};
use super::{interruptible, lock};
use crate::attention::cache::PAGE;
use crate::error::{Error, Result};
use crate::{saved, session};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// A frozen state of a session; cheap, and never changed by what the session does later.
#[pyclass(frozen, module = "specrs._specrs", name = "Snapshot")]
pub struct PySnapshot(session::Snapshot);

#[pymethods]
impl PySnapshot {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// How often a call looks whether another thread's call on the same session is done.
const LOCK_INTERVAL: Duration = Duration::from_micros(200);
/// No process.
const NOBODY: u32 = 0;

/// The tokens of one sequence with their cached keys and values. Calls from several threads wait for each other.
#[pyclass(frozen, module = "specrs._specrs", name = "Session")]
pub struct PySession {
    /// The process of the call that uses the session. After a fork in the middle of another thread's call the child
    /// finds its parent here, and not the thread that would end the call.
    user: AtomicU32,
    session: Mutex<session::Session>,
}

/// A session in use by this call.
struct InUse<'a> {
    session: MutexGuard<'a, session::Session>,
    /// Dropped after the lock.
    _user: User<'a>,
}

struct User<'a>(&'a AtomicU32);

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

impl From<session::Session> for PySession {
    fn from(session: session::Session) -> Self {
        Self { user: AtomicU32::new(NOBODY), session: Mutex::new(session) }
    }
}

impl PySession {
    /// Waits for the session; whoever uses it may compute for long, so signals are heard meanwhile.
    fn lock(&self, poll: &mut dyn FnMut() -> bool) -> Result<InUse<'_>> {
        let process = std::process::id();
        while let Err(user) = self.user.compare_exchange(NOBODY, process, Ordering::Acquire, Ordering::Relaxed) {
            if user != process {
                return Err(Error::Argument(
                    "the session was in use by another thread when this process was forked, and that thread is not \
                     here to finish; make a new session in the child, or fork between calls"
                        .to_owned(),
                ));
            }
            if poll() {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        let user = User(&self.user);
        Ok(InUse { session: lock(&self.session), _user: user })
    }

    fn with<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&mut session::Session) -> Result<T> + Send) -> PyResult<T> {
        interruptible(py, |poll| f(&mut self.lock(poll)?.session))
    }

    /// Logits of the last `positions` tokens, or of all.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        // Before any work, and where a failure is an exception: the numpy crate would panic at its first use.
        py.import("numpy")?;
        let tokens = token_ids(tokens)?;
        let positions = positions.unwrap_or(tokens.len());
        let (logits, n_vocab) = interruptible(py, |poll| {
            let session = &mut self.lock(poll)?.session;
            let logits = session.forward(&tokens, positions, poll)?;
            Ok((logits, session.model().config().n_vocab))
        })?;
        PyArray1::from_vec(py, logits).reshape([positions, n_vocab])
    }
}

#[pymethods]
impl PySession {
    /// The cached ids.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |session| Ok(session.tokens().to_vec()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| Ok(session.tokens().len()))
    }

    /// Append `tokens`; logits [n_vocab] after the last of them.
    fn forward<'py>(&self, py: Python<'py>, tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let logits = self.logits(py, tokens, Some(1))?;
        let n_vocab = logits.shape()[1];
        logits.reshape([n_vocab])
    }

    /// Append `tokens`; logits [len(tokens), n_vocab] after each of them.
    fn forward_all_positions<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.logits(py, tokens, None)
    }

    /// Append `tokens`; logits [positions, n_vocab] after the last `positions` of them.
    fn forward_last<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Count,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.logits(py, tokens, Some(positions.0))
    }

    /// Append `tokens`; the ids with the highest logits after the last `positions` of them.
    fn choose_last(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, positions: Count) -> PyResult<Vec<Option<u32>>> {
        let tokens = token_ids(tokens)?;
        interruptible(py, |poll| self.lock(poll)?.session.choose(&tokens, positions.0, poll))
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
        // Before any work, and where a failure is an exception: the numpy crate would panic at its first use.
        py.import("numpy")?;
        let tokens = token_ids(tokens)?;
        let kept = kept.map(counted).transpose()?;
        if let Some(progress) = progress.as_ref().map(|progress| progress.bind(py)).filter(|it| !it.is_callable()) {
            return Err(PyTypeError::new_err(format!("progress must be callable, not {}", shown(progress))));
        }
        let state = |session: &mut session::Session| Ok((session.tokens().len(), session.model().config().n_layer));
        let (len, n_layer) = self.with(py, state)?;
        let prompt = prompt(attention, len + tokens.len(), n_layer, prompt_length, kept)?;
        let mut failed = None;
        let result = interruptible(py, |poll| {
            let session = &mut self.lock(poll)?.session;
            let mut report = |done: usize| match &progress {
                None => true,
                Some(progress) => Python::attach(|py| {
                    failed = progress.call1(py, (done, tokens.len())).err();
                    failed.is_none()
                }),
            };
            let logits = session.prefill(&tokens, positions.0, prompt.as_ref(), &mut report, poll)?;
            Ok((logits, session.model().config().n_vocab))
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let (logits, n_vocab) = result?;
        if let (Some(kept), Some(counts)) = (kept, prompt.and_then(|prompt| prompt.counts)) {
            kept.try_readwrite()?.as_array_mut().iter_mut().zip(counts.values()).for_each(|(sum, count)| *sum += count);
        }
        PyArray1::from_vec(py, logits).reshape([positions.0, n_vocab])
    }

    /// The shape of `kept` for `length` more tokens.
    fn kept_shape(&self, py: Python<'_>, length: Count) -> PyResult<(usize, usize, usize)> {
        self.with(py, |session| {
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
        self.with(py, |session| Ok(session.spans().iter().map(span).collect()))
    }

    /// Forget all ids from position `length` on; ValueError if the session is shorter.
    fn truncate(&self, py: Python<'_>, length: Count) -> PyResult<()> {
        self.with(py, |session| session.truncate(length.0))
    }

    /// Forget everything.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| {
            session.reset();
            Ok(())
        })
    }

    /// The state of now, for `restore`.
    fn snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        self.with(py, |session| Ok(PySnapshot(session.snapshot())))
    }

    /// Go back to `snapshot`; ValueError if it was taken on another model.
    fn restore(&self, py: Python<'_>, snapshot: &PySnapshot) -> PyResult<()> {
        let snapshot = &snapshot.0;
        self.with(py, |session| session.restore(snapshot))
    }

    /// A second session with the same contents; shared memory is copied only where it is written.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, |session| Ok(Self::from(session.fork())))
    }

    /// Write the session to a file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |session| saved::save(session, &path))
    }
}
