//! Reads of one record at the same time: callers that ask while a read is under way share the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::model::{Error, RecordKey};
use crate::store::record::RecordRow;

pub(crate) type Row = Result<Option<RecordRow>, Error>;

/// The records that are read now.
#[derive(Debug, Default)]
pub(crate) struct Reads(Mutex<HashMap<RecordKey, Arc<watch::Sender<State>>>>);

/// The reads of one record.
#[derive(Debug, Default)]
struct State {
    callers: usize,
    is_reading: bool,
    /// How many reads have begun.
    begun: u64,
    /// The last read that has ended, by its number.
    last: Option<(u64, Row)>,
}

impl Reads {
    /// The record, as a read finds it that begins after this call. Dropping the future lets another caller read.
    pub(crate) async fn read(&self, key: &RecordKey, read: impl Future<Output = Row>) -> Row {
        let caller = self.enter(key);
        let mut heard = caller.state.subscribe();
        loop {
            if let Some(turn) = caller.turn() {
                let row = read.await;
                return turn.found(row);
            }
            let found =
                heard.wait_for(|state| !state.is_reading || state.since(caller.since).is_some());
            // The sender is in `caller`.
            if let Ok(state) = found.await
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
    /// The right to read now. `None`: another caller reads, or has just read for this one.
    fn turn(&self) -> Option<ReadTurn<'_>> {
        let mut number = None;
        self.state.send_if_modified(|state| {
            if !state.is_reading && state.since(self.since).is_none() {
                state.is_reading = true;
                state.begun += 1;
                number = Some(state.begun);
            }
            false
        });
        number.map(|number| ReadTurn {
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

struct ReadTurn<'a> {
    state: &'a watch::Sender<State>,
    number: u64,
}

impl ReadTurn<'_> {
    fn found(self, row: Row) -> Row {
        self.state.send_modify(|state| {
            state.last = Some((self.number, row.clone()));
        });
        row
    }
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.is_reading = false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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
}
