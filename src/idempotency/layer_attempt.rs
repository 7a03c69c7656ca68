//! What a layer asks of the [guard](IdempotencyGuard) of an attempt whose work is a handler that the layer does not
//! know.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::events;
use super::guard::IdempotencyGuard;
use super::sealed;
use super::step::StepToDo;
use super::step_state::Repeat;
use crate::model::{Error, Outcome, check_any_step};

/// An attempt whose work is a handler, for a layer that runs handlers that it does not know: methods of
/// [`IdempotencyGuard`]. (Sealed.)
pub trait LayerAttempt: sealed::Sealed {
    /// Begins the work of this attempt as one step that must not be repeated. The step is open until the attempt ends.
    /// For a layer, which runs a handler that it does not know.
    ///
    /// The outcome of the attempt is the result of the step, so completing the attempt also closes the step. When the
    /// attempt ends otherwise, or the process crashes, the record becomes [`Begun::Unknown`](crate::Begun::Unknown):
    /// the [reconcile hook](crate::Idempotency::reconcile) or a person finds out. Before you release an attempt that
    /// did nothing, call [`whole_not_done`](Self::whole_not_done).
    ///
    /// `Ok(None)`: do the work now. `Ok(Some(outcome))`: an earlier attempt did the work, and the hook or a person
    /// reported this outcome; complete this attempt with it.
    ///
    /// `step` is the name of the step, 1 to 255 bytes without NUL. Only this step's name may begin with `http:`, so no
    /// step of the work can have the same name. The work can have [steps](IdempotencyGuard::step) that may be
    /// repeated, and no other step that must not be.
    ///
    /// # Errors
    ///
    /// [`RecordError::StepRunning`](crate::RecordError::StepRunning) when a step of this guard is running;
    /// [`RecordError::StepUnknown`](crate::RecordError::StepUnknown) when another step is open; [`Error::Superseded`];
    /// an invalid name; a database out of reach. After an error, do not do the work.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no open step: if the step has begun, it is undone in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// # async fn handler() -> Result<&'static str, &'static str> { Ok("paid") }
    /// # use rowlock::{Begun, Fingerprint, Outcome};
    /// use rowlock::layer::{LayerAttempt as _, LayerKeys as _};
    ///
    /// # let request = Fingerprint::of("");
    /// if let Begun::New(guard) = rowlock.idempotency().begin_http("alice", "order-17", &request).await? {
    ///     match guard.begin_whole("http:handler").await? {
    ///         Some(found) => guard.complete(&found).await?,
    ///         None => match handler().await {
    ///             Ok(response) => guard.complete(&Outcome::new("text/plain", response)?).await?,
    ///             // It may have happened: the record becomes unknown.
    ///             Err(_) => guard.release().await?,
    ///         },
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn begin_whole(
        &self,
        step: &str,
    ) -> impl Future<Output = Result<Option<Outcome>, Error>> + Send;

