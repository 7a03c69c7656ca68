//! Running work while locks are held.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use super::Held;
use crate::model::{Error, Loss, Name};

/// Fails if one of the locks was released, or is lost.
pub(super) fn check(held: &[Held], doing: &'static str) -> Result<(), Error> {
    for held in held {
        let name = || held.name().clone();
        if held.guard.is_released() {
            return Err(Error::Released {
                doing,
                name: name(),
            });
        }
        if let Some(loss) = held.loss() {
            return Err(Error::Lost { name: name(), loss });
        }
    }
    Ok(())
}

/// Resolves when the first of the locks is lost.
pub(super) async fn first_lost(held: &[Held]) -> (Name, Loss) {
    let lost = held.iter().map(|held| async move {
        let loss = held.lost().await;
        (held.name().clone(), loss)
    });
    first(lost.collect()).await
}

/// Resolves with the first of the futures that resolves.
pub(super) async fn first<T>(futures: Vec<impl Future<Output = T>>) -> T {
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|cx| {
        let mut polls = futures.iter_mut().map(|future| future.as_mut().poll(cx));
        polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
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
