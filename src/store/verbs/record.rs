//! Idempotency records.
//!
//! These verbs follow the rules of [`Store`](super::Store), and two more:
//!
//! - *durable*: a claim, a step or an end survives a crash of the server, on every engine (unlike a released lease).
//! - *naming*: an attempt is named by its own id (`attempt_id`) together with its number. While the record is running,
//!   an attempt whose id and number are in the row has not been superseded. So every verb may be sent twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::kept_state::KeptState;
use super::lease::RenewOutcome;
use super::record_row::RecordRow;
use super::time::to_micros;
use crate::model::{Fingerprint, Outcome, RecordKey};

/// The verbs for records.
#[async_trait]
pub(crate) trait RecordStore: Send {
    /// Reads the records of these keys, in the order of the keys. For an outcome of more than `largest` bytes, reads
    /// only its size.
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault>;

    /// Reads the record of one key as [`record_read`](Self::record_read) does.
    async fn record_read_one(
        &mut self,
        key: &RecordKey,
        largest: usize,
    ) -> Result<Option<RecordRow>, Fault> {
        let rows = self.record_read(std::slice::from_ref(key), largest).await?;
        Ok(rows.into_iter().next().flatten())
    }

    /// Whether an open transaction has claimed the key or has its record locked. Does not wait for that transaction.
    /// (False on SQLite, where only the lock of the file shows that there is a writer.)
    async fn record_is_claimed(&mut self, key: &RecordKey) -> Result<bool, Fault>;

    /// Removes an expired record with its steps, in one transaction, if it still has the attempt that was seen. Leaves
    /// a locked record alone, and a running one with a live lease or an open step.
    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault>;

    /// Begins an attempt where there is no record, or where the record is as the ask has seen it and may run again: it
    /// is free, or it is running, past its lease, and without an open step. The attempt's number is `max(previous + 1,
    /// microseconds of the clock)`. After an abandoned attempt the key is bound to its request, because the new
    /// attempt does not know what the abandoned one began.
    ///
    /// One outcome for each, in their order.
    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault>;

    /// Extends the leases of running attempts. Extends an expired lease too, unless another attempt has taken over.
    ///
    /// One outcome for each, in their order.
    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault>;

    /// Ends running attempts, with an outcome or by freeing their keys. A record with an open step is not freed but
    /// becomes unknown, unless the attempt knows that the step did not happen. An attempt that was not taken over may
    /// end even after its lease.
    ///
    /// One outcome for each, in their order.
    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault>;

    /// The outcome of each end, where `ended` tells which attempts a statement has ended. Reads the records of the
    /// others. If that fails, all are in doubt.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    async fn record_ended(
        &mut self,
        all: &[FinishParams],
        ended: &[bool],
    ) -> Result<Vec<FinishOutcome>, Fault> {
        let others = all.iter().zip(ended).filter(|(_, has_ended)| !**has_ended);
        let others: Vec<_> = others.map(|(params, _)| params).collect();
        let largest = |part: &[&FinishParams]| part.iter().map(|params| params.size()).max();
        // (No chunk may be empty.)
        let together = largest(&others).unwrap_or(0) * others.len() <= READ_AT_ONCE;
        let at_once = if together { others.len().max(1) } else { 1 };
        let mut rows = Vec::new();
        for part in others.chunks(at_once) {
            let keys: Vec<_> = part.iter().map(|params| params.key.clone()).collect();
            let read = self.record_read(&keys, largest(part).unwrap_or(0)).await;
            rows.extend(read.map_err(Fault::half_done)?);
        }
        let mut rows = rows.into_iter();
        let outcome = |(params, has_ended): (&FinishParams, &bool)| match has_ended {
            true => FinishOutcome::Ended,
            false => params.missed(rows.next().flatten().as_ref()),
        };
        Ok(all.iter().zip(ended).map(outcome).collect())
    }

    /// Ends attempts and claims keys, as [`record_finish`](Self::record_finish) and
    /// [`record_claim`](Self::record_claim) do, with as few round trips and commits as the engine can. The keys
    /// differ, and there are some of both.
    async fn record_exchange(
        &mut self,
        ends: &[FinishParams],
        claims: &[ClaimParams],
    ) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimParams {
    pub(crate) key: RecordKey,
    /// The id for the new attempt: fresh for each claim.
    pub(crate) attempt_id: Uuid,
    /// A text for people.
    pub(crate) holder: Arc<str>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: i32,
    /// The client's database: a claim in another database is refused.
    pub(crate) database: Uuid,
    /// For a claim in a transaction: how long to keep the outcome and remember the key.
    pub(crate) retain: Duration,
    pub(crate) remember: Duration,
    /// How long the key is remembered when the attempt is abandoned and no caller asks for the key.
    pub(crate) remember_begun: Duration,
    /// The attempt in the record that was seen; `None`: there was no record.
    pub(crate) seen: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// The attempt runs. (A second sending after a broken connection gets this answer too.)
    Mine { attempt: i64 },
    /// The record is not as it was seen: look again.
    Missed,
    /// An open transaction has claimed the key, or has its record locked.
    Locked,
}

