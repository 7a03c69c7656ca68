//! Looking at the record of a key until the key can be claimed, or the result is known.

use chrono::DateTime;

use super::begun::{Begun, InFlight, Reconciled, UnknownStep};
use super::judge::{Verdict, judge};
use super::request::Idempotency;
use super::waiting::Waiting;
use crate::model::{Error, Fingerprint, RecordKey, Subject};
use crate::runtime::head::Head;
use crate::store::Store;
use crate::store::record_admin::{DecideAsk, Decision};

/// The limit of changes to a record from outside, before the look pauses or gives up.
const MAX_ROUNDS: u32 = 5;

impl Idempotency {
    /// Looks until the key can be claimed (`New`), or the result is known.
    pub(super) async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        waiting: &mut Waiting,
    ) -> Result<Begun<Option<i64>>, Error> {
        let mut rounds = 0;
        loop {
            // A change from outside does nothing if the record is locked. A locked record is in flight.
            rounds += 1;
            if rounds > MAX_ROUNDS && !waiting.again(None).await {
                return Ok(Begun::InFlight(InFlight::unseen()));
            }
            let row = self.core.read_record(key).await?;
            let begun = match judge(row, fingerprint, self.allowed_attempts())? {
                Verdict::Claim(before) => Begun::New(before),
                Verdict::Replay(outcome) => Begun::Replay(outcome),
                Verdict::Mismatch => Begun::Mismatch,
                Verdict::Expired => Begun::Expired,
                Verdict::Poisoned { attempts } => Begun::Poisoned { attempts },
                Verdict::Forgotten { attempt } => {
                    let head = self.core.wish(Subject::Record(key.clone()), "forget");
                    let of = key.clone();
                    let forget =
                        async move |store: &mut dyn Store| store.record_forget(&of, attempt).await;
                    self.core.ask(head, forget).await?;
                    continue;
                }
                Verdict::InFlight {
                    remaining,
                    until,
                    holder,
                } => {
                    if waiting.again(Some(remaining)).await {
                        rounds = 0;
                        continue;
                    }
                    Begun::InFlight(InFlight {
                        remaining: Some(remaining),
                        until: DateTime::from_timestamp_micros(until),
                        holder: Some(holder),
                        quarantine: None,
                    })
                }
                Verdict::OpenStep { attempt } => {
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
                    let outcome = match self.ask_hook(&unknown).await? {
                        Reconciled::Happened(outcome) => Some(outcome),
                        Reconciled::NotHappened => None,
                        Reconciled::StillUnknown => return Ok(Begun::Unknown(unknown)),
                    };
                    let decision = Decision::Resolve(outcome);
                    self.decide(key, attempt, decision).await?;
                    continue;
                }
            };
            return Ok(begun);
        }
    }

    /// Asks the application's hook whether the step happened.
    async fn ask_hook(&self, unknown: &UnknownStep) -> Result<Reconciled, Error> {
        let Some(hook) = self.reconcile.as_ref() else {
            return Ok(Reconciled::StillUnknown);
        };
        let found = hook(unknown.clone()).await;
        if let Reconciled::Happened(outcome) = &found {
            let size = outcome.bytes().len();
            self.bounds().check("the result of the step", size)?;
        }
        Ok(found)
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
            remember: self.remember_begun_for(),
        };
        let bytes = match &ask.decision {
            Decision::Resolve(Some(outcome)) => outcome.bytes().len(),
            _ => 0,
        };
        let head = Head {
            bytes,
            ..self.core.wish(Subject::Record(key.clone()), "decide")
        };
        let decide = async move |store: &mut dyn Store| store.record_decide(&ask).await;
        self.core.ask(head, decide).await
    }
}
