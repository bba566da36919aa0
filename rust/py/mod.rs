//! The Python module: every method converts its arguments, calls the engine without the GIL, and converts the result.

mod convert;
mod attention;
mod drafting;
mod sampling;
mod text;
mod locked;
mod lease;
mod sessions;
mod forward_many;

use crate::arch::describe;
use crate::cpu::{CpuModel, MemoryNeeds, Passes};
use crate::error::Result;
use crate::gguf::file::GgufFile;
use crate::kernels::table::Kernels;
use crate::model::{self, Checked, Options};
use crate::saved;
use crate::session;
use crate::tokenizer::codec;
use crate::workers::background::in_background;
use attention::{pattern, PyPattern};
use convert::{metadata_dict, ContextOverflow, Count, GgufError};
use forward_many::{forward_many, Choose};
use lease::PyLease;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use sessions::{PySession, PySnapshot};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use text::PyTokenizer;

/// How often a long call looks for signals such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(30);

thread_local! {
    /// Whether this thread runs Python's signal handlers in the middle of a call of ours.
    static HANDLING_SIGNALS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `compute` without the GIL; it polls for signals, and an exception raised by a handler stops it.
///
/// A handler runs while the interrupted call holds its session and its cores, so a call made by the handler is refused
/// instead of waiting for ever.
fn interruptible<T: Send>(
    py: Python<'_>,
    compute: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T> + Send,
) -> PyResult<T> {
    if HANDLING_SIGNALS.get() {
        return Err(PyRuntimeError::new_err(
            "a signal handler cannot use specrs while it interrupts a call; set a flag and act on it after the call",
        ));
    }
    let mut raised = None;
    let result = py.detach(|| {
        let mut last = Instant::now();
        let mut poll = || {
            if last.elapsed() >= SIGNAL_INTERVAL {
                last = Instant::now();
                HANDLING_SIGNALS.set(true);
                // Nothing to attach to means that the interpreter is shutting down; the call goes on undisturbed.
                raised = Python::try_attach(|py| py.check_signals().err()).flatten();
                HANDLING_SIGNALS.set(false);
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

/// Name, type, shape and bytes of a tensor.
type TensorRow<'a, 'py> = (&'a str, &'a str, Bound<'py, PyTuple>, usize);

/// The header of a GGUF file (all parts of a split one); nothing is loaded.
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

    /// Bytes of all parts.
    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, self.0.metadata())
    }

    /// Names of the tensors that a model does not use; GgufError if the file holds none that can be run.
    fn ignored_tensors(&self) -> PyResult<Vec<&str>> {
        Ok(describe(&self.0)?.tensors.ignored())
    }

    /// What `Model` would be on device "cpu", from the header alone; raises what it would raise.
    #[pyo3(signature = (*, n_ctx=None, threads=None))]
    fn plan(
        &self,
        py: Python<'_>,
        n_ctx: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyPlan> {
        let (n_ctx, threads) = (count(n_ctx, "n_ctx")?, count(threads, "threads")?);
        Ok(py.detach(|| -> Result<PyPlan> {
            let options = Options { n_ctx, threads, device: "cpu" };
            let Checked { description, n_ctx, threads, mut notes, .. } = options.check(&self.0)?;
            notes.extend_from_slice(codec::Tokenizer::from_gguf(&self.0)?.notes());
            let MemoryNeeds { weight_bytes, cache_bytes_per_token } = CpuModel::memory(&description);
            let kernels = Kernels::detect()?.name();
            Ok(PyPlan { n_ctx, threads, kernels, weight_bytes, cache_bytes_per_token, notes })
        })?)
    }

    /// Name, type, shape (rows first) and bytes of every tensor, in file order.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorRow<'_, 'py>>> {
        let row = |tensor: &'_ crate::gguf::header::TensorInfo| PyTuple::new(py, tensor.shape.iter().rev());
        self.0.tensors().iter().map(|t| Ok((t.name.as_str(), t.dtype.name(), row(t)?, t.bytes()))).collect()
    }
}

/// What a model will be once it is loaded.
#[pyclass(frozen, get_all, module = "specrs._specrs", name = "Plan")]
struct PyPlan {
    n_ctx: usize,
    threads: usize,
    kernels: &'static str,
    weight_bytes: usize,
    cache_bytes_per_token: usize,
    /// What the file says and cannot be followed, a sentence each.
    notes: Vec<String>,
}

/// The argument called `name`, a count.
fn count(value: Option<&Bound<'_, PyAny>>, name: &'static str) -> PyResult<Option<usize>> {
    Ok(value.map(|value| Count::named(value, name)).transpose()?.map(|count| count.0))
}

/// A loaded model; immutable, shared by its sessions and safe to use from several threads.
#[pyclass(frozen, module = "specrs._specrs", name = "Model")]
struct PyModel {
    model: Arc<model::Model>,
    tokenizer: Arc<codec::Tokenizer>,
    metadata: crate::gguf::metadata::Metadata,
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (path, *, n_ctx=None, threads=None, device="cpu"))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        n_ctx: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
        device: &str,
    ) -> PyResult<Self> {
        let (n_ctx, threads) = (count(n_ctx, "n_ctx")?, count(threads, "threads")?);
        let options = Options { n_ctx, threads, device };
        interruptible(py, |poll| {
            let file = Arc::new(GgufFile::open(&path)?);
            // What can be refused is refused before the weights are read.
            let checked = options.check(&file)?;
            // A vocabulary of 262,144 tokens takes a quarter of a second.
            let reading = file.clone();
            let tokenizer = in_background(move || codec::Tokenizer::from_gguf(&reading), poll)?;
            let model = model::Model::load(checked, poll)?;
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

    /// The chosen kernel set, such as "avx512-vnni"; "candle" on the candle engine.
    #[getter]
    fn kernels(&self) -> &str {
        self.model.engine().kernels()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, &self.metadata)
    }

    /// Resident bytes of the weights.
    #[getter]
    fn weight_bytes(&self) -> usize {
        self.model.engine().weight_bytes()
    }

    /// Positions the model was trained for: the largest `n_ctx`.
    #[getter]
    fn n_ctx_train(&self) -> usize {
        self.model.config().n_ctx_train
    }

    /// Passes over the weights so far, and how many of them ran on fewer threads than `threads`.
    #[getter]
    fn passes(&self) -> (u64, u64) {
        let Passes { all, short } = self.model.engine().passes();
        (all, short)
    }

    /// How many rows went to each expert of each layer so far; None without experts.
    #[getter]
    fn expert_rows<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArray2<u64>>>> {
        let config = self.model.config();
        let rows = || PyArray1::from_vec(py, self.model.engine().expert_rows());
        config.experts.map(|experts| rows().reshape([config.n_layer, experts.count])).transpose()
    }

    /// How many positions a query sees in each layer; None is all.
    #[getter]
    fn windows(&self) -> Vec<Option<usize>> {
        self.model.config().blocks.iter().map(|block| block.window).collect()
    }

    #[getter]
    fn cache_bytes_per_token(&self) -> usize {
        self.model.engine().cache_bytes_per_token()
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer(self.tokenizer.clone())
    }

    /// Fails unless this device can run what `attention=` asks for.
    fn check_attention(&self, attention: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        match attention.map(pattern).transpose()?.flatten() {
            Some(pattern) => Ok(self.model.engine().check_pattern(&pattern)?),
            None => Ok(()),
        }
    }

    fn session(&self) -> PySession {
        PySession::from(session::Session::new(self.model.clone()))
    }

    /// Append the tokens of every `(session, tokens, positions)`; what is wanted of each.
    #[pyo3(signature = (inputs, *, choose=Choose::All(false)))]
    fn forward_many<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        choose: Choose,
    ) -> PyResult<Bound<'py, PyList>> {
        forward_many(py, &self.model, inputs, choose)
    }

    /// Read a session written by `Session.save`; ValueError if it is damaged or of another model.
    fn load_session(&self, py: Python<'_>, path: PathBuf) -> PyResult<PySession> {
        Ok(PySession::from(py.detach(|| saved::load(self.model.clone(), &path))?))
    }
}

#[pymodule]
mod _specrs {
    #[pymodule_export]
    use super::drafting::{PyNgramIndex, PySuffixIndex, PySuffixTree};
    #[pymodule_export]
    use super::sampling::PySampler;
    #[pymodule_export]
    use super::text::{PyTextStream, PyTokenizer};
    #[pymodule_export]
    use super::{ContextOverflow, GgufError, PyGgufFile, PyLease, PyModel, PyPattern, PyPlan, PySession, PySnapshot};
}
