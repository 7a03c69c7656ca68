//! Work under a lock, in one call: acquire, work, release.

use crate::lock::{Held, Lock};
use crate::model::Error;

/// Acquires `lock`, runs `work` while the lease is held, and releases the lease. The attribute
/// [`locked`](https://docs.rs/rowlock/latest/rowlock/attr.locked.html) does this to a whole function.
///
/// It waits for the lease as long as [`Lock::wait`] says (for ever when not set; with a wait of zero it asks once).
/// When the lease is lost, it drops `work` at its next await point, as [`Held::with`] does.
///
/// The release is awaited: when this returns, the name is free for the next holder. If the release fails, `work` is
/// still done, and its result is returned: an error would make the caller do the work again. rowlock logs a warning,
/// and the name is free when the lease ends, within its TTL. It also logs a warning if the lease was lost after the
/// last await of `work`. To act on that, check the guard at the end of `work` ([`Held::is_held`], or a
/// [pin](Held::pin)).
///
/// # Errors
///
/// The errors of [`Lock::acquire`]. [`Error::Lost`] and [`Error::CutOff`], as for [`Held::with`]; then this function
/// returns at once, and the guard is released in the background. An error of `work` is a part of its result `T`.
///
/// # Panics
///
/// Outside of a tokio runtime with timers (`enable_time`).
///
/// # Cancel safety
///
/// Dropping the future drops `work`, and releases the lease in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// use rowlock::attributes::while_locked;
///
/// let lock = rowlock.lock("stock:42");
/// let fence = while_locked(&lock, async |held| held.fence()).await?;
/// assert!(rowlock.inspect("stock:42").await?.is_none());
/// # assert!(fence > 0);
/// # Ok(())
/// # }
/// ```
pub async fn while_locked<T>(lock: &Lock, work: impl AsyncFnOnce(&Held) -> T) -> Result<T, Error> {
    let held = lock.acquire().await?;
    let done = held.with(async || work(&held).await).await?;
    let name = held.name();
    match held.release().await {
        Err(Error::Lost { loss, .. }) => {
            tracing::warn!(%name, %loss, "a lock was lost before its work was done: the end of the work was not protected");
        }
        Ok(()) => {}
        Err(error) => {
            tracing::warn!(%name, %error, "a lock is not released: it is free when its lease ends");
        }
    }
    Ok(done)
}
