//! A running attempt.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::events;
use super::outcome_bounds::Bounds;
use super::step_state::Steps;
use crate::model::{Error, Fingerprint, Loss, Outcome, RecordKey, check_step};
use crate::runtime::Core;
use crate::runtime::held::attempt_guard::RecordGuard;
use crate::runtime::wait::single_flight::Flight;
use crate::store::verbs::record::{FinishOutcome, RecordEnd};
use crate::transaction::{Context, Transaction};

/// The right to run one attempt for a key: made by [`Idempotency::begin`](crate::Idempotency::begin).
///
/// End the attempt with [`complete_in`](Self::complete_in) in the transaction that does the work, with
/// [`complete`](Self::complete) if the work is elsewhere, or with [`release`](Self::release) if another attempt should
/// try again. Until then its lease is renewed in the background.
///
/// # When the process is paused, or cut off
///
/// The lease may run out, and another attempt may take over. This is safe: from then on this attempt cannot record an
/// outcome, and a transaction in which it tries to cannot commit. Its effects on other systems are not undone: protect
/// them with [steps](Self::step) and the [`downstream_key`](Self::downstream_key).
///
/// # Drop
///
/// Dropping the guard frees the key in the background: the next attempt of the same request runs the work again, under
/// a higher number. The dropped attempt counts as abandoned. During a [step that must not be
/// repeated](Self::step_once) the record becomes unknown instead. After `complete_in`, drop the guard whether the
/// transaction commits or not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE payment (id TEXT, cents INTEGER)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// # async fn charge(key: String, cents: i64) -> Result<String, rowlock::Error> { Ok(format!("{key}{cents}")) }
/// use rowlock::{Begun, Fingerprint, Outcome};
///
/// let request = Fingerprint::of(r#"{"cents":500}"#);
/// let idempotency = rowlock.idempotency();
/// if let Begun::New(guard) = idempotency.begin(rowlock::Scope("customer:7").key("order-4711"), &request).await? {
///     let key = guard.downstream_key("charge")?;
///     let id: String = guard.step("charge", charge(key, 500)).await?;
///
///     let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
///     sqlx::query("INSERT INTO payment VALUES (?, 500)").bind(&id).execute(&mut *tx).await?;
///     guard.complete_in(&mut tx, &Outcome::json(&id)?).await?;
///     tx.commit().await?;
/// }
/// # assert!(matches!(idempotency.begin(rowlock::Scope("customer:7").key("order-4711"), &request).await?, Begun::Replay(_)));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it frees the key"]
pub struct IdempotencyGuard {
    pub(super) inner: RecordGuard,
    pub(super) core: Arc<Core>,
    pub(super) bounds: Bounds,
    fingerprint: Fingerprint,
    is_retry: bool,
    pub(super) steps: Steps,
    /// An outcome was written in a transaction. It counts if that transaction commits.
    pub(super) in_tx: AtomicBool,
    /// Dropped after `inner`: those who wait for it look after the end of the attempt was sent.
    pub(super) flight: Flight,
}

impl fmt::Debug for IdempotencyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyGuard")
            .field("record", self.inner.key())
            .field("attempt", &self.inner.grant.fence())
            .field("has_ended", &self.inner.has_ended())
            .finish_non_exhaustive()
    }
}

impl IdempotencyGuard {
    pub(super) fn new(
        (inner, core): (RecordGuard, &Arc<Core>),
        bounds: Bounds,
        (fingerprint, is_retry): (Fingerprint, bool),
        flight: Flight,
    ) -> Self {
        Self {
            inner,
            core: Arc::clone(core),
            bounds,
            fingerprint,
            is_retry,
            steps: Steps::default(),
            in_tx: AtomicBool::new(false),
            flight,
        }
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &RecordKey {
        self.inner.key()
    }

    /// The number of the attempt: greater than the number of every earlier attempt of the key, for ever, even after
    /// the record was removed. Use it as a fence: send it with writes to other systems.
    #[must_use]
    pub fn attempt(&self) -> i64 {
        self.inner.grant.fence()
    }

    /// Whether the key has a record of an earlier attempt. That attempt may have done steps.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.is_retry
    }

