//! Where the waiters of one process for one name stand in line, so that only the first one asks
//! the database, and hears at once when the name is released in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::model::Name;

/// The lines of all names that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    by_name: Mutex<HashMap<Name, Weak<Line>>>,
}

#[derive(Debug)]
pub(crate) struct Line {
    first: Semaphore,
    freed: Notify,
}

/// A place in a line; leaving is dropping it.
#[derive(Debug)]
pub(crate) struct Place {
    lines: Arc<Lines>,
    name: Name,
    line: Option<Arc<Line>>,
}

impl Lines {
    pub(crate) fn join(self: &Arc<Self>, name: &Name) -> Place {
        let mut lines = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lines.get(name).and_then(Weak::upgrade);
        let line = known.unwrap_or_else(|| {
            let line = Arc::new(Line {
                first: Semaphore::new(1),
                freed: Notify::new(),
            });
            lines.insert(name.clone(), Arc::downgrade(&line));
            line
        });
        Place {
            lines: Arc::clone(self),
            name: name.clone(),
            line: Some(line),
        }
    }

    /// The name was released by this process: the first in line need not sleep on.
    pub(crate) fn freed(&self, name: &Name) {
        let lines = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(name).and_then(Weak::upgrade) {
            line.freed.notify_one();
        }
    }
}

impl Place {
    /// Resolves when everybody before has left. First come, first served.
    pub(crate) async fn first(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed: None is "no line", which only a dropped place has.
        self.line.as_ref()?.first.acquire().await.ok()
    }

    /// Resolves when the name was released by this process since the last call.
    pub(crate) async fn freed(&self) {
        if let Some(line) = &self.line {
            line.freed.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self
            .lines
            .by_name
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last = self
            .line
            .take()
            .is_some_and(|line| Arc::into_inner(line).is_some());
        if last {
            lines.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn who_came_first_is_first_until_it_leaves() {
        let lines = Arc::new(Lines::default());
        let name = Name::new("a").unwrap();
        let (one, two) = (lines.join(&name), lines.join(&name));
        let mut cx = Context::from_waker(Waker::noop());
        let first = {
            let mut turn = pin!(one.first());
            match turn.as_mut().poll(&mut cx) {
                Poll::Ready(first) => first.expect("a line"),
                Poll::Pending => panic!("nobody is before"),
            }
        };
        let mut turn = pin!(two.first());
        assert!(turn.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(turn.as_mut().poll(&mut cx).is_ready());
    }
}
