//! Leases: the verbs that a lane sends, with their parameters and outcomes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::lock_row::RowAction;
use super::permit::PermitStore;
use super::quarantine::QuarantineStore;
use super::queue::{PassParams, PassWhy, QueueStore};
use super::release::{FreeOutcome, ReleaseParams};
use super::row::LockRow;
use super::session::{LeftBehind, SessionStore};
use super::{Store, release};
use crate::model::{Kind, Name};

/// The verbs for leases.
#[async_trait]
pub(crate) trait LeaseStore:
    SessionStore + QueueStore + PermitStore + QuarantineStore + Send
{
    /// Grants a lease on each name without a live one, a pause or waiters, under the next fence:
    /// `max(previous + 1, microseconds of the clock)`.
    ///
    /// One outcome for each, in their order. A name that is held, [paused](super::pause) or has waiters, or whose row
    /// another transaction has locked, is `Busy`. When the reported holder is the ask's own grant, an earlier sending
    /// of this ask took it. While the database is in [quarantine](super::quarantine), every other name is
    /// `Quarantined`.
    async fn lease_take(&mut self, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault> {
        let taken = self.lease_take_once(all).await?;
        self.lease_take_rest(all, taken).await
    }

    /// The rest of [`lease_take`](Self::lease_take): frees the names that [`lease_take_once`](Self::lease_take_once)
    /// has left alone, and asks for these again.
    async fn lease_take_rest(
        &mut self,
        all: &[TakeParams],
        mut taken: Vec<TakeOutcome>,
    ) -> Result<Vec<TakeOutcome>, Fault> {
        let left: Vec<LeftBehind> = taken.iter().filter_map(TakeOutcome::left_behind).collect();
        if !left.is_empty() {
            self.session_reclaim(&left).await?;
            self.lease_take_again(all, &mut taken, |taken| taken.left_behind().is_some())
                .await?;
        }
        let mut is_any_orphaned = false;
        let orphaned = |(_, taken): &(&TakeParams, &TakeOutcome)| taken.is_orphaned();
        for (params, _) in all.iter().zip(&taken).filter(orphaned) {
            is_any_orphaned = true;
            let name = params.name.clone();
            let why = PassWhy::Orphaned;
            self.queue_pass(&PassParams { name, why }).await?;
        }
        if is_any_orphaned {
            self.lease_take_again(all, &mut taken, TakeOutcome::is_orphaned)
                .await?;
        }
        // What is left of these was skipped: a transaction has the row locked, or the session was renewed meanwhile.
        for taken in &mut taken {
            if taken.left_behind().is_some() {
                *taken = TakeOutcome::Busy(None);
            }
        }
        if taken.iter().any(TakeOutcome::is_unexplained)
            && let Some(left) = self.quarantine_left().await?
        {
            for taken in taken.iter_mut().filter(|taken| taken.is_unexplained()) {
                let waiters = taken.waiters();
                *taken = TakeOutcome::Quarantined { left, waiters };
            }
        }
        Ok(taken)
    }

    /// Sends those asks again whose outcomes are like that.
    async fn lease_take_again(
        &mut self,
        all: &[TakeParams],
        taken: &mut [TakeOutcome],
        is_like: for<'a> fn(&'a TakeOutcome) -> bool,
    ) -> Result<(), Fault> {
        let again = all.iter().zip(&*taken).filter(|(_, taken)| is_like(taken));
        let again: Vec<TakeParams> = again.map(|(params, _)| params.clone()).collect();
        let outcomes = self.lease_take_once(&again).await?;
        let those = taken.iter_mut().filter(|taken| is_like(taken));
        for (taken, outcome) in those.zip(outcomes) {
            *taken = outcome;
        }
        Ok(())
    }

    /// The one statement of [`lease_take`](Self::lease_take). It leaves these rows alone, and answers `Busy` with
    /// them: the lock of a session that is not live, and a name with waiters and no live grant.
    async fn lease_take_once(&mut self, all: &[TakeParams]) -> Result<Vec<TakeOutcome>, Fault>;

    /// Extends leases that are live and still belong to the asked grants. An expiry never moves back. An expired lease
    /// is not revived, even if no other holder took it.
    ///
    /// One outcome for each, in their order.
    async fn lease_renew(&mut self, all: &[RenewParams]) -> Result<Vec<RenewOutcome>, Fault>;

    /// Frees leases that are live and still belong to the asked grants. A name with waiters is passed on
    /// ([`queue_pass`](super::queue::QueueStore::queue_pass)), and so is the permit of a permit's name
    /// ([`permit_pass`](super::permit::PermitStore::permit_pass)). A release need not survive a crash of the server: a
    /// lost release leaves a row that expires, or that the client's next look at its session finds.
    ///
    /// One outcome for each, in their order.
    async fn lease_release(&mut self, all: &[ReleaseParams]) -> Result<Vec<FreeOutcome>, Fault> {
        let is_permit = |params: &&ReleaseParams| params.name.of_permit().is_some();
        if !all.iter().any(|params| is_permit(&params)) {
            return match all {
                [params] if params.was_queued => Ok(vec![release::pass_on(self, params).await?]),
                _ => self.lease_release_locks(all).await,
            };
        }
        let locks: Vec<ReleaseParams> = all
            .iter()
            .filter(|params| !is_permit(params))
            .cloned()
            .collect();
        let mut locks = if locks.is_empty() {
            Vec::new()
        } else {
            self.lease_release_locks(&locks).await?
        }
        .into_iter();
        let (mut freed, mut permits) = (vec![FreeOutcome::Superseded; all.len()], Vec::new());
        for (place, params) in all.iter().enumerate() {
            if is_permit(&params) {
                permits.push(place);
            } else if let Some(outcome) = locks.next() {
                freed[place] = outcome;
            }
        }
        release::pass_all_on(self, all, permits, &mut freed).await?;
        Ok(freed)
    }

    /// [`lease_release`](Self::lease_release), where an exchange has freed some already. The outcomes of all.
    async fn lease_release_rest(
        &mut self,
        all: &[ReleaseParams],
        freed: &[bool],
    ) -> Result<Vec<FreeOutcome>, Fault> {
        let rest = all.iter().zip(freed).filter(|(_, is_freed)| !**is_freed);
        let rest: Vec<ReleaseParams> = rest.map(|(params, _)| params.clone()).collect();
        let mut outcomes = vec![FreeOutcome::Released; all.len()];
        if !rest.is_empty() {
            let rest = self.lease_release(&rest).await?;
            let places = outcomes
                .iter_mut()
                .zip(freed)
                .filter(|(_, is_freed)| !**is_freed);
            for ((place, _), outcome) in places.zip(rest) {
                *place = outcome;
            }
        }
        Ok(outcomes)
    }

    /// [`lease_release`](Self::lease_release) for names of locks.
    async fn lease_release_locks(
        &mut self,
        all: &[ReleaseParams],
    ) -> Result<Vec<FreeOutcome>, Fault>;

    /// Frees leases ([`lease_release`](Self::lease_release)), then grants leases ([`lease_take`](Self::lease_take)).
    /// All names differ.
    ///
    /// One outcome for each, in their order.
    async fn lease_exchange(
        &mut self,
        releases: &[ReleaseParams],
        takes: &[TakeParams],
    ) -> Result<(Vec<FreeOutcome>, Vec<TakeOutcome>), Fault> {
        let freed = self.lease_release(releases).await?;
        let taken = self.lease_take(takes).await;
        Ok((freed, taken.map_err(Fault::half_done)?))
    }

    /// Frees a name from the grant that was seen, and returns its holder; `None`: another one has it. Waits for a
    /// locked row, for less than `limit`, even when the caller has gone. Frees a damaged row too.
    async fn lease_force_release(
        &mut self,
        name: &Name,
        seen: Option<Uuid>,
        limit: Duration,
    ) -> Result<Option<LockRow>, Fault>;
}

