//! Looking at the record of a key until the key can be claimed, or the result is known.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use chrono::DateTime;
use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::begun::{Begun, InFlight, Reconciled, UnknownStep};
use super::judge::{Verdict, judge};
use super::request::Idempotency;
use super::waiting::{KeyWait, WaitOutcome};
use crate::model::{Error, Fingerprint, RecordKey, Subject};
use crate::runtime::batch::head::JobHead;
use crate::runtime::wait::single_flight::{Flight, OtherFlight};
use crate::store::verbs::Store;
use crate::store::verbs::record_admin::{DecideParams, Decision};

/// The limit of changes to a record from outside, before the look pauses or gives up.
const MAX_ROUNDS: u32 = 5;

/// What a decision about a record came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecideOutcome {
    Done,
    /// The record was not as it was seen, or a transaction has it locked.
    Refused,
    /// As [`Refused`](Self::Refused), and an earlier sending may have done it.
    InDoubt,
}

impl Idempotency {
    /// Looks until the key can be claimed (`New`), or the result is known. A caller that has the flight of this key
    /// waits for other clients only.
    pub(super) async fn look(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        waiting: &mut KeyWait,
        flight: Option<&Flight>,
    ) -> Result<Begun<Option<i64>>, Error> {
        let mut rounds = 0;
        loop {
            // A change from outside does nothing if the record is locked. A locked record is in flight.
            rounds += 1;
            if rounds > MAX_ROUNDS && !waiting.again(None).await {
                return Ok(Begun::InFlight(InFlight::unseen()));
            }
            let row = self.core.read_record(key).await?;
            let verdict = judge(row, fingerprint, self.allowed_attempts())?;
            if !matches!(verdict, Verdict::InFlight { .. }) {
                waiting.stop_polling();
            }
            let begun = match verdict {
                Verdict::Claim(before) => Begun::New(before),
                Verdict::Replay(outcome) => Begun::Replay(outcome),
                Verdict::Mismatch => Begun::Mismatch,
                Verdict::Expired => Begun::Expired,
                Verdict::Poisoned { attempts } => Begun::Poisoned { attempts },
                Verdict::Forgotten { attempt } => {
                    let head = self.core.lanes.wish(Subject::Record(key.clone()), "forget");
                    let of = key.clone();
                    let forget =
                        async move |store: &mut dyn Store| store.record_forget(&of, attempt).await;
                    self.core.lanes.run(head, forget).await?;
                    continue;
                }
                Verdict::InFlight {
                    remaining,
                    until,
                    holder,
                } => {
                    let waited = if flight.is_some() {
                        waiting.polls(remaining).await
                    } else {
                        let other = self.core.flights.other(key);
                        let of = (key, fingerprint);
                        waiting.out(&self.core, of, other, remaining).await
                    };
                    match waited {
                        WaitOutcome::LookAgain => {
                            rounds = 0;
                            continue;
                        }
                        WaitOutcome::Kept(outcome) => Begun::Replay(outcome),
                        WaitOutcome::TooLong => Begun::InFlight(InFlight {
                            remaining: Some(remaining),
                            until: DateTime::from_timestamp_micros(until),
                            holder: Some(holder),
                            quarantine: None,
                        }),
                    }
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
                    let decision = Decision::Resolve(unknown.step.into(), outcome);
                    self.decide(key, attempt, decision).await?;
                    continue;
                }
            };
            return Ok(begun);
        }
    }

    /// Waits for the end of a flight in this client.
    pub(super) async fn wait_out(
        &self,
        waiting: &mut KeyWait,
        of: (&RecordKey, &Fingerprint),
        other: OtherFlight,
    ) -> WaitOutcome {
        waiting.out(&self.core, of, Some(other), self.lease).await
    }

    /// Asks the application's hook whether the step happened.
    async fn ask_hook(&self, unknown: &UnknownStep) -> Result<Reconciled, Error> {
        let Some(hook) = self.reconcile.as_ref() else {
            return Ok(Reconciled::StillUnknown);
        };
        let asked = unknown.clone();
        // The hook is the application's: it may panic at once, or while it is polled.
        let found = AssertUnwindSafe(async move { hook(asked).await }).catch_unwind();
        let (record, step) = (&unknown.record, &unknown.step);
        let found = match timeout(self.lease, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => {
                tracing::error!(%record, step, "the reconcile hook has panicked: the step is still unknown");
                Reconciled::StillUnknown
            }
            Err(_) => {
                tracing::error!(%record, step, limit = ?self.lease, "the reconcile hook does not end: the step is still unknown");
                Reconciled::StillUnknown
            }
        };
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
    ) -> Result<DecideOutcome, Error> {
        let params = DecideParams {
            key: key.clone(),
            attempt,
            decision,
            remember: self.remember_begun_for(),
        };
        let bytes = match &params.decision {
            Decision::Resolve(_, Some(outcome)) => outcome.bytes().len(),
            _ => 0,
        };
        let head = JobHead {
            bytes,
            ..self.core.lanes.wish(Subject::Record(key.clone()), "decide")
        };
        let sendings = Arc::new(AtomicU32::new(0));
        let sent = Arc::clone(&sendings);
        let decide = async move |store: &mut dyn Store| {
            sent.fetch_add(1, Ordering::Relaxed);
            store.record_decide(&params).await
        };
        let is_done = self.core.lanes.run(head, decide).await?;
        Ok(match (is_done, sendings.load(Ordering::Relaxed)) {
            (true, _) => DecideOutcome::Done,
            (false, 0 | 1) => DecideOutcome::Refused,
            (false, _) => DecideOutcome::InDoubt,
        })
    }
}
