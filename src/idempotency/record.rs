//! Records as people see them, and what an administrator can do about one.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::judge::{NO_STATE, corrupt};
use super::request::Idempotency;
use crate::model::Error;
use crate::model::Outcome;
use crate::model::{Fingerprint, RecordKey, RecordState, Subject, check_step};
use crate::store::Store;
use crate::store::micros;
use crate::store::record::RecordRow;
use crate::store::record_admin::{Decision, ListAsk};

/// A record, as its row says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo {
    /// Its scope and key.
    pub record: RecordKey,
    /// What has become of it.
    pub state: RecordState,
    /// The number of the last attempt.
    pub attempt: i64,
    /// How many attempts have begun since the last one that ended in good order: they have vanished, but for one that
    /// still runs.
    pub vanished: u32,
    /// How many may vanish.
    pub max_attempts: u32,
    /// Who ran the last attempt, for people to read.
    pub holder: String,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// The step of which nobody knows whether it happened, or which is under way.
    pub open_step: Option<String>,
    /// What it came to. (Not in lists.)
    pub outcome: Option<Outcome>,
    /// When the first attempt began.
    pub began_at: DateTime<Utc>,
    /// When the last attempt began.
    pub attempted_at: DateTime<Utc>,
    /// When it was done.
    pub done_at: Option<DateTime<Utc>>,
    /// How long the lease of a running attempt lasts when it is not renewed.
    pub lease_remaining: Option<Duration>,
    /// How long the outcome is kept.
    pub retained_for: Option<Duration>,
    /// How long the key is remembered when nobody asks for it.
    pub remembered_for: Option<Duration>,
}

impl RecordInfo {
    /// The key that a step of it was given for the other side, if it asked for
    /// [`downstream_key`](crate::IdempotencyGuard::downstream_key): to look the effect up there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] for a refused name.
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
    /// The attempt that did it.
    pub attempt: i64,
    /// What it came to.
    pub outcome: Outcome,
    /// When its result was kept.
    pub done_at: DateTime<Utc>,
}

/// What a person has found out about a step that was unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It happened, and this is its result, as the step would have returned it (JSON).
    Happened(Outcome),
    /// It did not happen, and will not: the next attempt does it.
    NotHappened,
}

impl RecordRow {
    /// The row as callers see it.
    fn info(self) -> Result<RecordInfo, Error> {
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
            .map_err(|_| damaged("its fingerprint has not 32 bytes"))?;
        let outcome = match (&self.content_type, &self.outcome) {
            (Some(content_type), Some(bytes)) => Some(Outcome::kept(content_type, bytes.clone())),
            _ => None,
        };
        Ok(RecordInfo {
            state,
            attempt: self.attempt,
            vanished: u32::try_from(self.vanished).unwrap_or(0),
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
    /// A refused scope or key, a database out of reach, a damaged record.
    pub async fn inspect(
        &self,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<RecordInfo>, Error> {
        let key = RecordKey::new(scope, key)?;
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
    /// A refused scope or key, a database out of reach.
    pub async fn steps(
        &self,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Vec<StepInfo>, Error> {
        let key = RecordKey::new(scope, key)?;
        let head = self.core.look(Subject::Record(key.clone()), "look up");
        let of = key.clone();
        let steps = async move |store: &mut dyn Store| store.step_list(&of).await;
        let rows = self.core.ask(head, steps).await?;
        let steps = rows.into_iter().map(|row| {
            let out = "the time of a step is out of range";
            Ok(StepInfo {
                done_at: DateTime::from_timestamp_micros(row.done_at)
                    .ok_or_else(|| corrupt(key.scope(), key.key(), out))?,
                step: row.step,
                attempt: row.attempt,
                outcome: row.outcome,
            })
        });
        steps.collect()
    }

    /// Records in the order of their scopes and keys, without their outcomes: those of one scope, or of all; those
    /// in one state, or in all; `limit` of them at most.
    ///
    /// # Errors
    ///
    /// A database out of reach, a damaged record.
    pub async fn list(
        &self,
        scope: Option<&[u8]>,
        state: Option<RecordState>,
        limit: u32,
    ) -> Result<Vec<RecordInfo>, Error> {
        let filter = ListAsk {
            scope: scope.map(Vec::from),
            state,
            limit,
        };
        let head = self.core.look(None, "list records");
        let list = async move |store: &mut dyn Store| store.record_list(&filter).await;
        let rows = self.core.run_errand(head, list).await?;
        rows.into_iter().map(RecordRow::info).collect()
    }

    /// Lets a record be run again on which nobody is working: after it was poisoned. What its steps have done is kept.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRecord`]. [`Error::NotDecided`] when somebody is working on it, it is done, or it is unknown (which
    /// only [`resolve`](Self::resolve) ends). A refused scope or key, a database out of reach.
    pub async fn reset(&self, scope: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let key = RecordKey::new(scope, key)?;
        let reason = match self.read(&key).await? {
            None => return Err(Error::NoSuchRecord { record: key }),
            Some(info) => match info.state {
                RecordState::Lapsed | RecordState::Poisoned | RecordState::Free => {
                    if self.decide(&key, info.attempt, Decision::Reset).await? {
                        return Ok(());
                    }
                    "somebody has changed it meanwhile: look again"
                }
                RecordState::Running => "somebody is working on it: wait for the end of its lease",
                RecordState::Unknown => {
                    "whether one of its steps happened is not known: find out, then resolve it"
                }
                RecordState::Done | RecordState::Expired => "it is done, and will not be run again",
            },
        };
        Err(Error::NotDecided {
            record: key,
            reason,
        })
    }

    /// Decides what has become of the step of an unknown record. The next caller that asks for the key goes on after
    /// what happened.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchRecord`]. [`Error::NotDecided`] when it is not unknown. [`Error::OutcomeTooLarge`]; a refused scope
    /// or key, a database out of reach.
    pub async fn resolve(
        &self,
        scope: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        resolution: Resolution,
    ) -> Result<(), Error> {
        let key = RecordKey::new(scope, key)?;
        let outcome = match resolution {
            Resolution::Happened(outcome) => Some(outcome),
            Resolution::NotHappened => None,
        };
        if let Some(outcome) = &outcome {
            let size = outcome.bytes().len();
            self.bounds().check("the result of the step", size)?;
        }
        let reason = match self.read(&key).await? {
            None => return Err(Error::NoSuchRecord { record: key }),
            Some(info) if info.state == RecordState::Unknown => {
                // Past its lease in the middle of the step, and nobody has asked for it since.
                self.decide(&key, info.attempt, Decision::Unknown).await?;
                let decision = Decision::Resolve(outcome);
                if self.decide(&key, info.attempt, decision).await? {
                    return Ok(());
                }
                "somebody has changed it meanwhile: look again"
            }
            Some(_) => "none of its steps is unknown",
        };
        Err(Error::NotDecided {
            record: key,
            reason,
        })
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(super) mod tests;