/// Frees a name from the grant that the first sending has seen, if that one is meant: a sending that waits, or is sent
/// again, must not free the next holder.
pub(crate) async fn force_release(
    store: &mut dyn Store,
    name: &Name,
    seen: &OnceLock<Option<Uuid>>,
    is_meant: impl Fn(Option<Uuid>) -> bool,
    limit: Duration,
) -> Result<Option<LockRow>, Fault> {
    if seen.get().is_none() {
        let row = store.lock_row_as_it_is(name, RowAction::Look).await?;
        let _ = seen.set(row.and_then(|row| row.grant_id));
    }
    let seen = seen.get().copied().flatten();
    if !is_meant(seen) {
        return Ok(None);
    }
    store.lease_force_release(name, seen, limit).await
}

#[derive(Debug, Clone)]
pub(crate) struct TakeParams {
    pub(crate) name: Name,
    /// The id for the new grant: fresh for every acquire.
    pub(crate) grant_id: Uuid,
    /// For the lock of a session: [`FOR_EVER`], or the longest time that it is held.
    pub(crate) ttl: Duration,
    /// A text for people.
    pub(crate) holder: Arc<str>,
    /// The session that the lock belongs to. It was opened before.
    pub(crate) session: Option<Uuid>,
}

impl TakeParams {
    /// The bytes that a session adds to a request: its id, and a longer TTL.
    pub(crate) const IN_SESSION: usize = 44;
}

/// The TTL of a lock that ends with its session only: 1,000 years.
pub(crate) const FOR_EVER: Duration = Duration::from_hours(24 * 365 * 1000);

#[derive(Debug, Clone)]
pub(crate) enum TakeOutcome {
    Granted {
        fence: i64,
    },
    /// `None`: another transaction has the row locked, or the name is changing hands right now.
    Busy(Option<LockRow>),
    /// Nobody has the name, and the database is in quarantine for so long.
    Quarantined {
        left: Duration,
        waiters: u32,
    },
}

impl TakeOutcome {
    /// Not granted; with the row as it was read afterwards.
    pub(crate) fn busy(row: Option<LockRow>) -> Self {
        let tells = |row: &LockRow| {
            row.is_live()
                || row.is_orphaned()
                || row.left_behind().is_some()
                || row.kind != Some(Kind::Lock)
                || row.pause.is_some()
        };
        Self::Busy(row.filter(tells))
    }

    fn left_behind(&self) -> Option<LeftBehind> {
        match self {
            Self::Busy(Some(row)) => row.left_behind(),
            _ => None,
        }
    }

    /// The name has waiters and no live grant: it has to be passed on first.
    fn is_orphaned(&self) -> bool {
        matches!(self, Self::Busy(Some(row)) if row.is_orphaned())
    }

    /// No live grant is in the way.
    fn is_unexplained(&self) -> bool {
        matches!(self, Self::Busy(None)) || self.is_orphaned()
    }

    fn waiters(&self) -> u32 {
        match self {
            Self::Busy(Some(row)) => row.waiters,
            _ => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RenewParams {
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// From now on, by the database's clock.
    pub(crate) ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewOutcome {
    /// The grant is live, with this much time left. When its row was locked, this is the time left before the renewal.
    Live { remaining: Duration },
    /// The name no longer belongs to this grant, or its lease has expired.
    Gone,
}
