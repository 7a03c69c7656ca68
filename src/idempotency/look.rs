//! Looking at the record of a key until there is something to claim, or something to tell.

use chrono::DateTime;

use super::begun::{Begun, InFlight, Reconciled, UnknownStep};
use super::judge::{Verdict, judge};
use super::request::Idempotency;
use super::waiting::Waiting;
use crate::model::{Error, Fingerprint, Outcome, RecordKey};
use crate::runtime::record::RecordWork;
use crate::store::record_admin::{DecideAsk, Decision};

/// How often a record is changed from outside before that is given up.
const MAX_TRIES: u32 = 5;

impl Idempotency {
    /// Looks until there is something to claim, or something to tell.
    pub(super) async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        waiting: &mut Waiting,
    ) -> Result<Begun<Option<i64>>, Error> {
        let mut tries = 0;
        loop {
            // Whatever changes a record from outside may find it locked: then somebody is at it.
            tries += 1;
            if tries > MAX_TRIES && !waiting.again(None).await {
                return Ok(Begun::InFlight(InFlight::unseen()));
            }
            let row = self.core.read_record(key).await?;
            let begun = match judge(row, fingerprint, self.max_tries())? {
                Verdict::Claim(before) => Begun::New(before),
                Verdict::Replay(outcome) => Begun::Replay(outcome),
                Verdict::Mismatch => Begun::Mismatch,
                Verdict::Expired => Begun::Expired,
                Verdict::Poisoned { attempts } => Begun::Poisoned { attempts },
                Verdict::Forgotten { attempt } => {
                    let forget = |reply| RecordWork::Forget(key.clone(), attempt, reply);
                    self.core.record(forget).await?;
                    continue;
                }
                Verdict::InFlight {
                    remaining,
                    until,
                    holder,
                } => {
                    if waiting.again(Some(remaining)).await {
                        tries = 0;
                        continue;
                    }
                    Begun::InFlight(InFlight {
                        remaining: Some(remaining),
                        until: DateTime::from_timestamp_micros(until),
                        holder: Some(holder),
                    })
                }
                Verdict::Doubtful { attempt } => {
                    self.decide(key, attempt, Decision::Unknown).await?;
                    continue;
                }
                Verdict::Unknown { attempt, step } => {
                    let unknown = UnknownStep {
                        downstream_key: key.downstream(fingerprint, &step),
                        record: key.clone(),
                        step,
                        attempt,
                    };
                    match self.ask_hook(&unknown).await? {
                        None => Begun::Unknown(unknown),
                        Some(found) => {
                            self.decide(key, attempt, Decision::Resolve(found)).await?;
                            continue;
                        }
                    }
                }
            };
            return Ok(begun);
        }
    }

    /// What the step came to, if it happened. `None`: nobody knows.
    async fn ask_hook(&self, unknown: &UnknownStep) -> Result<Option<Option<Outcome>>, Error> {
        let Some(hook) = self.reconcile.as_ref() else {
            return Ok(None);
        };
        Ok(match hook(unknown.clone()).await {
            Reconciled::Happened(outcome) => {
                let size = outcome.bytes().len();
                self.bounds().check("the result of the step", size)?;
                Some(Some(outcome))
            }
            Reconciled::NotHappened => Some(None),
            Reconciled::StillUnknown => None,
        })
    }

    pub(super) async fn decide(
        &self,
        key: &RecordKey,
        attempt: i64,
        decision: Decision,
    ) -> Result<bool, Error> {
        let ask = DecideAsk {
            key: key.clone(),
            attempt,
            decision,
            forget: self.begun(),
        };
        let decide = |reply| RecordWork::Decide(ask, reply);
        self.core.record(decide).await
    }
}
