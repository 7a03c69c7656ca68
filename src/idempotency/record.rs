//! Records for people to read, and the changes that an administrator can make.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::judge::{NO_STATE, corrupt};
use super::look::DecideOutcome;
use super::request::Idempotency;
use crate::model::{
    Error, Fingerprint, Key, Outcome, RecordError, RecordKey, RecordState, Scope, Subject,
    check_step,
};
use crate::store::verbs::Store;
use crate::store::verbs::record_admin::Decision;
use crate::store::verbs::record_row::RecordRow;
use crate::store::verbs::time::micros;

/// Why a decision was not recorded.
const CHANGED: &str = "it has changed meanwhile: look again";

/// A record, as its row describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo {
    /// The scope and key.
    pub record: RecordKey,
    /// The state.
    pub state: RecordState,
    /// The number of the last attempt.
    pub attempt: i64,
    /// The number of attempts since the last attempt that ended in good order. They were abandoned, except an attempt
    /// that is still running. (They count until the key was left alone for an hour.)
    pub abandoned: u32,
    /// The number of attempts that may be abandoned in a row.
    pub max_attempts: u32,
    /// Who ran the last attempt, for people to read.
    pub holder: String,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The open step: it is running, or may or may not have happened.
    pub open_step: Option<String>,
    /// The outcome. (`None` in lists.)
    pub outcome: Option<Outcome>,
    /// When the first attempt began.
    pub began_at: DateTime<Utc>,
    /// When the last attempt began.
    pub attempted_at: DateTime<Utc>,
    /// When the outcome was recorded.
    pub done_at: Option<DateTime<Utc>>,
    /// The time until the lease of a running attempt ends, unless it is renewed.
    pub lease_remaining: Option<Duration>,
    /// How much longer the outcome is kept.
    pub retained_for: Option<Duration>,
    /// How much longer the key is remembered, unless it is requested again.
    pub remembered_for: Option<Duration>,
}

impl RecordInfo {
    /// The key that a step sent to the other server, if the step used
    /// [`downstream_key`](crate::IdempotencyGuard::downstream_key). Use it to look the effect up there.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Key`](crate::InvalidError::Key) for an invalid name.
    pub fn downstream_key(&self, step: &str) -> Result<String, Error> {
        check_step(step)?;
        Ok(self.record.downstream(&self.fingerprint, step))
    }
}

/// A finished step of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepInfo {
    /// Its name.
    pub step: String,
    /// The attempt that ran the step.
    pub attempt: i64,
    /// The result of the step, or its [begin](Idempotency::steps_cut).
    pub outcome: Outcome,
    /// The bytes of the whole result.
    pub size: u64,
    /// When the result was recorded.
    pub done_at: DateTime<Utc>,
}

/// A person's decision about an unknown step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The step happened. This is its result, as the step would have returned it (JSON).
    Happened(Outcome),
    /// The step did not happen, and cannot happen later. The next attempt runs it.
    NotHappened,
}

impl RecordRow {
    /// The row as callers see it.
    pub(super) fn info(self) -> Result<RecordInfo, Error> {
        let damaged = |what| corrupt(&self.scope, &self.key, what);
        let record = RecordKey::new(&self.scope, &self.key)
            .map_err(|_| damaged("its scope or key is empty"))?;
        let time = |us| {
            DateTime::from_timestamp_micros(us).ok_or_else(|| damaged("a time is out of range"))
        };
        let state = self
            .state_now(self.max_attempts)
            .ok_or_else(|| damaged(NO_STATE))?;
        let fingerprint = <[u8; 32]>::try_from(&self.fingerprint[..])
            .map_err(|_| damaged("its fingerprint does not have 32 bytes"))?;
        let outcome = match (&self.content_type, &self.outcome) {
            (Some(content_type), Some(bytes)) => Some(Outcome::kept(content_type, bytes.clone())),
            _ => None,
        };
        Ok(RecordInfo {
            state,
            attempt: self.attempt,
            abandoned: u32::try_from(self.abandoned).unwrap_or(0),
            max_attempts: u32::try_from(self.max_attempts).unwrap_or(0),
            fingerprint: Fingerprint::from_bytes(fingerprint),
            outcome,
            began_at: time(self.began_at)?,
            attempted_at: time(self.attempted_at)?,
            done_at: self.done_at.map(time).transpose()?,
            lease_remaining: (state == RecordState::Running).then(|| micros(self.lease_left)),
            retained_for: self.retain_left.map(micros),
            remembered_for: self.forget_left.map(micros),
            record,
            holder: self.holder,
            open_step: self.open_step,
        })
    }
}

impl Idempotency {
    /// The record of a key, if there is one.
    ///
    /// # Errors
    ///
    /// An invalid scope or key, a database out of reach, a damaged record.
    pub async fn inspect(
        &self,
        key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
    ) -> Result<Option<RecordInfo>, Error> {
        let key = key.record()?;
        self.read(&key).await
    }

    async fn read(&self, key: &RecordKey) -> Result<Option<RecordInfo>, Error> {
        let row = self.core.read_record(key).await?;
        row.map(RecordRow::info).transpose()
    }

    /// The finished steps of a record, oldest first.
    ///
    /// # Errors
    ///
    /// An invalid scope or key, a database out of reach.
    pub async fn steps(
        &self,
        key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
    ) -> Result<Vec<StepInfo>, Error> {
        self.steps_cut(key, u32::MAX).await
    }

