//! Re-entry: an owner enters again a lock that it already holds.
//!
//! # Overview
//!
//! An owner is not a thread, a task, a process or a host. It is a value, [`Owner`], that the caller
//! passes on. Acquiring a name that this owner holds adds a guard to the grant, with the same fence. The
//! name is free when the last guard is released. When the lease is lost, all its guards lose it.
//!
//! # Failure
//!
//! Re-entry, and a release while other guards stay, happen in this process only: rowlock does not ask the database,
//! which may be out of reach. (A transaction that has pinned the lease keeps its row locked, and may belong to this
//! owner.) The local deadline decides, as for [`Held::is_held`](crate::Held::is_held).

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::model::{Error, InvalidError, Name};
use crate::runtime::Core;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::guard::Guard;

/// An identity that can enter again a lock that it holds: made by [`Rowlock::owner`](crate::Rowlock::owner) and
/// passed to [`Lock::owner`](crate::Lock::owner).
///
/// Clones are the same owner. An owner belongs to the client that made it, and cannot be passed to another process.
/// The lease keeps the TTL, the `max_hold` and the fence of its first acquire. Re-entry does not renew the lease or
/// ask the database: it succeeds at once while the lease [is held](crate::Held::is_held).
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
/// inner.release().await?;
/// assert!(outer.is_held());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Owner {
    core: Weak<Core>,
    grants: Arc<OwnedGrants>,
    name: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct OwnedGrants {
    known: Mutex<HashMap<Name, Weak<Grant>>>,
    /// A task locks the mutex of a name while it asks for a fresh grant of that name.
    asking: Mutex<HashMap<Name, Weak<tokio::sync::Mutex<()>>>>,
    /// Notified when `known` has a new grant.
    granted: tokio::sync::Notify,
}

impl Owner {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::downgrade(core),
            grants: Arc::default(),
            name: None,
        }
    }

    /// Names this owner: 1 to 200 bytes without NUL, for people to read. rowlock finds deadlocks between owners with
    /// names, in all processes.
    ///
    /// While such an owner holds locks and [waits](crate::Lock::acquire) for another one, its client looks for a
    /// circle of waits twice a second. The wait that joined its queue last fails with [`Error::Deadlock`], within two
    /// seconds. The others go on when its owner has released what it holds.
    ///
    /// rowlock assumes that a waiting owner releases and acquires nothing. If another task of the owner does, rowlock
    /// may report a circle that the release would have ended, or miss a circle. Give each flow of work a name of its
    /// own. Only locks count that this client acquired for this owner: no read/write locks, no semaphores, no
    /// transactions.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// # let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let (one, two) = (rowlock.owner().named("transfer 1"), rowlock.owner().named("transfer 2"));
    /// let a = rowlock.lock("a").owner(&one).acquire().await?;
    /// let b = rowlock.lock("b").owner(&two).acquire().await?;
    /// let (a_waits, b_waits) = (rowlock.lock("b").owner(&one), rowlock.lock("a").owner(&two));
    /// let failed = tokio::select! {
    ///     failed = a_waits.acquire() => failed.unwrap_err(),
    ///     failed = b_waits.acquire() => failed.unwrap_err(),
    /// };
    /// assert!(matches!(failed, rowlock::Error::Deadlock { .. }));
    /// # drop((a, b));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        let name = Some(name.into());
        Self { name, ..self }
    }

    /// Its name, and the grants that it holds. `None`: it has no name, or holds nothing.
    pub(super) fn holds(&self) -> Option<(&str, Vec<Uuid>)> {
        let name = self.name.as_deref()?;
        let known = self.grants.known.lock();
        let held = known.values().filter_map(Weak::upgrade);
        let held: Vec<Uuid> = held
            .filter(|grant| grant.is_held())
            .map(|grant| grant.id)
            .collect();
        (!held.is_empty()).then_some((name, held))
    }

    pub(super) fn check(&self, core: &Arc<Core>) -> Result<(), Error> {
        if let Some(name) = &self.name
            && (name.is_empty() || name.len() > 200 || name.contains('\0'))
        {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "owner",
                reason: "its name is 1 to 200 bytes without NUL",
            }));
        }
        if self.core.as_ptr() == Arc::as_ptr(core) {
            return Ok(());
        }
        Err(Error::Invalid(InvalidError::Setting {
            setting: "owner",
            reason: "it was made by another client: use Rowlock::owner of this one",
        }))
    }

    /// The right to ask for a fresh grant of `name`. Tasks of one owner never race for a name: the next task waits
    /// here.
    pub(super) async fn asking(&self, name: &Name) -> tokio::sync::OwnedMutexGuard<()> {
        let asking = {
            let mut asking = self.grants.asking.lock();
            if let Some(turns) = asking.get(name).and_then(Weak::upgrade) {
                turns
            } else {
                asking.retain(|_, turns| turns.strong_count() > 0);
                let turns = Arc::default();
                asking.insert(name.clone(), Arc::downgrade(&turns));
                turns
            }
        };
        asking.lock_owned().await
    }

    /// Enters as soon as another task of this owner is granted `name`.
    pub(super) async fn entered(&self, core: &Arc<Core>, name: &Name) -> Guard {
        loop {
            let mut granted = pin!(self.grants.granted.notified());
            // From here on no notification is missed.
            granted.as_mut().enable();
            if let Some(guard) = self.enter(core, name) {
                return guard;
            }
            granted.await;
        }
    }

    /// Adds a guard to the grant of `name`. `None` when the owner needs a fresh grant.
    pub(super) fn enter(&self, core: &Arc<Core>, name: &Name) -> Option<Guard> {
        let grant = self.grants.known.lock().get(name).and_then(Weak::upgrade)?;
        let is_held = grant.is_held();
        is_held
            .then(|| Guard::new(grant, Arc::clone(&core.holdings)))
            .flatten()
    }

    pub(super) fn granted(&self, grant: &Arc<Grant>) {
        let mut known = self.grants.known.lock();
        known.retain(|_, grant| grant.strong_count() > 0);
        known.insert(grant.name.clone(), Arc::downgrade(grant));
        drop(known);
        self.grants.granted.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn attempts_of_one_owner_for_different_names_do_not_wait_for_each_other() {
        let me = Owner {
            core: Weak::new(),
            grants: Arc::default(),
            name: None,
        };
        let name = |name: &str| Name::new(name).unwrap();
        let a = me.asking(&name("a")).await;
        let b = me.asking(&name("b")).await;
        let name_a = name("a");
        let mut again = pin!(me.asking(&name_a));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(again.as_mut().poll(&mut cx).is_pending());
        drop(b);
        assert!(again.as_mut().poll(&mut cx).is_pending());
        drop(a);
        assert!(matches!(again.as_mut().poll(&mut cx), Poll::Ready(_)));
        // A name without a waiting task is dropped.
        drop(me.asking(&name("c")).await);
        let _d = me.asking(&name("d")).await;
        let asking = me.grants.asking.lock();
        assert!(!asking.contains_key(&name("c")) && asking.contains_key(&name("d")));
    }
}
