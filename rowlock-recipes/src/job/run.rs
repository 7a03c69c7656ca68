//! A run of a job: it keeps the name taken.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::meter;
use rowlock::Held;
use rowlock::{Error, Loss};

/// A job that runs here; made by [`Job::begin`](super::Job::begin).
///
/// # Drop
///
/// Dropping returns at once. In the background the name stays taken for the rest of
/// [`at_least_for`](super::Job::at_least_for), and is then free. The run is shown as
/// [abandoned](rowlock::RunState::Abandoned).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rowlock::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// use std::time::Duration;
/// use rowlock::Error;
/// use rowlock_recipes::Job;
///
/// let job = Job::new(&rowlock, "send-reminders").at_least_for(Duration::from_secs(50));
/// match job.begin().await {
///     Ok(run) => {
///         // … a program is started, and ended when `run.held().lost()` resolves …
///         run.held().end_run(true, "17 reminders").await?;
///         run.leave().await?;
///     }
///     Err(Error::WaitTimeout { .. }) => {} // another machine does it
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a run that is dropped was abandoned"]
pub struct JobRun {
    held: Arc<Held>,
    /// After the grant.
    began: Instant,
    at_least_for: Duration,
    has_left: bool,
}

impl fmt::Debug for JobRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRun")
            .field("held", &self.held)
            .field("rest", &self.rest())
            .finish_non_exhaustive()
    }
}

impl JobRun {
    pub(super) fn new(held: Held, began: Instant, at_least_for: Duration) -> Self {
        Self {
            held: Arc::new(held),
            began,
            at_least_for,
            has_left: false,
        }
    }

    /// The lease of the job's name.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Ends the run: the name stays taken for the rest of `at_least_for`, and is free at once if that is over.
    ///
    /// # Errors
    ///
    /// Those of [`Held::release_in`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub async fn leave(mut self) -> Result<(), Error> {
        let (held, rest) = (Arc::clone(&self.held), self.rest());
        self.ends("left");
        GoesOn::new(async move { leave(&held, rest).await }).await
    }

    /// `outcome`: what the metrics count.
    pub(super) async fn leave_and_warn(mut self, outcome: &'static str) {
        let (held, rest) = (Arc::clone(&self.held), self.rest());
        self.ends(outcome);
        GoesOn::new(async move { leave_and_warn(&held, rest).await }).await;
    }

    fn ends(&mut self, outcome: &'static str) {
        self.has_left = true;
        meter::round(self.held.name(), outcome);
        meter::ran(self.held.name(), self.began.elapsed());
    }

    /// How much longer the name has to stay taken.
    fn rest(&self) -> Duration {
        self.at_least_for.saturating_sub(self.began.elapsed())
    }
}

impl Drop for JobRun {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let rest = self.rest();
        self.ends("abandoned");
        if rest.is_zero() {
            return;
        }
        let held = Arc::clone(&self.held);
        let mut leaving = GoesOn::new(async move { leave_and_warn(&held, rest).await });
        // The first poll sends it, also where no runtime goes on.
        let _ = Pin::new(&mut leaving).poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// A future that goes on when it is dropped, where a runtime does.
struct GoesOn<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> GoesOn<T> {
    fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<T: Send + 'static> Future for GoesOn<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = future.as_mut().poll(cx);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for GoesOn<T> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}

/// Leaves the name taken for `rest`.
async fn leave(held: &Held, rest: Duration) -> Result<(), Error> {
    if rest.is_zero() {
        held.release().await
    } else {
        held.release_in(rest).await
    }
}

async fn leave_and_warn(held: &Held, rest: Duration) {
    match leave(held, rest).await {
        // The caller has the error of a job that took too long.
        Err(Error::Lost { loss, .. }) if loss != Loss::MaxHold => {
            tracing::warn!(name = %held.name(), %loss, "the lease of a job was lost before its end");
        }
        Ok(()) | Err(Error::Lost { .. }) => {}
        Err(error) => {
            tracing::warn!(name = %held.name(), %error, "the name of a job stays taken until its TTL is over");
        }
    }
}