#[derive(Debug, Clone)]
pub(crate) struct KeepParams {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct FinishParams {
    pub(crate) key: RecordKey,
    pub(crate) attempt_id: Uuid,
    /// [`ANY_ATTEMPT`] where only the attempt's id is known.
    pub(crate) attempt: i64,
    pub(crate) end: RecordEnd,
}

/// An id belongs to one attempt only.
pub(crate) const ANY_ATTEMPT: i64 = -1;

/// The most bytes of outcomes that [`RecordStore::record_ended`] reads at once.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const READ_AT_ONCE: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) enum RecordEnd {
    Done {
        outcome: Outcome,
        /// How long to keep the outcome, from now on.
        retain: Duration,
        /// How long to remember the key, from now on: at least as long.
        remember: Duration,
    },
    Free {
        /// Whether the next attempt has to be of the same request.
        bound: bool,
        /// How many attempts not to count against the key.
        pardon: i32,
        /// How long to remember the key, from now on.
        remember: Duration,
        /// The same, for when the next attempt has to be of the same request.
        remember_begun: Duration,
        /// Whether a step may have happened without a kept result. If false, the attempt knows that the record's open
        /// step did not happen.
        step_is_open: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishOutcome {
    /// This sending or an earlier one has ended the attempt as asked.
    Ended,
    /// The attempt is no longer the running one.
    Superseded,
    /// Another transaction has the row locked: not ended yet.
    Locked,
}

impl FinishOutcome {
    /// Whether the row of the running attempt was found.
    pub(crate) fn of(is_mine: bool) -> Self {
        if is_mine {
            Self::Ended
        } else {
            Self::Superseded
        }
    }
}

impl RecordEnd {
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Done { outcome, .. } => Some(outcome),
            Self::Free { .. } => None,
        }
    }
}

impl FinishParams {
    /// The size of the outcome in bytes; 0 without one.
    pub(crate) fn size(&self) -> usize {
        self.end
            .outcome()
            .map_or(0, |outcome| outcome.bytes().len())
    }

    /// The result for an attempt that this sending did not end. The row was read with an outcome as large as the ask's
    /// ([`size`](Self::size)), at least.
    pub(crate) fn missed(&self, row: Option<&RecordRow>) -> FinishOutcome {
        match row {
            Some(row) if row.attempt_id != self.attempt_id => FinishOutcome::Superseded,
            Some(row) if ![row.attempt, ANY_ATTEMPT].contains(&self.attempt) => {
                FinishOutcome::Superseded
            }
            Some(row) => match (row.state, &self.end) {
                (KeptState::Running, _) => FinishOutcome::Locked,
                (KeptState::Done, RecordEnd::Done { outcome, .. }) if row.has(outcome) => {
                    FinishOutcome::Ended
                }
                (KeptState::Free | KeptState::Unknown, RecordEnd::Free { .. }) => {
                    FinishOutcome::Ended
                }
                // A transaction may have kept another outcome: that is an end, too.
                _ => FinishOutcome::Superseded,
            },
            None => FinishOutcome::Superseded,
        }
    }
}

