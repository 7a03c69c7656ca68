//! The requests of a layer that are under way, whether or not a client waits for them; and their end, when the server
//! stops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rowlock::RecordKey;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The part of the limit of a drain in which the handlers that are left are cut off: a tenth, and no more than this.
const LONGEST_END: Duration = Duration::from_secs(2);

/// No drain takes longer: a year is for ever.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// The requests under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    requests: BTreeMap<u64, Left>,
    /// What was cut off, and has ended.
    cut: Vec<Left>,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// No request begins.
    Draining,
    /// Handlers are cut off.
    Cutting,
}

/// A request that [`drain`](crate::IdempotencyLayer::drain) has cut off, or could not wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// The record of its key. `None`: the request has not begun, and leaves nothing.
    pub record: Option<RecordKey>,
    /// What it was doing when it was cut off, or does at the end of the drain.
    pub doing: Doing,
    /// Whether its handler was cut off. A handler that blocks its thread cannot be.
    pub was_cut: bool,
}

/// What a request is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Its body is arriving, or it asks for its key.
    Beginning,
    /// Its handler runs, or its response's body is arriving, and nothing says that the work is done.
    Running,
    /// Its handler has returned a final response, whose body is arriving.
    Answering,
    /// Its work is done, and its response, or that it is done, is being kept.
    Keeping,
    /// Its attempt is being ended without a response to keep: the key becomes free, or unknown.
    GivingUp,
}

/// Says what a person has to know.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, comes) = match (self.doing, self.was_cut) {
            (Doing::Beginning, _) => {
                return f.write_str("a request had not begun: it leaves nothing");
            }
            (Doing::Running, true) => (
                "the handler",
                "was cut off: the key is free, or unknown, unless the handler had completed its attempt",
            ),
            (Doing::Running, false) => (
                "the handler",
                "still runs. If the process ends now, a retry after the lease runs it again, or is told that it is unknown",
            ),
            (Doing::Answering, true) => (
                "the response",
                "was cut off: the work is done, and retries are told that its response is not kept",
            ),
            (Doing::Answering, false) => (
                "the response",
                "still arrives. The work is done. If the process ends now, a retry after the lease runs it again, or is told that it is unknown",
            ),
            (Doing::Keeping, _) => (
                "the response",
                "is not kept yet: the work is done, and a retry after the end of the lease runs it again, or is told that it is unknown",
            ),
            (Doing::GivingUp, _) => (
                "the attempt",
                "has not ended yet: its work is not known to be done, and a retry after the end of the lease runs it again, or is told that it is unknown",
            ),
        };
        match &self.record {
            Some(record) => write!(f, "{what} of {record} {comes}"),
            None => write!(f, "{what} {comes}"),
        }
    }
}

/// One request, until all clones of this are dropped.
#[derive(Debug, Clone)]
pub(crate) struct Task(Arc<Entry>);

/// A request, if it is still under way.
#[derive(Debug, Clone)]
pub(crate) struct WeakTask(Weak<Entry>);

#[derive(Debug)]
struct Entry {
    of: UnderWay,
    number: u64,
}

impl UnderWay {
    /// Begins a request. `None`: the server stops.
    pub(crate) fn begin(&self) -> Option<Task> {
        let mut number = None;
        self.0.send_if_modified(|state| {
            if state.phase == Phase::Open {
                let begins = Left {
                    record: None,
                    doing: Doing::Beginning,
                    was_cut: false,
                };
                state.requests.insert(state.next, begins);
                number = Some(state.next);
                state.next += 1;
            }
            // A new request wakes no waiter.
            false
        });
        let of = self.clone();
        number.map(|number| Task(Arc::new(Entry { of, number })))
    }

    /// Whether requests may begin.
    pub(crate) fn is_open(&self) -> bool {
        self.0.borrow().phase == Phase::Open
    }

    /// Whether handlers are cut off now.
    pub(crate) fn is_cutting(&self) -> bool {
        self.0.borrow().phase == Phase::Cutting
    }

    /// Resolves when the handlers are to be cut off.
    pub(crate) async fn cut(&self) {
        // This fails only without a sender, and `self` has the sender.
        let cutting = |state: &State| state.phase == Phase::Cutting;
        let _ = self.0.subscribe().wait_for(cutting).await;
    }

