//! Running work while locks are held.

use std::future::poll_fn;
use std::pin::pin;
use std::slice;
use std::task::Poll;

use futures_util::future::select_all;

use super::Held;
use crate::model::{Error, Loss, Name};

impl Held {
    /// Runs `work` while the lease is held. When the lease is lost, drops `work` at its next await point.
    ///
    /// The lease is not released afterwards.
    ///
    /// If `work` finishes, its result is returned even if the lease was lost meanwhile: code without an await is not
    /// interrupted, and a transaction that has [pinned](Self::pin) the lease commits however long that takes. So `Ok`
    /// means that the work is done, not that the lease is still held. Before you use the result, check again
    /// ([`is_held`](Self::is_held), a pin, or the [`fence`](Self::fence)).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lease was lost before `work` was done, and no pin happened since `work` began.
    ///   (Statements outside of a transaction, or in one without a pin, may have committed.)
    /// - [`Error::CutOff`]: the lease was lost after a pin that happened since `work` began. The transaction may have
    ///   committed: look before you do the work again.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the lease stays with the guard.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let held = rowlock.lock("report").acquire().await?;
    /// let lines = held.with(async || "work that awaits".len()).await?;
    /// held.release().await?;
    /// # assert_eq!(lines, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Error> {
        while_held(slice::from_ref(self), work).await
    }
}

/// Fails if one of the locks was released, or is lost.
pub(super) fn check(held: &[Held], doing: &'static str) -> Result<(), Error> {
    for held in held {
        held.guard.check(doing)?;
    }
    Ok(())
}

/// Resolves when the first of the locks is lost.
pub(super) async fn first_lost(held: &[Held]) -> (Name, Loss) {
    let lost = held.iter().map(|held| async move {
        let loss = held.lost().await;
        (held.name().clone(), loss)
    });
    select_all(lost.map(Box::pin)).await.0
}

/// Runs `work` while all locks are held. When one is lost, drops `work` at its next await point.
pub(super) async fn while_held<T>(
    held: &[Held],
    work: impl AsyncFnOnce() -> T,
) -> Result<T, Error> {
    check(held, "work under")?;
    let pins = || held.iter().map(|held| held.guard.grant().pins());
    let before: Vec<_> = pins().collect();
    let pinned = || !pins().eq(before.iter().copied());
    let (mut lost, mut work) = (pin!(first_lost(held)), pin!(work()));
    poll_fn(|cx| {
        // Without a pin, the work stops at the loss. With a pin, its transaction may just have committed: poll it
        // first.
        if !pinned()
            && let Poll::Ready((name, loss)) = lost.as_mut().poll(cx)
        {
            return Poll::Ready(Err(Error::Lost { name, loss }));
        }
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        if pinned()
            && let Poll::Ready((name, loss)) = lost.as_mut().poll(cx)
        {
            return Poll::Ready(Err(Error::CutOff { name, loss }));
        }
        Poll::Pending
    })
    .await
}
