//! Time, tasks and retries: everything between a caller's future and a connection.
//!
//! # Overview
//!
//! A client ([`Core`]) owns two threads, each with a runtime of its own:
//!
//! - `rowlock-lanes` runs the [lanes](lanes). Each has a connection, gathers the operations that
//!   arrive while its statement is in flight, and sends them as the next one. A caller's future only
//!   awaits the answer; it never owns a statement, so that dropping it can damage no connection.
//!   One more is beside them for looks at one row; [errands](errands), which may take long, get one each, and a thread.
//! - `rowlock-renew` [renews](renew) all leases that this client holds, on one or two connections of its own,
//!   and announces warnings and losses. The [cleaner](clean) is there, too.
//!
//! Neither runs any code of the caller's: a runtime whose workers are all blocked loses no lease.
//! Both end when the last handle, guard and pending operation are gone.

pub(crate) mod attempt;
pub(crate) mod backoff;
pub(crate) mod clean;
mod errands;
pub(crate) mod grant;
pub(crate) mod guard;
mod lanes;
mod line;
mod link;
pub(crate) mod met;
pub(crate) mod op;
pub(crate) mod record;
mod renew;
mod rows;
pub(crate) mod schema;
mod settings;
mod start;
mod tasks;
mod threads;
pub(crate) mod timer;
pub(crate) mod token;
pub(crate) mod wait;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::model::{Engine, Error, Moment, Name};
use clean::Cleaner;
use line::Lines;
use link::Way;
use met::{Met, Running};
use op::{Fate, Look, LookAt, Op, Reply};
use renew::Renewals;
use rows::Known;
pub(crate) use rows::make_rows;
pub(crate) use settings::Settings;
pub(crate) use tasks::finished;
use timer::sleep_until;

/// What is looked at aside is read at once, or cannot be read before the caller's transaction ends (a database in
/// memory, whose tables are locked whole).
const ASIDE_PATIENCE: Duration = Duration::from_millis(250);

/// A running client: the way in to its lanes and its renewals.
#[derive(Debug)]
pub(crate) struct Core {
    lanes: Vec<mpsc::UnboundedSender<Op>>,
    /// Beside the lanes, for looks: a long one holds up no operation, and a caller's open transaction that keeps the
    /// lanes from writing does not keep it from looking.
    aside: mpsc::UnboundedSender<Op>,
    errands: mpsc::UnboundedSender<Op>,
    /// Whether a caller's open transaction may keep the lanes from writing.
    transaction_blocks_lanes: bool,
    pub(crate) renewals: Renewals,
    cleaner: Cleaner,
    pub(crate) lines: Arc<Lines>,
    way: Arc<Way>,
    pub(crate) settings: Settings,
    pub(crate) target: Arc<str>,
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// Other servers take writes, too.
    pub(crate) multi_writer: bool,
    /// The largest outcome that the server took when this client was connected, in bytes.
    pub(crate) largest_outcome: usize,
    /// The database's own id.
    pub(crate) database: Uuid,
    /// The records that are likely to be there.
    pub(crate) met: Met,
    /// The records that its transactions are about.
    pub(crate) running: Arc<Running>,
    /// The names that are known to have a row.
    rows: Mutex<HashMap<Name, Known>>,
}

impl Core {
    /// Hands `op` to the lane of what it is about, always the same one, so that the operations on it keep their
    /// order. Looks go to the lane beside the others, and an administrator's orders are errands.
    pub(crate) fn send(&self, op: Op) {
        let lane = match &op {
            Op::Look(look) => match look.what {
                LookAt::ForceRelease(..) | LookAt::List(_) => &self.errands,
                LookAt::Inspect(..) | LookAt::Row(_, false, _) => &self.aside,
                LookAt::Row(_, true, _) => self.lane(&op),
            },
            Op::Record(op) if op.work.is_errand() => &self.errands,
            _ => self.lane(&op),
        };
        // A lane ends before its senders only when its thread panicked; the reply channel inside
        // `op` is then dropped here, and its caller learns it.
        let _ = lane.send(op);
    }

    fn lane(&self, op: &Op) -> &mpsc::UnboundedSender<Op> {
        let number = op.subject().map_or(0, |subject| {
            let mut hasher = DefaultHasher::new();
            subject.hash(&mut hasher);
            usize::try_from(hasher.finish() % self.lanes.len() as u64).unwrap_or(0)
        });
        &self.lanes[number]
    }

    /// Why the last connection could not be made; `None` when it was, or when there was no answer at all.
    pub(crate) fn unreachable(&self, doing: &'static str) -> Option<Error> {
        let fault = self.way.refusal()?;
        Some(fault.into_error(doing, &self.target))
    }

    /// Hands a look in, and waits for what it finds.
    pub(crate) async fn look<T>(&self, what: impl FnOnce(Reply<T>) -> LookAt) -> Result<T, Error> {
        self.look_within(self.settings.patience, what).await
    }

    /// The same for a look that changes nothing, while a transaction of the caller's is open.
    pub(crate) async fn look_aside<T>(
        &self,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> Result<T, Error> {
        let patience = if self.transaction_blocks_lanes {
            ASIDE_PATIENCE
        } else {
            self.settings.patience
        };
        self.look_within(patience, what).await
    }

    async fn look_within<T>(
        &self,
        patience: Duration,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> Result<T, Error> {
        let (op, answer) = Self::looking(patience, what);
        self.send(op);
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    fn looking<T>(
        patience: Duration,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> (Op, oneshot::Receiver<Result<T, Error>>) {
        let (reply, answer) = oneshot::channel();
        let op = Op::Look(Look {
            what: what(reply),
            fate: Fate::within(patience),
        });
        (op, answer)
    }

    /// Waits until everything that was handed in so far is done, but for no longer than an operation may take: what is
    /// not done by then has a database that is away, or a row that is locked for long.
    pub(crate) async fn flush(&self) {
        let until = Moment::now() + self.settings.patience;
        let replies: Vec<_> = self
            .lanes
            .iter()
            .map(|lane| {
                let (reply, done) = oneshot::channel();
                let _ = lane.send(Op::Flush(reply));
                done
            })
            .collect();
        for done in replies {
            tokio::select! {
                _ = done => {}
                () = sleep_until(until) => return,
            }
        }
    }

    /// Records or tokens are in use: from now on they are cleaned.
    pub(crate) fn keep_clean(&self) {
        self.cleaner.start();
    }

    /// The error for an operation whose lane is gone.
    pub(crate) fn stopped(&self) -> Error {
        stopped(&self.target)
    }
}

fn stopped(target: &str) -> Error {
    Error::Unreachable {
        target: target.into(),
        detail: "rowlock's own thread has stopped".into(),
    }
}
