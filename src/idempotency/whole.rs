//! The whole work of an attempt as one step: begun by one call, and ended with the attempt.

use super::guard::IdempotencyGuard;
use super::step::StepToDo;
use super::steps::Repeat;
use crate::model::{Error, Outcome, check_any_step};

impl IdempotencyGuard {
    /// Begins the work of this attempt as one step that must not be repeated: from here on the work is in doubt, until the attempt
    /// ends. For code that runs work that it does not know, as a layer runs a handler.
    ///
    /// The outcome of the attempt tells what the step came to, so the attempt can be completed without a word about the step. When
    /// the attempt ends otherwise, or the process crashes, the record becomes [`Begun::Unknown`](crate::Begun::Unknown): the
    /// [reconcile hook](crate::Idempotency::reconcile) or a person finds out. Before you release an attempt that did nothing, say so with
    /// [`whole_not_done`](Self::whole_not_done).
    ///
    /// `Ok(None)`: do the work now. `Ok(Some(outcome))`: an earlier attempt did the work, and the hook or a person has found this
    /// outcome; complete this attempt with it.
    ///
    /// `step` names it, 1 to 255 bytes without NUL. The name may begin with `http:` here, and in no other step, so no step of the work
    /// can have the same name. The work can have [steps](Self::step) that may be repeated, and no other one that must not be.
    ///
    /// # Errors
    ///
    /// [`Error::StepRunning`] when a step of this guard runs; [`Error::StepUnknown`] when another one is open;
    /// [`Error::Superseded`]; a refused name; a database out of reach. After an error, do not do the work.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future begins nothing: a step that was begun for it is undone in the background.
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

    /// The work that [`begin_whole`](Self::begin_whole) has begun did nothing, and will not: [`release`](Self::release) then frees the
    /// key. Does nothing when `step` is not open.
    ///
    /// # Errors
    ///
    /// Those of [`step_not_done`](Self::step_not_done).
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
