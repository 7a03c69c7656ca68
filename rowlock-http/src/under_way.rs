//! The requests of a layer that are under way, whether or not a client waits for them; and their end, when the server stops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rowlock::RecordKey;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The part of the limit of a drain in which the handlers that are left are cut off: a tenth, and no more than this.
const LONGEST_END: Duration = Duration::from_secs(2);

/// No drain takes longer: a year is for ever.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// The tasks under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    tasks: BTreeMap<u64, Left>,
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

/// A request that [`drain`](crate::IdempotencyLayer::drain) could not wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// The record of its key. `None`: the request has not begun, and leaves nothing.
    pub record: Option<RecordKey>,
    /// What it was doing.
    pub doing: Doing,
}

/// What a request is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Its body is arriving, or it asks for its key.
    Beginning,
    /// Its handler runs.
    Running,
    /// Its handler has returned a final response, whose body is arriving.
    Answering,
    /// Its response is being kept.
    Keeping,
}

/// Says what a person has to know.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>| match &self.record {
            Some(record) => write!(f, " of {record}"),
            None => Ok(()),
        };
        match self.doing {
            Doing::Beginning => f.write_str("a request had not begun: it leaves nothing"),
            Doing::Running => {
                f.write_str("the handler")?;
                of(f)?;
                f.write_str(" was cut off: the key is free, or unknown if a step that must not be repeated had begun")
            }
            Doing::Answering => {
                f.write_str("the response")?;
                of(f)?;
                f.write_str(" was cut off: the work is done, and retries are told that its response is not kept")
            }
            Doing::Keeping => {
                f.write_str("the response")?;
                of(f)?;
                f.write_str(" is not kept yet: the work is done, and a retry after the end of the lease runs it again")
            }
        }
    }
}

/// One task, until this is dropped.
#[derive(Debug)]
pub(crate) struct Task {
    of: UnderWay,
    number: u64,
}

impl State {
    fn add(&mut self, doing: Doing, record: Option<RecordKey>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.tasks.insert(number, Left { record, doing });
        number
    }
}

impl UnderWay {
    /// Begins a task. `None`: the server stops.
    pub(crate) fn begin(&self) -> Option<Task> {
        let mut number = None;
        self.0.send_if_modified(|state| {
            if state.phase == Phase::Open {
                number = Some(state.add(Doing::Beginning, None));
            }
            // A new task wakes no waiter.
            false
        });
        let of = self.clone();
        number.map(|number| Task { of, number })
    }

    /// A task that goes on with the end of another one.
    pub(crate) fn keeping(&self, record: &RecordKey) -> Task {
        let mut number = 0;
        self.0.send_if_modified(|state| {
            number = state.add(Doing::Keeping, Some(record.clone()));
            false
        });
        let of = self.clone();
        Task { of, number }
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

    /// Lets no request begin from now on, waits for those that have begun, and cuts off the handlers that are left near the end of the limit.
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
            left.extend(state.tasks.values().cloned());
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

    /// Waits until no task is left.
    async fn none(&self) {
        let _ = self
            .0
            .subscribe()
            .wait_for(|state| state.tasks.is_empty())
            .await;
    }
}

impl Task {
    /// Notes what the task is doing.
    pub(crate) fn is(&self, doing: Doing, record: &RecordKey) {
        self.of.0.send_if_modified(|state| {
            if let Some(task) = state.tasks.get_mut(&self.number) {
                let record = Some(record.clone());
                *task = Left { record, doing };
            }
            false
        });
    }

    /// Notes that it was cut off. It has ended its attempt by then.
    pub(crate) fn was_cut(&self, doing: Doing, record: &RecordKey) {
        self.of.0.send_if_modified(|state| {
            let record = Some(record.clone());
            state.cut.push(Left { record, doing });
            false
        });
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Every handler waits for a change of the phase: only the end of the last task wakes the waiters.
        self.of.0.send_if_modified(|state| {
            state.tasks.remove(&self.number);
            state.tasks.is_empty()
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
    async fn a_drain_names_what_it_has_cut_off_and_what_goes_on() {
        let under_way = UnderWay::default();
        let (running, keeping) = (under_way.begin().unwrap(), under_way.begin().unwrap());
        running.is(Doing::Running, &record("a"));
        keeping.is(Doing::Keeping, &record("b"));
        let late = under_way.begin().unwrap();
        let handler = async {
            under_way.cut().await;
            running.was_cut(Doing::Running, &record("a"));
            // A task that begins with the end of another one is left, too.
            let more = under_way.keeping(&record("c"));
            drop((running, late));
            more
        };
        let began = Instant::now();
        let limit = Duration::from_secs(5);
        let (left, more) = tokio::join!(under_way.drain(limit), handler);
        assert!(began.elapsed() <= limit);
        let left: Vec<_> = left
            .into_iter()
            .map(|left| (left.doing, left.record))
            .collect();
        assert_eq!(
            left,
            [
                (Doing::Running, Some(record("a"))),
                (Doing::Keeping, Some(record("b"))),
                (Doing::Keeping, Some(record("c")))
            ]
        );
        assert!(under_way.begin().is_none(), "it is closed for good");
        drop((keeping, more));
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
            let again = under_way.keeping(&record("a"));
            drop((task, again));
        };
        let (left, ()) = tokio::join!(under_way.drain(Duration::from_mins(1)), ends);
        assert_eq!(left, []);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }
}
