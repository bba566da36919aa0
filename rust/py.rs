//! The Python module: every method converts its arguments, calls the engine without the GIL, and converts the result.

mod convert;
mod drafting;
mod sampling;

use crate::config::Config;
use crate::error::Error;
use crate::gguf::GgufFile;
use crate::layout::ignored_tensors;
use crate::saved;
use crate::session::{self, Options};
use crate::text_stream;
use crate::tokenizer;
use convert::{metadata_dict, token_ids, ContextOverflow, Count, GgufError};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often a long call looks for signals such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(30);

/// How often a call looks whether another thread's call on the same session is done.
const LOCK_INTERVAL: Duration = Duration::from_micros(200);

/// Runs `compute` without the GIL; it polls for signals, and an exception raised by a handler stops it.
fn interruptible<T: Send>(
    py: Python<'_>,
    compute: impl FnOnce(&mut dyn FnMut() -> bool) -> crate::error::Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        let mut last = Instant::now();
        let mut poll = || {
            if last.elapsed() >= SIGNAL_INTERVAL {
                last = Instant::now();
                raised = Python::attach(|py| py.check_signals().err());
            }
            raised.is_some()
        };
        compute(&mut poll)
    });
    match raised {
        Some(err) => Err(err),
        None => Ok(result?),
    }
}

/// A lock that outlives panics: calls that fail leave the state as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same while signals are heard: whoever holds it may compute for long.
fn lock_polling<'a, T>(
    mutex: &'a Mutex<T>,
    poll: &mut dyn FnMut() -> bool,
) -> crate::error::Result<MutexGuard<'a, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if poll() => return Err(Error::Interrupted),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_INTERVAL),
        }
    }
}

/// Name, type, shape and bytes of a tensor.
type TensorRow<'a, 'py> = (&'a str, &'a str, Bound<'py, PyTuple>, usize);

#[pyclass(frozen, module = "specrs._specrs", name = "GgufFile")]
struct PyGgufFile(GgufFile);

#[pymethods]
impl PyGgufFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self(py.detach(|| GgufFile::open(&path))?))
    }

    #[getter]
    fn version(&self) -> u32 {
        self.0.version()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, self.0.metadata())
    }

    fn ignored_tensors(&self) -> PyResult<Vec<&str>> {
        Ok(ignored_tensors(&self.0, &Config::from_gguf(&self.0)?))
    }

    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorRow<'_, 'py>>> {
        let row = |tensor: &'_ crate::header::TensorInfo| PyTuple::new(py, tensor.shape.iter().rev());
        self.0.tensors().iter().map(|t| Ok((t.name.as_str(), t.dtype.name(), row(t)?, t.bytes()))).collect()
    }
}

#[pyclass(frozen, module = "specrs._specrs", name = "Model")]
struct PyModel {
    model: Arc<session::Model>,
    tokenizer: Arc<tokenizer::Tokenizer>,
    metadata: crate::metadata::Metadata,
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (path, *, n_ctx=None, threads=None, device="cpu"))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        n_ctx: Option<Count>,
        threads: Option<Count>,
        device: &str,
    ) -> PyResult<Self> {
        let options = Options { n_ctx: n_ctx.map(|n| n.0), threads: threads.map(|n| n.0), device };
        interruptible(py, |poll| {
            let file = GgufFile::open(&path)?;
            // What can be refused is refused before the weights are read.
            options.check(&file)?;
            let tokenizer = tokenizer::Tokenizer::from_gguf(&file)?;
            let model = session::Model::load(&file, &options, poll)?;
            Ok(Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), metadata: file.metadata().clone() })
        })
    }

    #[getter]
    fn n_ctx(&self) -> usize {
        self.model.n_ctx()
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.model.config().n_vocab
    }

    #[getter]
    fn threads(&self) -> usize {
        self.model.threads()
    }

    #[getter]
    fn device(&self) -> &str {
        self.model.device()
    }

    #[getter]
    fn kernels(&self) -> &str {
        self.model.engine().kernels()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, &self.metadata)
    }

    #[getter]
    fn weight_bytes(&self) -> usize {
        self.model.engine().weight_bytes()
    }

    #[getter]
    fn n_ctx_train(&self) -> usize {
        self.model.config().n_ctx_train
    }

    #[getter]
    fn passes(&self) -> (u64, u64) {
        self.model.engine().passes()
    }

    #[getter]
    fn cache_bytes_per_token(&self) -> usize {
        self.model.engine().cache_bytes_per_token()
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer(self.tokenizer.clone())
    }

    fn session(&self) -> PySession {
        PySession::from(session::Session::new(self.model.clone()))
    }

    fn load_session(&self, py: Python<'_>, path: PathBuf) -> PyResult<PySession> {
        Ok(PySession::from(py.detach(|| saved::load(self.model.clone(), &path))?))
    }
}

