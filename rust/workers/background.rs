//! Work that cannot look for interruptions itself.

use crate::error::{Error, Result};
use std::panic::resume_unwind;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;

/// How long `poll` is not asked.
const INTERVAL: Duration = Duration::from_millis(10);

/// Does `work` on a thread of its own and asks `poll` meanwhile; if that says to stop, the thread ends by itself later.
///
/// # Errors
/// [`Error::Interrupted`] if `poll` said so, and those of `work`.
pub fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Clone + Send + 'static,
    poll: &mut dyn FnMut() -> bool,
) -> Result<T> {
    let (sender, receiver) = channel();
    let own = work.clone();
    let thread = match Builder::new().spawn(move || _ = sender.send(own())) {
        Ok(thread) => thread,
        // The system has no thread for it.
        Err(_) => return work(),
    };
    loop {
        match receiver.recv_timeout(INTERVAL) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if poll() => return Err(Error::Interrupted),
            Err(RecvTimeoutError::Timeout) => (),
            // It ended without a result.
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("the thread sends before it ends"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Work that ends once its sender is dropped or sends, and the sender.
    fn waiting() -> (impl FnOnce() -> Result<u32> + Clone + Send + 'static, std::sync::mpsc::Sender<u32>) {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        (move || Ok(receiver.lock().unwrap().recv().unwrap_or(0)), sender)
    }

    #[test]
    fn polls_until_the_result_is_there() {
        let (work, sender) = waiting();
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            if polls == 3 {
                sender.send(7).unwrap();
            }
            false
        };
        assert_eq!(in_background(work, &mut poll).unwrap(), 7);
        assert!(polls >= 3);
    }

    #[test]
    fn an_interruption_does_not_wait_for_the_work() {
        let (work, _sender) = waiting();
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            polls == 2
        };
        assert!(matches!(in_background(work, &mut poll), Err(Error::Interrupted)));
        assert_eq!(polls, 2);
    }

    #[test]
    fn errors_and_panics_come_through() {
        let failing = || -> Result<u32> { Err(Error::Gguf("no".into())) };
        assert!(matches!(in_background(failing, &mut || false), Err(Error::Gguf(_))));
        let panicking = || -> Result<u32> { panic!("expected") };
        let caught = std::panic::catch_unwind(|| in_background(panicking, &mut || false));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"expected"));
    }
}