impl ClaimParams {
    /// What the attempt in the record, and whether it is this claim's and runs, tell of the claim. `None`: there is no
    /// record.
    pub(crate) fn outcome(&self, row: Option<(i64, bool)>) -> ClaimOutcome {
        match row {
            Some((attempt, true)) => ClaimOutcome::Mine { attempt },
            // The record is as it was seen, and yet could not be claimed.
            Some((attempt, _)) if self.seen == Some(attempt) => ClaimOutcome::Locked,
            Some(_) => ClaimOutcome::Missed,
            None => ClaimOutcome::Locked,
        }
    }

    /// [`Self::outcome`] of a row that was read after the claim.
    pub(crate) fn outcome_of(&self, row: Option<&RecordRow>) -> ClaimOutcome {
        self.outcome(row.map(|row| (row.attempt, row.runs_for(self.attempt_id))))
    }
}

/// The scope and the key of a record, and a number.
pub(crate) type KeyNumber = (Vec<u8>, Vec<u8>, i64);

pub(crate) fn number_of(rows: &[KeyNumber], key: &RecordKey) -> Option<i64> {
    let is_mine = |row: &&KeyNumber| row.1 == key.key() && row.0 == key.scope();
    rows.iter().find(is_mine).map(|row| row.2)
}

/// Which attempts have ended.
#[cfg(feature = "postgres")]
pub(crate) fn which_ended(all: &[FinishParams], numbers: &[KeyNumber]) -> Vec<bool> {
    let has_ended = |params: &FinishParams| number_of(numbers, &params.key).is_some();
    all.iter().map(has_ended).collect()
}

/// The keys that were not claimed.
pub(crate) fn unclaimed(all: &[ClaimParams], claimed: &[KeyNumber]) -> Vec<RecordKey> {
    let keys = all.iter().map(|params| &params.key);
    let others = keys.filter(|key| number_of(claimed, key).is_none());
    others.cloned().collect()
}

/// `claimed`: the attempts that have begun. `rows`: the records of the others, read later.
pub(crate) fn claim_outcomes(
    all: &[ClaimParams],
    claimed: &[KeyNumber],
    rows: &[Option<RecordRow>],
) -> Vec<ClaimOutcome> {
    let outcome = |params: &ClaimParams| match number_of(claimed, &params.key) {
        Some(attempt) => ClaimOutcome::Mine { attempt },
        None => params.outcome_of(rows.iter().flatten().find(|row| row.is_of(&params.key))),
    };
    all.iter().map(outcome).collect()
}

/// The columns that an end sets.
#[derive(Debug)]
pub(crate) struct EndColumns<'a> {
    pub(crate) state: &'static str,
    pub(crate) outcome: Option<&'a Outcome>,
    pub(crate) retain: Option<i64>,
    pub(crate) remember: i64,
    /// Replaces `remember` when the record is bound by then.
    pub(crate) remember_begun: i64,
    pub(crate) bound: bool,
    pub(crate) pardon: i32,
    /// Whether an open step stays and makes the record unknown.
    pub(crate) step_is_open: bool,
}

impl<'a> From<&'a RecordEnd> for EndColumns<'a> {
    fn from(end: &'a RecordEnd) -> Self {
        match end {
            RecordEnd::Done {
                outcome,
                retain,
                remember,
            } => Self {
                state: KeptState::Done.name(),
                outcome: Some(outcome),
                retain: Some(to_micros(*retain)),
                remember: to_micros(*remember),
                remember_begun: to_micros(*remember),
                bound: true,
                pardon: i32::MAX,
                step_is_open: false,
            },
            RecordEnd::Free {
                bound,
                pardon,
                remember,
                remember_begun,
                step_is_open,
            } => Self {
                state: KeptState::Free.name(),
                outcome: None,
                retain: None,
                remember: to_micros(*remember),
                remember_begun: to_micros((*remember_begun).max(*remember)),
                bound: *bound,
                pardon: *pardon,
                step_is_open: *step_is_open,
            },
        }
    }
}
