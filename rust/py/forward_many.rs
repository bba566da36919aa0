//! One forward of several sessions.

use super::convert::{shown, token_ids, Count};
use super::interruptible;
use super::locked::{Holder, Locked};
use super::sessions::PySession;
use crate::forward::task::{Input, Outcome, Wanted};
use crate::model::Model;
use crate::session::Session;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyTuple};
use std::sync::Arc;

/// What one session is to do.
struct Request<'a> {
    session: &'a Locked,
    holder: Holder,
    tokens: Vec<u32>,
    wanted: Wanted,
}

/// Appends the tokens of every `(session, tokens, positions)` in `inputs`; what is wanted of each.
pub fn forward_many<'py>(
    py: Python<'py>,
    model: &Arc<Model>,
    inputs: &Bound<'py, PyAny>,
    choose: Choose,
) -> PyResult<Bound<'py, PyList>> {
    // Before any work, and where a failure is an exception: the numpy crate would panic at its first use.
    py.import("numpy")?;
    let inputs =
        inputs.try_iter()?.enumerate().map(|(index, input)| parts(&input?).map_err(|error| at(py, index, error)));
    let inputs = inputs.collect::<PyResult<Vec<_>>>()?;
    let requests = inputs.iter().zip(choose.of_each(inputs.len())?).enumerate();
    let requests = requests
        .map(|(index, (parts, choose))| Request::new(parts, choose, model).map_err(|error| at(py, index, error)));
    let requests = requests.collect::<PyResult<Vec<_>>>()?;
    // All calls wait for their sessions in one order, so that no two wait for each other.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| std::ptr::from_ref(requests[index].session));
    let same = |pair: &&[usize]| std::ptr::eq(requests[pair[0]].session, requests[pair[1]].session);
    if let Some(same) = order.windows(2).find(same) {
        return Err(PyValueError::new_err(format!(
            "inputs[{}] and inputs[{}] are the same session; join their tokens, or fork the session",
            same[0], same[1]
        )));
    }
    let outcomes = interruptible(py, |poll| {
        let mut in_use = Vec::with_capacity(order.len());
        for index in order {
            let Request { session, holder, .. } = &requests[index];
            in_use.push((index, session.lock_to_change(*holder, poll).map_err(|error| error.at(index))?));
        }
        in_use.sort_by_key(|(index, _)| *index);
        let inputs = in_use.iter_mut().zip(&requests).map(|((_, in_use), Request { tokens, wanted, .. })| Input {
            sequence: &mut *in_use.session,
            tokens,
            wanted: *wanted,
            attention: None,
        });
        Session::forward_many(&mut inputs.collect::<Vec<_>>(), poll)
    })?;

    let n_vocab = model.config().n_vocab;
    let results = outcomes.into_iter().zip(&requests).map(|(outcome, Request { wanted, .. })| match outcome {
        Outcome::Choices(tokens) => tokens.into_pyobject(py),
        Outcome::Logits(logits) => {
            Ok(PyArray1::from_vec(py, logits).reshape([wanted.positions(), n_vocab])?.into_any())
        }
    });
    PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)
}

/// Session, tokens and positions of an input.
fn parts<'py>(input: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 3]> {
    let parts = input.cast::<PyTuple>().ok().and_then(|parts| parts.iter().collect::<Vec<_>>().try_into().ok());
    let refused = || PyTypeError::new_err(format!("must be (session, token ids, positions), not {}", shown(input)));
    parts.ok_or_else(refused)
}

impl<'a> Request<'a> {
    /// What session, tokens and positions ask for.
    fn new(
        [session, tokens, positions]: &'a [Bound<'_, PyAny>; 3],
        choose: bool,
        model: &Arc<Model>,
    ) -> PyResult<Self> {
        let (session, holder) = PySession::or_lease(session)?;
        if !Arc::ptr_eq(session.model(), model) {
            return Err(PyValueError::new_err("the session is of another model; call forward_many of that one"));
        }
        let (tokens, Count(positions)) = (token_ids(tokens)?, Count::named(positions, "positions")?);
        let wanted = if choose { Wanted::Choices(positions) } else { Wanted::Logits(positions) };
        Ok(Self { session, holder, tokens, wanted })
    }
}

/// Whether choices are wanted, or logits.
pub enum Choose {
    /// Of all inputs.
    All(bool),
    /// Of each.
    Each(Vec<bool>),
}

impl Choose {
    /// For each of `count` inputs.
    fn of_each(self, count: usize) -> PyResult<Vec<bool>> {
        match self {
            Self::All(all) => Ok(vec![all; count]),
            Self::Each(each) if each.len() == count => Ok(each),
            Self::Each(each) => Err(PyValueError::new_err(format!(
                "choose has {} values for {count} inputs; give one for each, or True or False for all",
                each.len()
            ))),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Choose {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(all) = object.cast::<PyBool>() {
            return Ok(Self::All(all.is_true()));
        }
        let refused = |what: &str, it: &Bound<'_, PyAny>| {
            PyTypeError::new_err(format!("{what} must be True or False, not {}", shown(it)))
        };
        let each = object.try_iter().map_err(|_| refused("choose, or its value for each input,", &object))?;
        let each = each.enumerate().map(|(i, one)| {
            let one = one?;
            one.extract().map_err(|_| refused(&format!("choose[{i}]"), &one))
        });
        each.collect::<PyResult<_>>().map(Self::Each)
    }
}

/// An error of the input at `index`, by name; what the caller's own objects raised stays as it is.
fn at(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
    let kind = error.get_type(py);
    match kind.is(py.get_type::<PyTypeError>()) || kind.is(py.get_type::<PyValueError>()) {
        true => PyErr::from_type(kind, format!("inputs[{index}]: {}", error.value(py))),
        false => error,
    }
}
