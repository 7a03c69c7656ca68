//! What the processes tell, a line each: an operation's invocation, and its answer. The records that these lines make.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::now;
use rowlock_test::tell;

/// One line. Operations have numbers that are unique in the whole history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    Asked {
        id: u64,
        at: Duration,
        name: String,
        ask: Ask,
    },
    Answered {
        id: u64,
        at: Duration,
        answer: Answer,
    },
}

/// An operation, as it is invoked. An operation on a guard names the guard's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Asks once. Answers: `Granted`, `Busy`.
    TryAcquire,
    /// Waits in the queue for a limited time. Answers: `Granted`, and `Busy` when the time is over. A future that is
    /// dropped has no answer.
    Acquire,
    /// Answers: `Released`, `Lost`.
    Release(Grant),
    /// Drops the guard, which releases in the background: there is no answer.
    Drop(Grant),
    /// Asks the guard whether it is held. Answers: `Trusted`, `Lost`.
    Check(Grant),
    /// Reads the row. Answers: `Held`, `Free`.
    Inspect,
    /// Asks once for a permit. Answers: `Granted`, `Busy`.
    TryPermit(Share),
    /// Waits for a permit in the queue. Answers: as `Acquire`.
    Permit(Share),
    /// Makes a reader of a writer. Answers: `Downgraded`, `Lost`.
    Downgrade(Grant),
    /// Makes a writer of a reader. Answers: `Upgraded`, `Busy`, `Lost`.
    Upgrade(Grant),
}

/// What a permit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Share {
    Read,
    Write,
    /// Of a semaphore, with this weight.
    Weight(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// With this fence.
    Granted(i64),
    /// `None`: the name was changing hands, or a statement had its row locked.
    Busy(Option<Grant>),
    Released,
    Lost,
    /// The guard is held, and trusts its lease for so much longer.
    Trusted(Duration),
    Free,
    Held(Grant),
    Downgraded,
    /// With this new fence.
    Upgraded(i64),
    /// An error that no operation may have.
    Failed(String),
}

/// A grant: its fence, and the number of the acquire that got it, which is the text of the holder in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) fence: i64,
    pub(crate) by: u64,
}

impl Event {
    /// Whether something was granted.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(
            self,
            Self::Answered {
                answer: Answer::Granted(_),
                ..
            }
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap())
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("{line:?}: {error}"))
    }
}

/// The numbers of one process's operations.
#[derive(Debug)]
pub(crate) struct Numbers(Cell<u64>);

/// How many numbers each process has. The first ones are also those of histories that were written by hand.
const EACH: u64 = 1_000_000;

/// Whether the acquire of this number asks for a lock in the session of its process, and not for a lease. (The first
/// numbers are leases.)
pub(crate) fn is_in_session(id: u64) -> bool {
    id >= EACH && id % 2 == 1
}

impl Numbers {
    /// `process` is the number of the process.
    pub(crate) fn new(process: u64) -> Self {
        Self(Cell::new(process * EACH))
    }

    /// Tells of an operation, before it begins.
    pub(crate) fn asked(&self, name: &str, ask: Ask) -> u64 {
        let id = self.0.get();
        self.0.set(id + 1);
        let (at, name) = (now(), name.to_owned());
        tell(Event::Asked { id, at, name, ask });
        id
    }
}

/// Tells of the answer to an operation.
pub(crate) fn answered(id: u64, answer: Answer) {
    let at = now();
    tell(Event::Answered { id, at, answer });
}

/// An operation and its answer, if it has one.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) asked: Duration,
    pub(crate) ask: Ask,
    pub(crate) answer: Option<(Duration, Answer)>,
}

/// The operations on each name.
pub(crate) type Records = BTreeMap<String, Vec<Record>>;

/// Puts invocations and answers together.
pub(crate) fn records(events: impl IntoIterator<Item = Event>) -> Records {
    let mut records = Records::new();
    let mut places: HashMap<u64, (String, usize)> = HashMap::new();
    for event in events {
        match event {
            Event::Asked { id, at, name, ask } => {
                let of_name = records.entry(name.clone()).or_default();
                places.insert(id, (name, of_name.len()));
                of_name.push(Record {
                    id,
                    asked: at,
                    ask,
                    answer: None,
                });
            }
            Event::Answered { id, at, answer } => {
                let (name, place) = &places[&id];
                if let Answer::Failed(error) = &answer {
                    panic!("operation {id} on {name}: {error}");
                }
                records.get_mut(name).unwrap()[*place].answer = Some((at, answer));
            }
        }
    }
    records
}
