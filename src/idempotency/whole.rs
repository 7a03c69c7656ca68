//! The whole work of an attempt as one step: one call begins it, and the end of the attempt ends it.

use super::guard::IdempotencyGuard;
use super::step::StepToDo;
use super::steps::Repeat;
use crate::model::{Error, Outcome, check_any_step};

impl IdempotencyGuard {
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
    /// step of the work can have the same name. The work can have [steps](Self::step) that may be repeated, and no
    /// other step that must not be.
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
    pub async fn begin_whole(&self, step: &str) -> Result<Option<Outcome>, Error> {
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

    /// Reports that the work of [`begin_whole`](Self::begin_whole) had no effect, and will have none.
    /// [`release`](Self::release) then frees the key. Does nothing when `step` is not open.
    ///
    /// # Errors
    ///
    /// The errors of [`step_not_done`](Self::step_not_done).
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on in the background.
    pub async fn whole_not_done(&self, step: &str) -> Result<(), Error> {
        check_any_step(step)?;
        let running = self.enter_any(step)?;
        self.not_done(&running).await
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::client::Rowlock;
    use crate::idempotency::{Begun, StepFailed};
    use crate::model::Fingerprint;

    #[tokio::test]
    async fn only_the_step_that_was_begun_can_be_said_not_to_have_happened() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/a.db?mode=rwc", dir.path().display());
        let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
        let begun = idempotency.begin("scope", "k", Fingerprint::of("request"));
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
        let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
        assert_eq!(info.open_step, None);
    }
}