    /// Reports that the work of [`begin_whole`](Self::begin_whole) had no effect, and will have none.
    /// [`release`](IdempotencyGuard::release) then frees the key. Does nothing when `step` is not open.
    ///
    /// # Errors
    ///
    /// The errors of [`step_not_done`](IdempotencyGuard::step_not_done).
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    fn whole_not_done(&self, step: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// How long the lease lasts after a renewal: the setting [`Idempotency::lease`](crate::Idempotency::lease).
    #[must_use]
    fn lease(&self) -> Duration;

    /// Checks that an outcome of `bytes` bytes can be kept. Call it before the effect, if you know the size.
    ///
    /// # Errors
    ///
    /// [`RecordError::OutcomeTooLarge`](crate::RecordError::OutcomeTooLarge).
    fn ensure_fits(&self, bytes: usize) -> Result<(), Error>;

    /// Whether the attempt has ended: [`complete`](IdempotencyGuard::complete) recorded its outcome, it was
    /// [released](IdempotencyGuard::release), or a call found that another attempt has taken over. After
    /// [`complete_in`](IdempotencyGuard::complete_in) this is false, because the transaction may roll back. Does not
    /// ask the database.
    #[must_use]
    fn has_ended(&self) -> bool;

    /// Whether [`complete_in`](IdempotencyGuard::complete_in) has recorded an outcome, which counts if its transaction
    /// commits. Does not ask the database.
    #[must_use]
    fn is_completed_in_tx(&self) -> bool;

    /// Call this when the transaction of [`complete_in`](IdempotencyGuard::complete_in) failed, or when it is unknown
    /// whether it committed: [`is_completed_in_tx`](Self::is_completed_in_tx) is false from then on. The database
    /// still decides.
    fn completion_did_not_commit(&self);

    /// Makes dropping the guard free the key without counting this attempt as abandoned. For code that knows that no
    /// work was done, such as a layer whose handler never ran.
    ///
    /// It takes effect only when the guard is dropped, and sends nothing to the database before. A
    /// [released](IdempotencyGuard::release) attempt does not count either.
    fn do_not_count(&self);

    /// Whether [`keep_claimed`](IdempotencyGuard::keep_claimed) was called, and no
    /// [`release`](IdempotencyGuard::release) after it. A layer that runs a handler asks before it releases the
    /// handler's attempt.
    fn is_kept_claimed(&self) -> bool;

    /// Says that the work is done and that its outcome could not be kept: the log gets an error, and the metrics count
    /// the outcome as lost. For a layer that has tried for long enough to [complete](IdempotencyGuard::complete) an
    /// attempt whose key it [keeps claimed](IdempotencyGuard::keep_claimed). When the lease is over, a retry runs the
    /// work again.
    fn outcome_is_lost(&self);
}

impl LayerAttempt for IdempotencyGuard {
    async fn begin_whole(&self, step: &str) -> Result<Option<Outcome>, Error> {
        check_any_step(step)?;
        let running = self.enter_any(step)?;
        match self.begin_step(&running, Repeat::Never).await? {
            StepToDo::Fresh(_) => {
                self.steps.state().is_whole = true;
                Ok(None)
            }
            StepToDo::Done(outcome) => Ok(Some(outcome)),
        }
    }

    async fn whole_not_done(&self, step: &str) -> Result<(), Error> {
        check_any_step(step)?;
        let running = self.enter_any(step)?;
        self.not_done(&running).await
    }

    fn lease(&self) -> Duration {
        self.inner.grant.ttl
    }

    fn ensure_fits(&self, bytes: usize) -> Result<(), Error> {
        self.bounds.check("the outcome", bytes)
    }

    fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    fn is_completed_in_tx(&self) -> bool {
        self.in_tx.load(Ordering::Acquire)
    }

    fn completion_did_not_commit(&self) {
        self.in_tx.store(false, Ordering::Release);
    }

    fn do_not_count(&self) {
        self.inner.pardon();
    }

    fn is_kept_claimed(&self) -> bool {
        self.inner.is_kept_claimed()
    }

    fn outcome_is_lost(&self) {
        events::lost(self.record(), self.attempt());
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::client::Rowlock;
    use crate::idempotency::{Begun, StepFailed};
    use crate::model::{Fingerprint, Scope};

    #[tokio::test]
    async fn only_the_step_that_was_begun_can_be_said_not_to_have_happened() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/a.db?mode=rwc", dir.path().display());
        let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
        let begun = idempotency.begin(Scope("scope").key("k"), Fingerprint::of("request"));
        let Begun::New(guard) = begun.await.unwrap() else {
            panic!("it is new")
        };
        assert_eq!(guard.begin_whole("respond").await.unwrap(), None);
        let other = || guard.step_once("letter", async { Ok::<_, StepFailed<Error>>(7) });
        for (not_done, free) in [("another", false), ("respond", true)] {
            guard.step_not_done(not_done).await.unwrap();
            let letter = other().await;
            assert_eq!(letter.is_ok(), free, "{letter:?}");
        }
        let info = idempotency
            .inspect(Scope("scope").key("k"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(info.open_step, None);
    }
}
