//! Reads of one record at the same time: callers that ask while a read is under way share the next one.
//!
//! A caller reads for the others, and may not be polled any more: after a short time another one reads instead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::model::{Error, RecordKey};
use crate::store::record::RecordRow;

/// How long a caller waits for the read of another one.
const PATIENCE: Duration = Duration::from_millis(100);

pub(crate) type Row = Result<Option<RecordRow>, Error>;

/// The records that are read now.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<HashMap<RecordKey, Arc<watch::Sender<State>>>>);

/// The reads of one record.
#[derive(Debug, Default)]
struct State {
    callers: usize,
    /// The number of the read that is under way.
    reading: Option<u64>,
    /// How many reads have begun.
    begun: u64,
    /// The last read that has ended, by its number.
    last: Option<(u64, Row)>,
}

impl Reads {
    /// Returns the record as read after this call began. Dropping the future lets another caller read.
    pub(crate) async fn read(&self, key: &RecordKey, read: impl Future<Output = Row>) -> Row {
        let caller = self.enter(key);
        let mut heard = caller.state.subscribe();
        let mut is_late = false;
        loop {
            if let Some(reading) = caller.begin(is_late) {
                let row = read.await;
                return reading.found(row);
            }
            let is_over =
                |state: &State| state.reading.is_none() || state.since(caller.since).is_some();
            let found = timeout(PATIENCE, heard.wait_for(is_over)).await;
            is_late = found.is_err();
            // The sender is in `caller`.
            if let Ok(Ok(state)) = found
                && let Some(row) = state.since(caller.since)
            {
                return row.clone();
            }
        }
    }

    fn enter(&self, key: &RecordKey) -> Caller<'_> {
        let mut keys = self.keys();
        let state = keys.entry(key.clone()).or_default();
        let mut since = 0;
        state.send_if_modified(|state| {
            state.callers += 1;
            since = state.begun;
            false
        });
        Caller {
            reads: self,
            key: key.clone(),
            state: Arc::clone(state),
            since,
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<RecordKey, Arc<watch::Sender<State>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What a read has found that began after so many others.
    fn since(&self, begun: u64) -> Option<&Row> {
        let (number, row) = self.last.as_ref()?;
        (*number > begun).then_some(row)
    }
}

struct Caller<'a> {
    reads: &'a Reads,
    key: RecordKey,
    state: Arc<watch::Sender<State>>,
    /// How many reads had begun when it asked.
    since: u64,
}

impl Caller<'_> {
    /// Begins a read. `None`: another caller reads, or has just read for this one. One that `is_late` reads all the same.
    fn begin(&self, is_late: bool) -> Option<Reading<'_>> {
        let mut number = None;
        self.state.send_if_modified(|state| {
            let is_free = state.reading.is_none() || is_late;
            if is_free && state.since(self.since).is_none() {
                state.begun += 1;
                state.reading = Some(state.begun);
                number = state.reading;
            }
            false
        });
        number.map(|number| Reading {
            state: &self.state,
            number,
        })
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let mut keys = self.reads.keys();
        let mut is_last = false;
        self.state.send_if_modified(|state| {
            state.callers -= 1;
            is_last = state.callers == 0;
            false
        });
        if is_last {
            keys.remove(&self.key);
        }
    }
}

struct Reading<'a> {
    state: &'a watch::Sender<State>,
    number: u64,
}

impl Reading<'_> {
    fn found(self, row: Row) -> Row {
        self.state.send_modify(|state| {
            // A later read may have ended before.
            if state.since(self.number).is_none() {
                state.last = Some((self.number, row.clone()));
            }
        });
        row
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.state.send_modify(|state| {
            state.reading = state.reading.filter(|number| *number != self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use tokio::sync::Semaphore;

    use super::*;

    struct Place {
        reads: Reads,
        begun: AtomicUsize,
        gate: Semaphore,
    }

    impl Place {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                reads: Reads::default(),
                begun: AtomicUsize::new(0),
                gate: Semaphore::new(0),
            })
        }

        async fn read(self: Arc<Self>) -> Row {
            let key = RecordKey::new("s", "k").unwrap();
            let read = async {
                self.begun.fetch_add(1, Ordering::SeqCst);
                self.gate.acquire().await.unwrap().forget();
                Ok(None)
            };
            self.reads.read(&key, read).await
        }

        async fn settled(&self) {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn who_asks_while_a_read_is_under_way_shares_the_next_one() {
        let place = Place::new();
        let first = tokio::spawn(Arc::clone(&place).read());
        place.settled().await;
        let others: Vec<_> = (0..50)
            .map(|_| tokio::spawn(Arc::clone(&place).read()))
            .collect();
        place.settled().await;
        assert_eq!(place.begun(), 1);
        place.gate.add_permits(1);
        first.await.unwrap().unwrap();
        place.settled().await;
        assert_eq!(place.begun(), 2, "what the first one found may be older");
        assert!(others.iter().all(|other| !other.is_finished()));
        place.gate.add_permits(1);
        for other in others {
            other.await.unwrap().unwrap();
        }
        assert_eq!(place.begun(), 2);
        assert!(place.reads.keys().is_empty());
    }

    #[tokio::test]
    async fn a_reader_that_is_dropped_leaves_the_read_to_another_caller() {
        let place = Place::new();
        let first = tokio::spawn(Arc::clone(&place).read());
        place.settled().await;
        let second = tokio::spawn(Arc::clone(&place).read());
        place.settled().await;
        first.abort();
        place.settled().await;
        assert_eq!(place.begun(), 2);
        place.gate.add_permits(1);
        second.await.unwrap().unwrap();
        assert!(place.reads.keys().is_empty());
    }

    #[tokio::test]
    async fn a_reader_that_is_not_polled_keeps_nobody_for_long() {
        let place = Place::new();
        let mut frozen = Box::pin(Arc::clone(&place).read());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(frozen.as_mut().poll(cx).is_pending());
        let others: Vec<_> = (0..50)
            .map(|_| tokio::spawn(Arc::clone(&place).read()))
            .collect();
        // The one that is frozen has the first permit.
        place.gate.add_permits(2);
        for other in others {
            other.await.unwrap().unwrap();
        }
        assert_eq!(place.begun(), 2, "one reads instead, for all");
        drop(frozen);
        assert!(place.reads.keys().is_empty());
    }
}
