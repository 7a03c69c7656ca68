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

use tokio::sync::{Mutex, MutexGuard, oneshot};

use crate::hold::Core;
use crate::hold::grant::Grant;
use crate::hold::guard::Guard;
use crate::hold::op::{Enter, Fate, Op};
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

    /// What this owner holds. Attempts of one owner never race: the next one waits here.
    pub(super) async fn grants(&self) -> Grants<'_> {
        Grants(self.grants.lock().await)
    }
}

/// The grants of an owner, for one attempt.
#[derive(Debug)]
pub(super) struct Grants<'a>(MutexGuard<'a, HashMap<Name, Weak<Grant>>>);

impl Grants<'_> {
    /// One hold more of the grant of `name`; `None` when a fresh one is needed.
    pub(super) async fn enter(
        &self,
        core: &Arc<Core>,
        name: &Name,
    ) -> Result<Option<Guard>, Error> {
        let known = self.0.get(name).and_then(Weak::upgrade);
        let Some(grant) = known.filter(|grant| grant.is_held()) else {
            return Ok(None);
        };
        let (reply, entered) = oneshot::channel();
        let enter = Enter {
            grant,
            core: Arc::clone(core),
            reply,
            fate: Fate::within(core.settings.patience),
        };
        core.send(Op::Enter(enter));
        entered.await.unwrap_or_else(|_| Err(core.stopped()))
    }

    pub(super) fn remember(&mut self, grant: &Arc<Grant>) {
        self.0.retain(|_, grant| grant.strong_count() > 0);
        self.0.insert(grant.name.clone(), Arc::downgrade(grant));
    }
}