#[pyclass(frozen, module = "specrs._specrs", name = "Snapshot")]
struct PySnapshot(session::Snapshot);

#[pymethods]
impl PySnapshot {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Calls from several threads wait for each other on the lock, without the GIL.
#[pyclass(frozen, module = "specrs._specrs", name = "Session")]
struct PySession(Mutex<session::Session>);

impl From<session::Session> for PySession {
    fn from(session: session::Session) -> Self {
        Self(Mutex::new(session))
    }
}

impl PySession {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut session::Session) -> crate::error::Result<T> + Send,
    ) -> PyResult<T> {
        interruptible(py, |poll| f(&mut *lock_polling(&self.0, poll)?))
    }

    /// Logits of the last `positions` tokens, or of all.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let tokens = token_ids(tokens)?;
        let positions = positions.unwrap_or(tokens.len());
        let (logits, n_vocab) = interruptible(py, |poll| {
            let mut session = lock_polling(&self.0, poll)?;
            let logits = session.forward(&tokens, positions, poll)?;
            Ok((logits, session.model().config().n_vocab))
        })?;
        PyArray1::from_vec(py, logits).reshape([positions, n_vocab])
    }
}

#[pymethods]
impl PySession {
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |session| Ok(session.tokens().to_vec()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| Ok(session.tokens().len()))
    }

    fn forward<'py>(&self, py: Python<'py>, tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let logits = self.logits(py, tokens, Some(1))?;
        let n_vocab = logits.shape()[1];
        logits.reshape([n_vocab])
    }

    fn forward_all_positions<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.logits(py, tokens, None)
    }

    fn forward_last<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        positions: Count,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.logits(py, tokens, Some(positions.0))
    }

    fn truncate(&self, py: Python<'_>, length: Count) -> PyResult<()> {
        self.with(py, |session| session.truncate(length.0))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| {
            session.reset();
            Ok(())
        })
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        self.with(py, |session| Ok(PySnapshot(session.snapshot())))
    }

    fn restore(&self, py: Python<'_>, snapshot: &PySnapshot) -> PyResult<()> {
        let snapshot = &snapshot.0;
        self.with(py, |session| session.restore(snapshot))
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, |session| Ok(Self::from(session.fork())))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |session| saved::save(session, &path))
    }
}

#[pyclass(frozen, module = "specrs._specrs", name = "Tokenizer")]
struct PyTokenizer(Arc<tokenizer::Tokenizer>);

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
struct PyTextStream(Mutex<text_stream::TextStream>);

#[pymethods]
impl PyTextStream {
    fn push(&self, token: Count) -> PyResult<String> {
        Ok(lock(&self.0).push(token.id())?)
    }

    fn finish(&self) -> String {
        lock(&self.0).finish()
    }
}

#[pymodule]
mod _specrs {
    #[pymodule_export]
    use super::drafting::{PyNgramIndex, PySuffixIndex, PySuffixTree};
    #[pymodule_export]
    use super::sampling::PySampler;
    #[pymodule_export]
    use super::{ContextOverflow, GgufError, PyGgufFile, PyModel, PySession, PySnapshot, PyTextStream, PyTokenizer};
}
