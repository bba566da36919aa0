//! Conversions between Python and the engine: errors, token ids, counts and metadata.

use crate::error::Error;
use crate::gguf::metadata::{Array, Metadata, Value};
use numpy::PyReadonlyArray1;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};

create_exception!(specrs._specrs, GgufError, PyValueError, "The model file is malformed, or not supported.");
create_exception!(specrs._specrs, ContextOverflow, PyValueError, "More positions are needed than the context holds.");

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        exception(&error, error.to_string())
    }
}

/// An exception of the kind that `error` is.
fn exception(error: &Error, message: String) -> PyErr {
    match error {
        Error::Io { path, source } => {
            // With an errno Python picks the subclass, such as FileNotFoundError.
            match source.raw_os_error() {
                Some(errno) => PyOSError::new_err((errno, system_message(source), path.to_string_lossy().into_owned())),
                None => PyOSError::new_err(message),
            }
        }
        Error::Gguf(_) => GgufError::new_err(message),
        Error::ContextOverflow { needed, n_ctx, .. } => Python::attach(|py| {
            let err = ContextOverflow::new_err(message);
            let value = err.value(py);
            let set = value.setattr("needed", *needed).and_then(|()| value.setattr("n_ctx", *n_ctx));
            set.err().unwrap_or(err)
        }),
        Error::Memory { .. } => PyMemoryError::new_err(message),
        Error::Input { error, .. } => exception(error, message),
        Error::Argument(_) => PyValueError::new_err(message),
        Error::InUse(_) => PyRuntimeError::new_err(message),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
    }
}

/// The text of an I/O error without the errno that Rust appends.
fn system_message(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// How errors show what they were given: its `repr`, the beginning of a long one.
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    const MOST: usize = 100;
    let text = object.repr().map_or_else(|_| "?".to_owned(), |repr| repr.to_string());
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// A number of things: an integer, not a bool, that is not negative.
pub struct Count(pub usize);

impl Count {
    /// The argument `name`, which errors name.
    pub fn named(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let index = integer(object)
            .map_err(|_| PyTypeError::new_err(format!("{name} must be an integer, not {}", shown(object))))?;
        index.extract().map(Self).map_err(|_| {
            let largest = usize::MAX;
            PyValueError::new_err(format!("{name} is out of range: {index}; it must be from 0 to {largest}"))
        })
    }

    /// The number as a token id; one too large for any vocabulary stays so.
    pub fn id(&self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Self::named(&object, "the number")
    }
}

/// The value of an integer of any type, numpy's included; a bool is a mistake, not a number.
fn integer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err("a bool"));
    }
    object.call_method0("__index__")
}

/// Token ids from a numpy array of integers or a sequence of ints.
pub fn token_ids(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if !(tokens.is_instance_of::<PyList>() || tokens.is_instance_of::<PyTuple>()) {
        // Imported here, where a failure is an exception: the first use in the numpy crate would panic.
        tokens.py().import("numpy")?;
        if let Ok(array) = tokens.extract::<PyReadonlyArray1<'_, u32>>() {
            return Ok(array.as_array().to_vec());
        }
    }
    let text = tokens.is_instance_of::<PyString>();
    let bytes = tokens.is_instance_of::<PyBytes>() || tokens.is_instance_of::<PyByteArray>();
    if text || bytes || !tokens.hasattr("__getitem__")? || tokens.hasattr("keys")? {
        let kind = tokens.get_type().name()?;
        let hint = if text { "; tokenize it first" } else { "" };
        return Err(PyTypeError::new_err(format!("token ids must be a sequence of integers, not {kind}{hint}")));
    }
    tokens.try_iter()?.enumerate().map(|(i, item)| token_id(&item?, i)).collect()
}

/// The id `item` at index `i`.
fn token_id(item: &Bound<'_, PyAny>, i: usize) -> PyResult<u32> {
    let index = integer(item).map_err(|_| {
        PyTypeError::new_err(format!("token ids must be integers, but the one at index {i} is {}", shown(item)))
    })?;
    index
        .extract()
        .map_err(|_| PyValueError::new_err(format!("token id {index} at index {i} is outside any vocabulary")))
}

/// All metadata as a dict.
pub fn metadata_dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in metadata.iter() {
        dict.set_item(key, metadata_value(py, value)?)?;
    }
    Ok(dict)
}

fn metadata_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::U8(v) => v.into_pyobject(py)?.into_any(),
        Value::I8(v) => v.into_pyobject(py)?.into_any(),
        Value::U16(v) => v.into_pyobject(py)?.into_any(),
        Value::I16(v) => v.into_pyobject(py)?.into_any(),
        Value::U32(v) => v.into_pyobject(py)?.into_any(),
        Value::I32(v) => v.into_pyobject(py)?.into_any(),
        Value::U64(v) => v.into_pyobject(py)?.into_any(),
        Value::I64(v) => v.into_pyobject(py)?.into_any(),
        Value::F32(v) => v.into_pyobject(py)?.into_any(),
        Value::F64(v) => v.into_pyobject(py)?.into_any(),
        Value::Bool(v) => v.into_pyobject(py)?.to_owned().into_any(),
        Value::String(v) => v.into_pyobject(py)?.into_any(),
        Value::Array(v) => metadata_array(py, v)?,
    })
}

fn metadata_array<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    Ok(match array {
        // `Vec<u8>` would become bytes; a list like the other integer types is what is meant.
        Array::U8(v) => v.iter().map(|&v| u32::from(v)).collect::<Vec<_>>().into_pyobject(py)?,
        Array::I8(v) => v.into_pyobject(py)?,
        Array::U16(v) => v.into_pyobject(py)?,
        Array::I16(v) => v.into_pyobject(py)?,
        Array::U32(v) => v.into_pyobject(py)?,
        Array::I32(v) => v.into_pyobject(py)?,
        Array::U64(v) => v.into_pyobject(py)?,
        Array::I64(v) => v.into_pyobject(py)?,
        Array::F32(v) => v.into_pyobject(py)?,
        Array::F64(v) => v.into_pyobject(py)?,
        Array::Bool(v) => v.into_pyobject(py)?,
        Array::String(v) => v.iter().collect::<Vec<_>>().into_pyobject(py)?,
        Array::Array(v) => v.iter().map(|v| metadata_array(py, v)).collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?,
    })
}