    /// Whether this attempt holds its lease, by the local clock and the last renewal. Only the statement that ends the
    /// attempt decides.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.grant.is_held()
    }

    /// Resolves when the lease is lost: stop the work then. Never resolves if the attempt ends instead.
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.inner.lost().await
    }

    /// A key for the server that a step calls, such as a payment provider's idempotency key: 32 characters of
    /// hexadecimal, derived from scope, key, fingerprint and step, so it is the same in every attempt. (After the key
    /// is forgotten here, another request gets another downstream key, because the other server may remember longer.)
    ///
    /// From this call on, the key belongs to its request, also when the attempt is released or is abandoned: another
    /// request gets [`Begun::Mismatch`](crate::Begun::Mismatch), because the other server may have done the step.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Key`](crate::InvalidError::Key) for an invalid name.
    pub fn downstream_key(&self, step: &str) -> Result<String, Error> {
        check_step(step)?;
        self.inner.bind();
        Ok(self.record().downstream(&self.fingerprint, step))
    }

    /// Records the outcome in the caller's transaction. The outcome and all other writes of the transaction commit
    /// together, or not at all. No other attempt can take over before the transaction ends. Commit next, and drop the
    /// guard. After a rollback the attempt goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Superseded`]: another attempt has taken over, or this one has ended.
    /// [`RecordError::StepUnknown`](crate::RecordError::StepUnknown), as for [`complete`](Self::complete).
    /// [`RecordError::OutcomeTooLarge`](crate::RecordError::OutcomeTooLarge). A transaction of another database, or
    /// one that is over, read only or must begin again (under REPEATABLE READ on PostgreSQL, or on MariaDB with
    /// `innodb_snapshot_isolation`, a renewal of the lease can cause that). After any error, roll back; the attempt
    /// can be completed in another transaction.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn complete_in<T: Transaction>(
        &self,
        tx: &mut T,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        // An attempt that has ended says so before all else.
        self.check_running("complete")?;
        self.check_steps()?;
        let end = self.bounds.done(outcome)?;
        let core = &self.core;
        let context = Context::in_tx(core, self.record().subject(), "complete", tx)?;
        let told = tx.connection().tx_complete(&self.inner.ask(end)).await;
        match context.told(told)? {
            FinishOutcome::Ended => {
                self.in_tx.store(true, Ordering::Release);
                self.inner.grant.close();
                // Whether the transaction commits, only the database tells.
                self.flight.end_silently();
                Ok(())
            }
            FinishOutcome::Superseded | FinishOutcome::Locked => Err(self.superseded("complete")),
        }
    }

    /// Records the outcome, for work outside of a transaction of this database.
    ///
    /// The first outcome of an attempt counts. After [`complete_in`](Self::complete_in) and a commit, the same outcome
    /// is `Ok`, and a different outcome is an error. After a `complete` that returned `Ok`, every further call is an
    /// error. (While the transaction of `complete_in` is open, this waits for its end.)
    ///
    /// # Errors
    ///
    /// [`Error::Superseded`]: another attempt has taken over, or this one has ended.
    /// [`RecordError::StepUnknown`](crate::RecordError::StepUnknown): a [step that must not be
    /// repeated](Self::step_once) may have happened, and an outcome would hide that. Find out, and report it first
    /// with [`step_happened`](Self::step_happened) or [`step_not_done`](Self::step_not_done); or drop the guard, and
    /// the record becomes unknown. [`RecordError::OutcomeTooLarge`](crate::RecordError::OutcomeTooLarge). A database
    /// out of reach, or [`Error::OutcomeUnknown`]: call it again.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background, and dropping the guard does not free the key. (If the database
    /// refuses the outcome, others take over when the lease ends.)
    pub async fn complete(&self, outcome: &Outcome) -> Result<(), Error> {
        // An attempt that has ended says so before all else.
        self.check_running("complete")?;
        self.keep_known().await?;
        self.check_steps()?;
        let end = self.bounds.done(outcome)?;
        self.end("complete", end).await?;
        self.flight.kept(outcome);
        Ok(())
    }

    /// Gives the attempt up in good order, for a failure that may pass: the key is free, the next attempt runs the
    /// work again, and this attempt does not count as abandoned. During a [step that must not be
    /// repeated](Self::step_once) the record becomes unknown instead.
    ///
    /// # Errors
    ///
    /// [`Error::Superseded`]: another attempt has taken over. A database out of reach: dropping the guard then tries
    /// the release again in the background, and the attempt does not count as abandoned.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    pub async fn release(&self) -> Result<(), Error> {
        if let Err(error) = self.keep_known().await {
            let record = self.record();
            tracing::warn!(%error, %record, "the result of a step is not kept: the record becomes unknown");
        }
        self.end("release", self.inner.give_up()).await?;
        self.flight.end_silently();
        Ok(())
    }

    /// Call it when the work is done: dropping the guard then does not free the key, so the work is not repeated at
    /// once. Other attempts take over when the lease has run out.
    ///
    /// For an outcome that cannot be recorded yet: keep trying [`complete`](Self::complete). A crash of the process
    /// has the same effect as dropping the guard. [`release`](Self::release) still frees the key.
    pub fn keep_claimed(&self) {
        self.inner.has_worked();
    }

    async fn end(&self, doing: &'static str, end: RecordEnd) -> Result<(), Error> {
        self.check_running(doing)?;
        match self.inner.finish(end).await? {
            FinishOutcome::Ended => {
                // The outcome that `complete_in` wrote was rolled back, or equals this one.
                self.in_tx.store(false, Ordering::Release);
                Ok(())
            }
            FinishOutcome::Superseded | FinishOutcome::Locked => {
                if self.inner.has_ended() {
                    self.flight.end_silently();
                }
                Err(self.superseded(doing))
            }
        }
    }

    pub(super) fn check_running(&self, doing: &'static str) -> Result<(), Error> {
        if !self.inner.has_ended() {
            return Ok(());
        }
        Err(self.ended(doing, "this attempt has ended before"))
    }

    pub(super) fn superseded(&self, doing: &'static str) -> Error {
        events::superseded(self.record(), self.attempt(), doing);
        self.ended(doing, SUPERSEDED)
    }

    fn ended(&self, doing: &'static str, reason: &'static str) -> Error {
        Error::Superseded {
            doing,
            record: self.record().clone(),
            reason: if self.in_tx.load(Ordering::Acquire) {
                "another attempt has taken over, or the outcome of `complete_in` counts: \
                 its transaction is open or committed"
            } else {
                reason
            },
        }
    }
}

const SUPERSEDED: &str = "another attempt has taken over, or this one has ended";

#[cfg(all(test, feature = "sqlite"))]
#[path = "guard_tests.rs"]
mod tests;