    /// [`steps`](Self::steps), with the first `most` bytes of each result only. [`StepInfo::size`] tells how long a
    /// result is.
    ///
    /// # Errors
    ///
    /// As [`steps`](Self::steps).
    pub async fn steps_cut(
        &self,
        key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
        most: u32,
    ) -> Result<Vec<StepInfo>, Error> {
        // (PostgreSQL adds 1 to it in 32 bits. No engine has longer values.)
        let most = i32::try_from(most).unwrap_or(i32::MAX).min(i32::MAX - 1);
        let key = key.record()?;
        let head = self
            .core
            .lanes
            .look(Subject::Record(key.clone()), "look up");
        let of = key.clone();
        let steps = async move |store: &mut dyn Store| store.step_list(&of, most).await;
        let rows = self.core.lanes.run(head, steps).await?;
        let steps = rows.into_iter().map(|row| {
            let out = "the time of a step is out of range";
            Ok(StepInfo {
                done_at: DateTime::from_timestamp_micros(row.done_at)
                    .ok_or_else(|| corrupt(key.scope(), key.key(), out))?,
                step: row.step,
                attempt: row.attempt,
                outcome: row.outcome,
                size: u64::try_from(row.size).unwrap_or_default(),
            })
        });
        steps.collect()
    }

    /// Lets a record without a running attempt run again, such as a poisoned one. Results of finished steps are kept.
    ///
    /// # Errors
    ///
    /// [`RecordError::Missing`]. [`RecordError::NotDecided`] when an attempt is running, the record is done, or it is
    /// unknown (only [`resolve`](Self::resolve) ends that). An invalid scope or key, a database out of reach.
    /// [`Error::OutcomeUnknown`]: look at the record before you go on.
    pub async fn reset(&self, key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>) -> Result<(), Error> {
        let key = key.record()?;
        let reason = match self.read(&key).await? {
            None => return Err(Error::Record(RecordError::Missing { record: key })),
            Some(info) => match info.state {
                RecordState::Lapsed | RecordState::Poisoned | RecordState::Free => {
                    match self.decide(&key, info.attempt, Decision::Reset).await? {
                        DecideOutcome::Done => return Ok(()),
                        DecideOutcome::Refused => CHANGED,
                        DecideOutcome::InDoubt => return Err(self.in_doubt(key)),
                    }
                }
                RecordState::Running => "an attempt is running: wait for the end of its lease",
                RecordState::Unknown => {
                    "one of its steps may or may not have happened: find out, then resolve it"
                }
                RecordState::Done | RecordState::Expired => "it is done, and will not be run again",
            },
        };
        Err(Error::Record(RecordError::NotDecided {
            record: key,
            reason,
        }))
    }

    /// Decides an unknown record: whether its open step happened. The next attempt goes on from there. `seen`: the
    /// record as the person who decides has [seen](Self::inspect) it. If by now another step is open, nothing is
    /// recorded.
    ///
    /// # Errors
    ///
    /// [`RecordError::NotDecided`] when the record is not unknown, or has changed since it was seen.
    /// [`RecordError::OutcomeTooLarge`]; a database out of reach. [`Error::OutcomeUnknown`]: look at the record before
    /// you go on.
    pub async fn resolve(&self, seen: &RecordInfo, resolution: Resolution) -> Result<(), Error> {
        let outcome = match resolution {
            Resolution::Happened(outcome) => Some(outcome),
            Resolution::NotHappened => None,
        };
        if let Some(outcome) = &outcome {
            let size = outcome.bytes().len();
            self.bounds().check("the result of the step", size)?;
        }
        let open = seen.open_step.as_deref();
        let open = open.filter(|_| seen.state == RecordState::Unknown);
        let reason = match open {
            None => "none of its steps is unknown",
            Some(step) => {
                let decision = Decision::Resolve(step.into(), outcome.clone());
                match self.decide(&seen.record, seen.attempt, decision).await? {
                    DecideOutcome::Done => return Ok(()),
                    DecideOutcome::Refused => CHANGED,
                    DecideOutcome::InDoubt => match self.resolution(seen, step).await {
                        Some(kept) if kept == outcome => return Ok(()),
                        Some(_) => CHANGED,
                        None => return Err(self.in_doubt(seen.record.clone())),
                    },
                }
            }
        };
        Err(Error::Record(RecordError::NotDecided {
            record: seen.record.clone(),
            reason,
        }))
    }

    /// What was decided about the step that was seen open: its result, or that it did not happen. The outer `None`:
    /// nothing yet, or it cannot be read.
    async fn resolution(&self, seen: &RecordInfo, step: &str) -> Option<Option<Outcome>> {
        let now = self.read(&seen.record).await.ok()??;
        if now.attempt == seen.attempt && now.open_step.as_deref() == Some(step) {
            return None;
        }
        let steps = self.steps(Scope(now.record.scope()).key(now.record.key()));
        let mut steps = steps.await.ok()?.into_iter();
        let kept = steps.find(|kept| kept.step == step && kept.attempt == seen.attempt);
        Some(kept.map(|kept| kept.outcome))
    }

    fn in_doubt(&self, record: RecordKey) -> Error {
        Error::OutcomeUnknown {
            doing: "decide",
            on: Subject::Record(record),
            target: self.core.lanes.target.to_string(),
            detail: "the answer to the first sending was lost".into(),
        }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(super) mod tests;
