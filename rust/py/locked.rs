//! A session behind its lock: calls wait for each other, and only the holder of a lease changes what is leased.

use super::attention::{counted, writable, PrefillAttention};
use super::convert::{shown, token_ids, Count};
use super::{interruptible, lock};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::session::Session;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How often a call looks whether another thread's call on the same session is done.
const LOCK_INTERVAL: Duration = Duration::from_micros(200);
/// No process.
const NOBODY: u32 = 0;

/// On whose behalf a call changes a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    /// Whoever has the session in hand, without a lease.
    pub const ANYONE: Self = Self(0);

    /// The holder of a new lease.
    fn of_new_lease() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A session that several threads and a lease may share.
pub struct Locked {
    /// The process of the call that uses the session. After a fork in the middle of another thread's call the child
    /// finds its parent here, and not the thread that would end the call.
    user: AtomicU32,
    /// The [`Holder`] that may change the session. A lease is given under the lock, so no call of anyone else is in
    /// the middle of a change then.
    holder: AtomicU64,
    model: Arc<Model>,
    session: Mutex<Session>,
}

/// A session in use by this call.
pub struct InUse<'a> {
    /// The session.
    pub session: MutexGuard<'a, Session>,
    /// Dropped after the lock.
    _user: User<'a>,
}

struct User<'a>(&'a AtomicU32);

thread_local! {
    /// Whether this thread runs a report of progress in the middle of a call that uses a session.
    static REPORTING: Cell<bool> = const { Cell::new(false) };
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

/// How to evaluate a piece of a prompt.
pub struct Prefill<'a, 'py> {
    /// What it looks at, as Python says it.
    pub attention: Option<&'a Bound<'py, PyAny>>,
    /// How many of the last positions need logits.
    pub positions: Count,
    /// Called with the tokens done and all of them.
    pub progress: Option<Py<PyAny>>,
    /// Positions when the prompt is complete.
    pub prompt_length: Option<Count>,
    /// An array to which the queries that counted are added.
    pub kept: Option<&'a Bound<'py, PyAny>>,
}

impl From<Session> for Locked {
    fn from(session: Session) -> Self {
        Self {
            user: AtomicU32::new(NOBODY),
            holder: AtomicU64::new(Holder::ANYONE.0),
            model: session.model().clone(),
            session: Mutex::new(session),
        }
    }
}

impl Locked {
    /// The model it runs on.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

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
            // The call that reports holds a session: one that waited here could wait for itself.
            if REPORTING.get() {
                return Err(Error::InUse(
                    "the session is in use, and a report of progress cannot wait for it; use it after the call that reports",
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

    /// As [`Locked::lock`], for a call that changes the session on behalf of `holder`.
    pub fn lock_to_change(&self, holder: Holder, poll: &mut dyn FnMut() -> bool) -> Result<InUse<'_>> {
        // Once before the wait, which may be long, and once when nobody can lease the session any more.
        self.check(holder)?;
        let session = self.lock(poll)?;
        self.check(holder)?;
        Ok(session)
    }

    fn check(&self, holder: Holder) -> Result<()> {
        match Holder(self.holder.load(Ordering::Acquire)) {
            allowed if allowed == holder => Ok(()),
            _ if holder == Holder::ANYONE => Err(Error::InUse(
                "the session is in use by another generation; finish or close that one, or work on session.fork()",
            )),
            _ => Err(Error::InUse("the lease was released; take a new one with session.lease()")),
        }
    }

    /// Calls `f` with the session, which it only reads.
    pub fn read<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&Session) -> Result<T> + Send) -> PyResult<T> {
        interruptible(py, |poll| f(&self.lock(poll)?.session))
    }

    /// Calls `f` with the session and with what to poll while it computes.
    pub fn change<T: Send>(
        &self,
        py: Python<'_>,
        holder: Holder,
        f: impl FnOnce(&mut Session, &mut dyn FnMut() -> bool) -> Result<T> + Send,
    ) -> PyResult<T> {
        interruptible(py, |poll| f(&mut self.lock_to_change(holder, poll)?.session, poll))
    }

    /// Lets nobody but the new holder change the session, until `release`.
    pub fn lease(&self, py: Python<'_>) -> PyResult<Holder> {
        self.change(py, Holder::ANYONE, |_, _| {
            let holder = Holder::of_new_lease();
            self.holder.store(holder.0, Ordering::Release);
            Ok(holder)
        })
    }

    /// Ends the lease of `holder`, if it has not ended yet.
    pub fn release(&self, holder: Holder) {
        // What fails was released before.
        let _ = self.holder.compare_exchange(holder.0, Holder::ANYONE.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Appends `tokens`; logits of the last `positions` of them, or of all.
    pub fn logits<'py>(
        &self,
        py: Python<'py>,
        holder: Holder,
        tokens: &Bound<'py, PyAny>,
        positions: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        // Before any work, and where a failure is an exception: the numpy crate would panic at its first use.
        py.import("numpy")?;
        let tokens = token_ids(tokens)?;
        let positions = positions.unwrap_or(tokens.len());
        let logits = self.change(py, holder, |session, poll| session.forward(&tokens, positions, poll))?;
        PyArray1::from_vec(py, logits).reshape([positions, self.model.config().n_vocab])
    }

    /// Appends `tokens`; the ids with the highest logits after the last `positions` of them.
    pub fn choose(
        &self,
        py: Python<'_>,
        holder: Holder,
        tokens: &Bound<'_, PyAny>,
        positions: usize,
    ) -> PyResult<Vec<Option<u32>>> {
        let tokens = token_ids(tokens)?;
        self.change(py, holder, |session, poll| session.choose(&tokens, positions, poll))
    }

    /// Appends a piece of a prompt; logits of its last positions.
    pub fn prefill<'py>(
        &self,
        py: Python<'py>,
        holder: Holder,
        tokens: &Bound<'py, PyAny>,
        Prefill { attention, positions, progress, prompt_length, kept }: Prefill<'_, 'py>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        // Before any work, and where a failure is an exception: the numpy crate would panic at its first use.
        py.import("numpy")?;
        let tokens = token_ids(tokens)?;
        let kept = kept.map(counted).transpose()?;
        if let Some(progress) = progress.as_ref().map(|progress| progress.bind(py)).filter(|it| !it.is_callable()) {
            return Err(PyTypeError::new_err(format!("progress must be callable, not {}", shown(progress))));
        }
        let attention = PrefillAttention::new(attention, prompt_length, kept)?;
        let mut kept = kept.map(writable).transpose()?;
        let mut failed = None;
        let result = self.change(py, holder, |session, poll| {
            let attention = attention.until(session.tokens().len() + tokens.len(), self.model.config().n_layer)?;
            let mut report = |done: usize| match &progress {
                None => true,
                Some(progress) => Python::attach(|py| {
                    let outer = REPORTING.replace(true);
                    failed = progress.call1(py, (done, tokens.len())).err();
                    REPORTING.set(outer);
                    failed.is_none()
                }),
            };
            let logits = session.prefill(&tokens, positions.0, attention.as_ref(), &mut report, poll)?;
            Ok((logits, attention.and_then(|attention| attention.counts)))
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let (logits, counts) = result?;
        if let (Some(kept), Some(counts)) = (&mut kept, counts) {
            kept.as_array_mut().iter_mut().zip(counts.values()).for_each(|(sum, count)| *sum += count);
        }
        PyArray1::from_vec(py, logits).reshape([positions.0, self.model.config().n_vocab])
    }
}
