//! Releases by force.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use uuid::Uuid;

use super::Admin;
use crate::model::{Error, Kind, LockInfo, Name, Subject};
use crate::runtime::batch::head::{JobHead, Manner};
use crate::store::verbs::Store;
use crate::store::verbs::lease::force_release;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::row::LockRow;

/// How many permits one statement frees.
const TOGETHER: usize = 256;

/// The grants that are freed. `None`: all.
type Only = Option<Arc<[Uuid]>>;

/// (A damaged row has no grant: nobody loses it.)
fn is_meant(only: &Only, grant_id: Option<Uuid>) -> bool {
    let named = only.as_deref().zip(grant_id);
    named.is_none_or(|(only, id)| only.contains(&id))
}

impl Admin<'_> {
    /// Releases the lease of `name` by force, and returns it. For administrators. Of a read/write lock or a semaphore
    /// it releases all permits, and returns the one that was granted first. If it cannot free one of them, it frees
    /// the others, and returns the error.
    ///
    /// It frees only leases. If a transaction has locked or pinned the name, it waits for half of the
    /// [`operation_timeout`](crate::Builder::operation_timeout), or for all of it when others wait too; end such a
    /// transaction in the server.
    ///
    /// A holder of this client notices at once. A holder of another client may go on working until its next renewal,
    /// within a third of its TTL (in a session: until the look after a renewal of the session). To prevent an overlap,
    /// stop the holder first, or have the resource check the fence. Later fences are greater. A damaged row is
    /// repaired.
    ///
    /// # Errors
    ///
    /// An invalid name, or a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a statement that was sent: it frees the holder that it found, and no later
    /// one. Nothing is sent afterwards: further permits stay held, and a release that waits for its turn is not done.
    pub async fn force_release<N>(self, name: N) -> Result<Option<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let freed = self.free_all(&name, &None).await?;
        // A row that cannot be read was freed, too. A lease that had run out had no holder.
        let first = freed.into_iter().next().filter(LockRow::is_live);
        Ok(first.and_then(|row| row.info().ok()))
    }

    /// Releases these grants of `name` by force, and no others; returns those that were held until now. For a person
    /// who has been [shown](Self::holders) who would lose the name: who has got it since, keeps it. Otherwise it is
    /// [`force_release`](Self::force_release).
    ///
    /// # Errors
    ///
    /// An invalid name, or a database out of reach.
    ///
    /// # Cancel safety
    ///
    /// As for [`force_release`](Self::force_release).
    pub async fn force_release_grants<N>(
        self,
        name: N,
        grants: &[Uuid],
    ) -> Result<Vec<LockInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let freed = self.free_all(&name, &Some(grants.into())).await?;
        let freed = freed.into_iter().filter(LockRow::is_live);
        Ok(freed.filter_map(|row| row.info().ok()).collect())
    }

    /// Frees all grants of a name, or those that are named, in the order in which they were granted.
    async fn free_all(self, name: &Name, only: &Only) -> Result<Vec<LockRow>, Error> {
        let mut all: Vec<LockRow> = self.free(name, only).await?.into_iter().collect();
        let (kind, mut permits) = if all.is_empty() {
            self.permits(name).await?
        } else {
            (Kind::Lock, Vec::new())
        };
        permits.retain(|permit| is_meant(only, permit.grant_id));
        let mut failed = None;
        let (freed, in_doubt) = self.free_together(name, &permits).await;
        for permit in permits {
            let is_in = |ids: &HashSet<Uuid>| permit.grant_id.filter(|id| ids.contains(id));
            if is_in(&freed).is_some() {
                all.push(permit);
                continue;
            }
            let Some(name) = Name::from_bytes(&permit.name) else {
                continue;
            };
            match self.free(&name, only).await {
                Ok(Some(freed)) => all.extend(Some(freed).filter(LockRow::is_live)),
                // The statement whose answer was lost has freed it.
                Ok(None) => {
                    if let Some(id) = is_in(&in_doubt) {
                        self.core().holdings.guards.freed(id);
                        all.push(permit);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.pass_on(name, kind).await;
        failed.map_or(Ok(all), Err)
    }

    /// Frees the permits that no transaction has locked, with one statement for each [`TOGETHER`] of them, and returns
    /// their grant ids; and those of a statement that has failed, which may have happened. Permits of sessions are
    /// left out: the clients of the sessions have to be told.
    async fn free_together(
        self,
        name: &Name,
        permits: &[LockRow],
    ) -> (HashSet<Uuid>, HashSet<Uuid>) {
        let lease = |permit: &LockRow| {
            Some(ReleaseParams {
                name: Name::from_bytes(&permit.name)?,
                grant_id: permit.grant_id.filter(|_| permit.session.is_none())?,
                fence: permit.fence,
                was_queued: false,
            })
        };
        let leases: Vec<ReleaseParams> = permits.iter().filter_map(lease).collect();
        let (mut all, mut in_doubt) = (HashSet::new(), HashSet::new());
        for params in leases.chunks(TOGETHER) {
            let ids: Vec<Uuid> = params.iter().map(|lease| lease.grant_id).collect();
            let (params, core) = (params.to_vec(), self.core().clone());
            let free = async move |store: &mut dyn Store| {
                let freed = store.lease_release_locks(&params).await?;
                let freed = params.iter().zip(freed);
                let freed = freed.filter(|(_, freed)| *freed == FreeOutcome::Released);
                let freed: Vec<Uuid> = freed.map(|(lease, _)| lease.grant_id).collect();
                // As for a single one.
                for grant_id in &freed {
                    core.holdings.guards.freed(*grant_id);
                }
                Ok(freed)
            };
            match self.core().lanes.run_slow(self.order(name), free).await {
                Ok(freed) => all.extend(freed),
                Err(_) => in_doubt.extend(ids),
            }
        }
        (all, in_doubt)
    }

    fn order(self, name: &Name) -> JobHead {
        let subject = Subject::Lock(name.clone());
        JobHead {
            manner: Manner::Order,
            ..self.core().lanes.wish(subject, "force release")
        }
    }

    async fn free(self, name: &Name, only: &Only) -> Result<Option<LockRow>, Error> {
        let head = self.order(name);
        let (name, core, only) = (name.clone(), self.core().clone(), only.clone());
        let seen = Arc::new(OnceLock::new());
        let free = async move |store: &mut dyn Store| {
            let timeout = core.holdings.settings.operation_timeout;
            let is_meant = |id| is_meant(&only, id);
            let freed = force_release(store, &name, &seen, is_meant, timeout).await;
            // This client knows it at once, also when its caller has gone: its tasks would take a lease that lingers.
            // The answer may be lost.
            if let Some(grant_id) = freed.as_ref().ok().and_then(|row| row.as_ref()?.grant_id) {
                core.holdings.guards.freed(grant_id);
            }
            drop(core.queue.keepers.recall(&name));
            freed
        };
        self.core().lanes.run_slow(head, free).await
    }
}
