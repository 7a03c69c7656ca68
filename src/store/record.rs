//! The verbs for idempotency records and form tokens.
//!
//! What holds of the verbs of [`Store`](super::Store) holds of these. On top of it:
//!
//! - *durable*: what a claim, a step or an end says survives a crash of the server, on every brand (unlike a
//!   released lease).
//! - *naming*: an attempt is named by its own id (`owner`) together with its number. Whoever has both has not been
//!   superseded, as long as the record is running; so every verb may be sent twice.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::fault::Fault;
use super::{Renewed, Told, to_micros};
use crate::model::{Fingerprint, Outcome, RecordKey};

/// The atomic decisions about records, on a connection.
pub(crate) trait Records: Send {
    /// The records of these keys, in the order of the keys. An outcome of more than `largest` bytes stays where it is:
    /// only its size is told.
    fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> impl Future<Output = Result<Vec<Option<RecordRow>>, Fault>> + Send;

    /// Whether a transaction that has not ended has claimed the key, or has its record locked; without waiting for it.
    /// (False on SQLite, where only the file tells that there is a writer.)
    fn record_is_claimed(
        &mut self,
        key: &RecordKey,
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Removes a record whose time is over, if it is still the attempt that was seen, with its steps, in one transaction.
    /// One that is locked is left alone; one that runs, too, before its lease is over or while it is in doubt.
    fn record_forget(
        &mut self,
        key: &RecordKey,
        attempt: i64,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Begins an attempt where there is no record, or where there is the one that the ask has seen and it may be
    /// run again: it is free; or running, past its lease, and not in doubt. The attempt's number is
    /// `max(previous + 1, microseconds of the clock)`. An attempt that takes over from one that has vanished does not know what
    /// that one has begun: the key is bound to its request.
    ///
    /// One outcome per ask, in the order of the asks.
    fn record_claim(
        &mut self,
        asks: &[ClaimAsk],
    ) -> impl Future<Output = Result<Vec<Claimed>, Fault>> + Send;

    /// Extends the leases of attempts that run. A lease that has run out is extended, too, as long as nobody has
    /// taken over.
    ///
    /// One outcome per ask, in the order of the asks.
    fn record_renew(
        &mut self,
        asks: &[KeepAsk],
    ) -> impl Future<Output = Result<Vec<Renewed>, Fault>> + Send;

    /// Ends attempts that run: with an outcome, or by freeing their keys. A record that is in doubt is not freed,
    /// but becomes unknown, unless the attempt knows that nothing has happened. Lease or no lease: what has not been taken over may end.
    ///
    /// One outcome per ask, in the order of the asks.
    fn record_finish(
        &mut self,
        asks: &[FinishAsk],
    ) -> impl Future<Output = Result<Vec<Finished>, Fault>> + Send;

    /// What to do about a step: nothing, if it was finished in this or an earlier attempt. One that is not
    /// repeatable puts the record in doubt, unless a later beginning has. (The doubt of an earlier one is over.)
    fn step_begin(
        &mut self,
        ask: &StepAsk,
    ) -> impl Future<Output = Result<StepBegun, Fault>> + Send;

    /// Keeps what a step came to, or that it did not happen, and ends the doubt about this beginning of it and about
    /// earlier ones: a late sending does not touch the doubt of the same step begun again.
    fn step_finish(
        &mut self,
        ask: &StepAsk,
        outcome: Option<&Outcome>,
    ) -> impl Future<Output = Result<Finished, Fault>> + Send;

    /// The finished steps of a record, oldest first.
    fn step_list(
        &mut self,
        key: &RecordKey,
    ) -> impl Future<Output = Result<Vec<StepRow>, Fault>> + Send;

    /// Records in the order of their scopes and keys, without their outcomes.
    fn record_list(
        &mut self,
        filter: &ListAsk,
    ) -> impl Future<Output = Result<Vec<RecordRow>, Fault>> + Send;

    /// Changes a record that nobody is working on from outside, if it is still what was seen. False: it is not.
    fn record_decide(
        &mut self,
        ask: &DecideAsk,
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Makes a form token. Never sent twice with one digest: a late sending would make a token that was used good again.
    fn token_issue(&mut self, ask: &TokenAsk) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Removes what is over: outcomes past their retention, with what the steps came to; records and tokens past their
    /// time; at most `limit` of each. What somebody has locked is passed over, and so is what is running, in doubt or
    /// unknown.
    fn clean(&mut self, limit: u32) -> impl Future<Output = Result<CleanedRows, Fault>> + Send;

    /// In the caller's transaction, which was begun for this: claims a key as [`record_claim`](Self::record_claim) does, until
    /// the transaction ends. It does not wait for other transactions that have claimed it (on MySQL a second at most, which
    /// is the shortest wait there is). What was not claimed leaves a transaction that has to be rolled back. (The number of
    /// the attempt is told where it costs nothing.)
    fn tx_claim(
        &mut self,
        ask: &ClaimAsk,
    ) -> impl Future<Output = Result<Told<Claimed>, Fault>> + Send;

    /// In the caller's transaction: keeps the outcome of what it has claimed. Superseded: somebody else was faster.
    fn tx_keep(
        &mut self,
        ask: &ClaimAsk,
        outcome: &Outcome,
    ) -> impl Future<Output = Result<Finished, Fault>> + Send;

    /// In the caller's transaction: ends an attempt that runs with its outcome. A transaction that is over is a
    /// fault, on every brand.
    fn tx_complete(
        &mut self,
        ask: &FinishAsk,
    ) -> impl Future<Output = Result<Told<Finished>, Fault>> + Send;

    /// In the caller's transaction: makes a form token. A transaction that is over is a fault.
    fn tx_token_issue(
        &mut self,
        ask: &TokenAsk,
    ) -> impl Future<Output = Result<Told<()>, Fault>> + Send;

    /// In the caller's transaction: uses a form token up, by one DELETE; whether there was one. A transaction that
    /// is over is a fault.
    fn tx_token_consume(
        &mut self,
        ask: &TokenAsk,
    ) -> impl Future<Output = Result<Told<bool>, Fault>> + Send;
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimAsk {
    pub(crate) key: RecordKey,
    /// The id of the attempt-to-be: fresh for each.
    pub(crate) owner: Uuid,
    /// For people to read.
    pub(crate) holder: Arc<str>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Duration,
    pub(crate) max_tries: i32,
    /// The client's database: a claim in another one is refused.
    pub(crate) database: Uuid,
    /// How long the outcome will be kept, and the key remembered, of a claim in a transaction.
    pub(crate) retain: Duration,
    pub(crate) forget: Duration,
    /// How long the key is remembered when the attempt vanishes, and nobody asks for it.
    pub(crate) begun: Duration,
    /// The attempt of the record that was seen; `None`: there was none.
    pub(crate) seen: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The attempt runs. (Asked again after a broken connection, this is the answer to the first sending.)
    Mine { attempt: i64 },
    /// It is not as it was seen: look again.
    Missed,
    /// A transaction that has not ended has claimed it, or has it locked.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct KeepAsk {
    pub(crate) key: RecordKey,
    pub(crate) owner: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct FinishAsk {
    pub(crate) key: RecordKey,
    pub(crate) owner: Uuid,
    /// [`ANY_ATTEMPT`] where only the owner is known.
    pub(crate) attempt: i64,
    pub(crate) end: RecordEnd,
}

/// An owner has one attempt only.
pub(crate) const ANY_ATTEMPT: i64 = -1;

#[derive(Debug, Clone)]
pub(crate) enum RecordEnd {
    Done {
        outcome: Outcome,
        /// How long the outcome is kept, from now on.
        retain: Duration,
        /// How long the key is remembered, from now on: not less.
        forget: Duration,
    },
    Free {
        /// Whether the next attempt has to be of the same request.
        bound: bool,
        /// How many attempts are not held against the key.
        pardon: i32,
        /// How long the key is remembered, from now on.
        forget: Duration,
        /// The same where the next attempt has to be of the same request.
        begun: Duration,
        /// Whether a step may have happened. If not, a doubt in the record is of one that has not, as the attempt knows.
        in_doubt: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finished {
    /// It is as was asked, by this sending or an earlier one.
    Ended,
    /// The attempt is not the running one any more.
    Superseded,
    /// Somebody has the row locked: not done yet.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct StepAsk {
    pub(crate) key: RecordKey,
    pub(crate) owner: Uuid,
    pub(crate) attempt: i64,
    pub(crate) step: Arc<str>,
    pub(crate) repeatable: bool,
    /// The beginnings in an attempt of steps that must not be repeated are counted from 1. None begins while an earlier one
    /// is in doubt. 0 for a repeatable step.
    pub(crate) number: i32,
}

#[derive(Debug)]
pub(crate) enum StepBegun {
    /// Do it.
    Fresh,
    /// It was done.
    Done(Outcome),
    /// It, or another one, was begun, and nobody knows whether it happened.
    Doubtful(String),
    /// The attempt is not the running one any more.
    Superseded,
    /// Somebody has the row locked: not begun yet.
    Locked,
}

#[derive(Debug)]
pub(crate) struct StepRow {
    pub(crate) step: String,
    pub(crate) attempt: i64,
    pub(crate) outcome: Outcome,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) done_at: i64,
}

/// The columns of a step, in the order in which every brand selects them.
pub(crate) type StepColumns = (String, i64, String, Vec<u8>, i64);

impl From<StepColumns> for StepRow {
    fn from((step, attempt, content_type, bytes, done_at): StepColumns) -> Self {
        Self {
            step,
            attempt,
            outcome: Outcome::kept(&content_type, bytes),
            done_at,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ListAsk {
    pub(crate) scope: Option<Vec<u8>>,
    /// By its name, as it is now by the clock.
    pub(crate) state: Option<&'static str>,
    pub(crate) limit: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct DecideAsk {
    pub(crate) key: RecordKey,
    /// The attempt that was seen.
    pub(crate) attempt: i64,
    pub(crate) decision: Decision,
    /// How long the key is remembered once it is free.
    pub(crate) forget: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Decision {
    /// Running, past its lease and in doubt: unknown from now on.
    Unknown,
    /// Unknown: the step in doubt happened, and this is what it came to; or it did not happen. The key is free.
    Resolve(Option<Outcome>),
    /// Running past its lease, or free: free, and no attempt is held against it. (In doubt, it becomes unknown.)
    Reset,
}

#[derive(Debug, Clone)]
pub(crate) struct TokenAsk {
    pub(crate) scope: Arc<[u8]>,
    pub(crate) digest: Fingerprint,
    pub(crate) ttl: Duration,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CleanedRows {
    pub(crate) outcomes: u64,
    pub(crate) records: u64,
    pub(crate) tokens: u64,
}

/// What a row says, before it is known to make sense. Times left are microseconds, by the database's clock when
/// the row was read; the others are since 1970-01-01 UTC.
#[derive(Debug, Clone)]
pub(crate) struct RecordRow {
    pub(crate) scope: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) state: String,
    pub(crate) attempt: i64,
    pub(crate) tries: i32,
    pub(crate) max_tries: i32,
    pub(crate) owner: Uuid,
    pub(crate) holder: String,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) bound: bool,
    pub(crate) doubt: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Not there when it is larger than was asked for.
    pub(crate) outcome: Option<Arc<[u8]>>,
    pub(crate) outcome_size: Option<i64>,
    pub(crate) began_at: i64,
    pub(crate) attempted_at: i64,
    pub(crate) lease_until: i64,
    pub(crate) done_at: Option<i64>,
    pub(crate) lease_left: i64,
    pub(crate) retain_left: Option<i64>,
    pub(crate) forget_left: Option<i64>,
}

impl RecordRow {
    pub(crate) fn is_of(&self, key: &RecordKey) -> bool {
        self.key == key.key() && self.scope == key.scope()
    }

    /// The size of an outcome that has stayed where it is.
    pub(crate) fn left_behind(&self) -> Option<usize> {
        let size = self.outcome_size.filter(|_| self.outcome.is_none())?;
        usize::try_from(size).ok()
    }

    /// Whether this is the outcome that was kept.
    fn has(&self, outcome: &Outcome) -> bool {
        self.outcome.as_deref() == Some(outcome.bytes())
            && self.content_type.as_deref() == Some(outcome.content_type())
    }

    /// The rows of `keys`, in their order.
    pub(crate) fn in_order(mut rows: Vec<Self>, keys: &[RecordKey]) -> Vec<Option<Self>> {
        let mut of = |key: &RecordKey| {
            let at = rows.iter().position(|row| row.is_of(key))?;
            Some(rows.swap_remove(at))
        };
        keys.iter().map(&mut of).collect()
    }

    /// What an attempt that did not end with this sending has come to. The row has been read with an outcome as large as
    /// that of the ask ([`FinishAsk::size`]).
    pub(crate) fn finished(row: Option<&Self>, ask: &FinishAsk) -> Finished {
        match row {
            Some(row) if row.owner != ask.owner => Finished::Superseded,
            Some(row) if ![row.attempt, ANY_ATTEMPT].contains(&ask.attempt) => Finished::Superseded,
            Some(row) => match (row.state.as_str(), &ask.end) {
                ("running", _) => Finished::Locked,
                ("done", RecordEnd::Done { outcome, .. }) if row.has(outcome) => Finished::Ended,
                ("free" | "unknown", RecordEnd::Free { .. }) => Finished::Ended,
                // Another outcome counts, too: the one that a transaction has kept.
                _ => Finished::Superseded,
            },
            None => Finished::Superseded,
        }
    }
}

impl FinishAsk {
    /// How large the outcome is, in bytes; 0 without one.
    pub(crate) fn size(&self) -> usize {
        match &self.end {
            RecordEnd::Done { outcome, .. } => outcome.bytes().len(),
            RecordEnd::Free { .. } => 0,
        }
    }
}

impl ClaimAsk {
    /// What a claim that changed nothing has come to.
    pub(crate) fn missed(&self, row: Option<&RecordRow>) -> Claimed {
        match row {
            Some(row) if row.owner == self.owner && row.state == "running" => Claimed::Mine {
                attempt: row.attempt,
            },
            // As it was seen, and yet not to be had.
            Some(row) if self.seen == Some(row.attempt) => Claimed::Locked,
            Some(_) => Claimed::Missed,
            None => Claimed::Locked,
        }
    }
}

/// Whether the attempt is the running one, the step in doubt, which beginning that is, and what the step came to.
pub(crate) type StepLook = (
    bool,
    Option<String>,
    Option<i32>,
    Option<String>,
    Option<Vec<u8>>,
);

impl StepAsk {
    /// Why a record could not be put in doubt.
    pub(crate) fn not_begun(&self, look: Option<StepLook>) -> StepBegun {
        self.seen(look).unwrap_or(StepBegun::Locked)
    }

    /// Why a step could not be settled.
    pub(crate) fn not_settled(look: Option<&StepLook>) -> Finished {
        match look {
            Some((true, ..)) => Finished::Locked,
            _ => Finished::Superseded,
        }
    }

    /// What a look at the step says. `None`: the record is to be put in doubt first.
    pub(crate) fn seen(&self, look: Option<StepLook>) -> Option<StepBegun> {
        match look {
            None | Some((false, ..)) => Some(StepBegun::Superseded),
            Some((.., Some(content_type), Some(bytes))) => {
                Some(StepBegun::Done(Outcome::kept(&content_type, bytes)))
            }
            Some(_) if self.repeatable => Some(StepBegun::Fresh),
            Some((_, Some(doubt), number, ..)) => match number.cmp(&Some(self.number)) {
                // The attempt knows that it has not happened, or would not begin another one.
                Ordering::Less => None,
                // By an earlier sending.
                Ordering::Equal => Some(StepBegun::Fresh),
                Ordering::Greater => Some(StepBegun::Doubtful(doubt)),
            },
            Some(_) => None,
        }
    }
}

/// The columns that an end sets.
#[derive(Debug)]
pub(crate) struct EndColumns<'a> {
    pub(crate) state: &'static str,
    pub(crate) outcome: Option<&'a Outcome>,
    pub(crate) retain: Option<i64>,
    pub(crate) forget: i64,
    /// Instead of `forget`, where the record is bound by then.
    pub(crate) begun: i64,
    pub(crate) bound: bool,
    pub(crate) pardon: i32,
    /// Whether a doubt in the record stays, and makes it unknown.
    pub(crate) in_doubt: bool,
}

impl<'a> From<&'a RecordEnd> for EndColumns<'a> {
    fn from(end: &'a RecordEnd) -> Self {
        match end {
            RecordEnd::Done {
                outcome,
                retain,
                forget,
            } => Self {
                state: "done",
                outcome: Some(outcome),
                retain: Some(to_micros(*retain)),
                forget: to_micros(*forget),
                begun: to_micros(*forget),
                bound: true,
                pardon: i32::MAX,
                in_doubt: false,
            },
            RecordEnd::Free {
                bound,
                pardon,
                forget,
                begun,
                in_doubt,
            } => Self {
                state: "free",
                outcome: None,
                retain: None,
                forget: to_micros(*forget),
                begun: to_micros((*begun).max(*forget)),
                bound: *bound,
                pardon: *pardon,
                in_doubt: *in_doubt,
            },
        }
    }
}

/// The row of a record, from the columns that every brand selects in this order.
macro_rules! record_row {
    ($row:expr) => {{
        let row = $row;
        Ok::<_, sqlx::Error>($crate::store::record::RecordRow {
            scope: row.try_get(0)?,
            key: row.try_get(1)?,
            state: row.try_get(2)?,
            attempt: row.try_get(3)?,
            tries: row.try_get(4)?,
            max_tries: row.try_get(5)?,
            owner: row.try_get(6)?,
            holder: row.try_get(7)?,
            fingerprint: row.try_get(8)?,
            bound: row.try_get(9)?,
            doubt: row.try_get(10)?,
            content_type: row.try_get(11)?,
            outcome: row.try_get::<Option<Vec<u8>>, _>(12)?.map(Into::into),
            began_at: row.try_get(13)?,
            attempted_at: row.try_get(14)?,
            lease_until: row.try_get(15)?,
            done_at: row.try_get(16)?,
            lease_left: row.try_get(17)?,
            retain_left: row.try_get(18)?,
            forget_left: row.try_get(19)?,
            outcome_size: row.try_get(20)?,
        })
    }};
}
pub(crate) use record_row;
