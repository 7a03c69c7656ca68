//! Re-entry: entering a lock again that one holds already.
//!
//! # Overview
//!
//! There is no hidden identity: neither the thread nor the task, the process or the host decides
//! whether a lock is "mine". An [`Owner`] is a value that the caller passes on. Acquiring a name
//! that this owner holds adds a hold to the grant: same fence, one more in the row's `holds`. The
//! name is free when the last guard is gone. When the lease is lost, all its guards have lost it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{Mutex, oneshot};

use crate::hold::Core;
use crate::hold::grant::Grant;
use crate::hold::op::{Attempt, Enter, Fate, Op};
use crate::{Error, Name};

/// Who may enter a lock again that it holds: made by [`Rowlock::owner`](crate::Rowlock::owner) and
/// passed to [`Lock::owner`](crate::Lock::owner).
///
/// Clones are the same owner. An owner belongs to the client that made it, and cannot be passed to
/// another process. The lease keeps the TTL, the cap and the fence of its first acquire.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let me = rowlock.owner();
/// let outer = rowlock.lock("account:7").owner(&me).acquire().await?;
/// let inner = rowlock.lock("account:7").owner(&me).acquire().await?; // would wait without `owner`
/// assert_eq!(inner.fence(), outer.fence());
/// let _ = inner.release().await?;
/// assert!(outer.is_held());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Owner {
    core: Weak<Core>,
    /// The lock is held while an attempt is under way: attempts of one owner never race.
    grants: Arc<Mutex<HashMap<Name, Weak<Grant>>>>,
}

impl Owner {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::downgrade(core),
            grants: Arc::default(),
        }
    }

    pub(super) fn check(&self, core: &Arc<Core>) -> Result<(), Error> {
        if self.core.as_ptr() == Arc::as_ptr(core) {
            return Ok(());
        }
        Err(Error::InvalidSetting {
            setting: "owner",
            reason: "it was made by another client: use Rowlock::owner of this one",
        })
    }

    /// Enters the grant that this owner has, or takes a fresh one.
    pub(super) async fn enter(
        &self,
        core: &Arc<Core>,
        name: &Name,
        take: impl AsyncFnOnce() -> Result<Attempt, Error>,
    ) -> Result<Attempt, Error> {
        let mut grants = self.grants.lock().await;
        let known = grants.get(name).and_then(Weak::upgrade);
        if let Some(grant) = known.filter(|grant| grant.is_held()) {
            let (reply, entered) = oneshot::channel();
            let enter = Enter {
                grant,
                core: Arc::clone(core),
                reply,
                fate: Fate::within(core.settings.patience),
            };
            core.send(name, Op::Enter(enter));
            if let Some(guard) = entered.await.unwrap_or_else(|_| Err(core.stopped()))? {
                return Ok(Attempt::Held(guard));
            }
        }
        let attempt = take().await?;
        if let Attempt::Held(guard) = &attempt {
            grants.retain(|_, grant| grant.strong_count() > 0);
            grants.insert(name.clone(), Arc::downgrade(guard.grant()));
        }
        Ok(attempt)
    }
}