    /// Lets no request begin from now on, waits for those that have begun, and cuts off the handlers that are left
    /// near the end of the limit.
    pub(crate) async fn drain(&self, limit: Duration) -> Vec<Left> {
        let until = Instant::now() + limit.min(LONGEST);
        let to_end = (limit / 10).min(LONGEST_END);
        self.set(Phase::Draining);
        if timeout_at(until - to_end, self.none()).await.is_err() {
            self.set(Phase::Cutting);
            let _ = timeout_at(until, self.none()).await;
        }
        let mut left = Vec::new();
        self.0.send_if_modified(|state| {
            left.append(&mut state.cut);
            left.extend(state.requests.values().cloned());
            false
        });
        left
    }

    /// Sets the phase. A phase is never set back.
    fn set(&self, phase: Phase) {
        self.0.send_modify(|state| {
            if state.phase != Phase::Cutting {
                state.phase = phase;
            }
        });
    }

    /// Waits until no request is left.
    async fn none(&self) {
        let _ = self
            .0
            .subscribe()
            .wait_for(|state| state.requests.is_empty())
            .await;
    }
}

impl Task {
    pub(crate) fn downgrade(&self) -> WeakTask {
        WeakTask(Arc::downgrade(&self.0))
    }

    /// Notes what the request is doing. `doing` is called when no other task can note something.
    pub(crate) fn is(&self, record: &RecordKey, doing: impl FnOnce() -> Doing) {
        self.note(|left| {
            left.doing = doing();
            left.record.get_or_insert_with(|| record.clone());
        });
    }

    /// Notes that the handler was cut off.
    pub(crate) fn was_cut(&self) {
        self.note(|left| left.was_cut = true);
    }

    fn note(&self, note: impl FnOnce(&mut Left)) {
        self.0.of.0.send_if_modified(|state| {
            state.requests.get_mut(&self.0.number).map(note);
            false
        });
    }
}

impl WeakTask {
    pub(crate) fn upgrade(&self) -> Option<Task> {
        self.0.upgrade().map(Task)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Every handler waits for a change of the phase: only the end of the last request wakes the waiters.
        self.of.0.send_if_modified(|state| {
            let ended = state.requests.remove(&self.number);
            state.cut.extend(ended.filter(|left| left.was_cut));
            state.requests.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    fn record(key: &str) -> RecordKey {
        RecordKey::new("scope", key).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_names_each_request_once_with_what_it_did_last() {
        let under_way = UnderWay::default();
        let begin = |key| {
            let task = under_way.begin().unwrap();
            task.is(&record(key), || Doing::Running);
            task
        };
        let (cut, blocks, keeping) = (begin("a"), begin("b"), begin("c"));
        let handlers = async {
            under_way.cut().await;
            cut.was_cut();
            drop(cut);
            // Its response is kept by another task.
            keeping.was_cut();
            let on = keeping.downgrade().upgrade().unwrap();
            on.is(&record("c"), || Doing::Keeping);
            drop(keeping);
            on
        };
        let began = Instant::now();
        let limit = Duration::from_secs(5);
        let (left, on) = tokio::join!(under_way.drain(limit), handlers);
        assert!(began.elapsed() <= limit);
        let left: Vec<_> = left
            .into_iter()
            .map(|left| (left.record.unwrap(), left.doing, left.was_cut))
            .collect();
        assert_eq!(
            left,
            [
                (record("a"), Doing::Running, true),
                (record("b"), Doing::Running, false),
                (record("c"), Doing::Keeping, true)
            ]
        );
        assert!(under_way.begin().is_none(), "it is closed for good");
        on.is(&record("c"), || Doing::Answering);
        drop((blocks, on));
        let left = under_way.drain(limit).await;
        assert!(matches!(&left[..], [left] if left.doing == Doing::Answering && left.was_cut));
        assert_eq!(under_way.drain(limit).await, []);
    }

    #[derive(Debug, Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_of_a_request_wakes_no_other_handler() {
        let under_way = UnderWay::default();
        let (_running, others) = (under_way.begin(), [under_way.begin(), under_way.begin()]);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cut = pin!(under_way.cut());
        assert!(
            cut.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(others);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        under_way.set(Phase::Cutting);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_with_the_last_task() {
        let under_way = UnderWay::default();
        let task = under_way.begin().unwrap();
        let began = Instant::now();
        let ends = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(under_way.begin().is_none());
            // What one that has begun still has to do.
            let goes_on = task.clone();
            drop(task);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(goes_on);
        };
        let (left, ()) = tokio::join!(under_way.drain(Duration::from_mins(1)), ends);
        assert_eq!(left, []);
        assert_eq!(began.elapsed(), Duration::from_secs(4));
    }
}
