//! A client's session: one row with an expiry, for all locks that the client holds in it.
//!
//! The session is renewed like a lease, by one short statement, however many locks it has. A lock of the session has no renewal of its
//! own. So a renewal cannot notice that a single lock is gone, which happens in two cases:
//!
//! - An administrator frees the lock by force. That raises the number in the session's row.
//! - A failover loses the lock's grant and not the session. A failover breaks the connection.
//!
//! In both cases the renewals [look](Session::check) at all grants of the session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use super::grant::Grant;
use crate::model::Loss;

/// A session, and the grants in it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Until when this process may trust the session.
    pub(crate) grant: Arc<Grant<Uuid>>,
    grants: Mutex<HashMap<Uuid, Weak<Grant>>>,
    checked: Mutex<Checked>,
}

/// What the last looks at the grants have covered.
#[derive(Debug, Default)]
struct Checked {
    /// The number of forced releases.
    forced: i64,
    /// The connections of the last renewals.
    connections: Vec<u64>,
}

/// The most connections over which a client renews.
const CONNECTIONS: usize = 2;

impl Session {
    pub(crate) fn new(grant: Grant<Uuid>) -> Self {
        Self {
            grant: Arc::new(grant),
            grants: Mutex::default(),
            checked: Mutex::default(),
        }
    }

    /// The session has this grant from now on, until [`forget`](Self::forget).
    pub(crate) fn add(&self, grant: &Arc<Grant>) {
        self.grants().insert(grant.id, Arc::downgrade(grant));
    }

    /// The grant was released.
    pub(crate) fn forget(&self, id: Uuid) {
        self.grants().remove(&id);
    }

    /// The grants that this process knows to be committed.
    pub(crate) fn known(&self) -> Vec<Uuid> {
        self.grants().keys().copied().collect()
    }

    /// Whether a renewal that found `forced` over `connection` shows that a grant may be gone.
    pub(crate) fn needs_check(&self, forced: i64, connection: u64) -> bool {
        let checked = self.checked();
        checked.forced != forced || !checked.connections.contains(&connection)
    }

    /// The database has `found`: those of the `known` grants that are missing are lost.
    pub(crate) fn check(&self, known: &[Uuid], found: &[Uuid], forced: i64, connection: u64) {
        let found: std::collections::HashSet<&Uuid> = found.iter().collect();
        for id in known.iter().filter(|id| !found.contains(id)) {
            let grant = self.grants().get(id).and_then(Weak::upgrade);
            if let Some(grant) = grant {
                grant.lose(Loss::TakenOver);
            }
        }
        let mut checked = self.checked();
        checked.forced = forced;
        if !checked.connections.contains(&connection) {
            checked.connections.push(connection);
            let surplus = checked.connections.len().saturating_sub(CONNECTIONS);
            checked.connections.drain(..surplus);
        }
    }

    fn grants(&self) -> MutexGuard<'_, HashMap<Uuid, Weak<Grant>>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checked(&self) -> MutexGuard<'_, Checked> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{ClockError, Moment, Name};

    const TTL: Duration = Duration::from_secs(30);

    fn session() -> Session {
        let id = Uuid::new_v4();
        let (exact, deadline) = (ClockError::new(Duration::ZERO), Moment::now() + TTL);
        Session::new(Grant::new(id, id, 0, TTL, exact, None, deadline))
    }

    fn grant(session: &Session, name: &str) -> Arc<Grant> {
        let (name, exact) = (Name::new(name).unwrap(), ClockError::new(Duration::ZERO));
        let deadline = Moment::now() + TTL;
        let grant = Grant::new(name, Uuid::new_v4(), 1, TTL, exact, None, deadline);
        let grant = Arc::new(grant.in_session(&session.grant));
        session.add(&grant);
        grant
    }

    #[test]
    fn a_grant_that_the_database_does_not_have_is_lost_alone() {
        let session = session();
        let [gone, kept, released] = ["gone", "kept", "released"].map(|name| grant(&session, name));
        session.forget(released.id);
        let known = session.known();
        // It was granted after the look began.
        let late = grant(&session, "late");
        session.check(&known, &[kept.id], 0, 1);
        assert_eq!(gone.loss(), Some(Loss::TakenOver));
        for held in [kept, released, late] {
            assert!(held.is_held(), "{}", held.name);
        }
    }

    #[test]
    fn grants_are_checked_over_a_new_connection_and_after_a_forced_release() {
        let session = session();
        assert!(session.needs_check(0, 7), "the first connection");
        session.check(&[], &[], 0, 7);
        assert!(!session.needs_check(0, 7));
        assert!(session.needs_check(1, 7));
        assert!(session.needs_check(0, 8));
        session.check(&[], &[], 0, 8);
        // The spare connection and the first one take turns.
        assert!(!session.needs_check(0, 7) && !session.needs_check(0, 8));
        session.check(&[], &[], 0, 9);
        assert!(session.needs_check(0, 7));
    }
}
