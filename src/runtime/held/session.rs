//! A client's session: one row with an expiry, for all locks that the client holds in it.
//!
//! The session is renewed like a lease, by one short statement, however many locks it has. A lock of the session has
//! no renewal of its own, and its row does not expire. So a renewal cannot notice two things:
//!
//! - *A guard without a row*: an administrator has freed the lock by force, or a failover has lost the grant.
//! - *A row without a guard*: a release was lost, by a crash of the server or a failover, or given up because a
//!   transaction had the row locked for too long; or a late sending of an acquire was granted the name.
//!
//! So the renewals [look](super::renew::look) at all grants of the session: once per TTL; when the number of forced
//! releases in the session's row has changed; and over each new connection. A guard without a row has lost its lock. A
//! row without a guard is freed, by its grant id, when it was seen for a while. If no look has succeeded one TTL after
//! it was due, the next renewal declares all locks lost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

use super::grant::Grant;
use crate::model::{Loss, Moment, Name};

/// A session, and the grants in it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Until when this process may trust the session.
    pub(crate) grant: Arc<Grant<Uuid>>,
    grants: Mutex<SessionGrants>,
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct SessionGrants {
    known: BTreeMap<Name, GuardedGrant>,
    /// How many were known so far.
    added: u64,
    /// The grants that acquires ask for.
    asked: HashSet<Uuid>,
    /// A lock was asked for. (Otherwise it is the session of waiters only, and there is nothing to look at.)
    is_used: bool,
}

/// A grant that a guard has.
#[derive(Debug)]
struct GuardedGrant {
    grant: Weak<Grant>,
    id: Uuid,
    number: u64,
}

/// What the looks at the grants have covered.
#[derive(Debug, Default)]
struct Looks {
    /// When the last whole look began; `None`: there was none, or it may have missed a grant that was being asked for.
    last: Option<Moment>,
    /// Since when the next one is due.
    due: Option<Moment>,
    /// The renewal before it.
    renewal: Option<SessionRenewal>,
    /// Grants without a guard, with the moment at which a look first found them.
    strays: HashMap<Uuid, Moment>,
}

/// A renewal found this number of forced releases, over this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionRenewal {
    pub(crate) forced: i64,
    pub(crate) connection: u64,
}

/// A grant that an acquire asks for, until this is dropped.
#[derive(Debug)]
pub(crate) struct AskedGrant {
    pub(crate) session: Arc<Session>,
    id: Uuid,
}

impl Drop for AskedGrant {
    fn drop(&mut self) {
        self.session.grants.lock().asked.remove(&self.id);
    }
}

/// One look at all grants, a page at a time.
#[derive(Debug)]
pub(crate) struct SessionLook {
    began: Moment,
    /// An acquire that had not been answered may have been granted before the look.
    unsure: bool,
    /// The last name that was read.
    pub(crate) after: Vec<u8>,
    strays: HashSet<Uuid>,
}

impl Session {
    pub(crate) fn new(grant: Grant<Uuid>) -> Self {
        Self {
            grant: Arc::new(grant),
            grants: Mutex::default(),
            looks: Mutex::default(),
        }
    }

    /// An acquire is about to ask for this grant.
    pub(crate) fn ask(self: &Arc<Self>, id: Uuid) -> AskedGrant {
        {
            let grants = &mut *self.grants.lock();
            grants.is_used = true;
            grants.asked.insert(id);
        }
        let session = Arc::clone(self);
        AskedGrant { session, id }
    }

    /// A guard has this grant from now on, until [`forget`](Self::forget). Another grant of the same name that is
    /// still known was freed by force: the one with the lower fence is lost.
    pub(crate) fn add(&self, grant: &Arc<Grant>) {
        let mut lost = None;
        {
            let grants = &mut *self.grants.lock();
            grants.added += 1;
            let known = GuardedGrant {
                grant: Arc::downgrade(grant),
                id: grant.id,
                number: grants.added,
            };
            let before = grants.known.get(&grant.name);
            let before = before.filter(|before| before.id != grant.id);
            let before = before.and_then(|before| before.grant.upgrade());
            if before
                .as_ref()
                .is_some_and(|before| before.fence() > grant.fence())
            {
                lost = Some(Arc::clone(grant));
            } else {
                grants.known.insert(grant.name.clone(), known);
                lost = before.or(lost);
            }
        }
        if let Some(lost) = lost {
            lost.lose(Loss::TakenOver);
        }
    }

    /// The grant was released.
    pub(crate) fn forget(&self, grant: &Grant) {
        let known = &mut self.grants.lock().known;
        let is_its = |known: &GuardedGrant| known.id == grant.id;
        if known.get(&grant.name).is_some_and(is_its) {
            known.remove(&grant.name);
        }
    }

    /// How many locks it has.
    pub(crate) fn locks(&self) -> usize {
        self.grants.lock().known.len()
    }

    /// How many grants were known so far. A page that is asked for now has all of them.
    pub(crate) fn added(&self) -> u64 {
        self.grants.lock().added
    }

    /// Whether to look at the grants after this renewal.
    pub(crate) fn is_look_due(&self, renewal: SessionRenewal, now: Moment) -> bool {
        if !self.grants.lock().is_used {
            return false;
        }
        let looks = self.looks.lock();
        looks.last.is_none_or(|last| now >= last + self.grant.ttl) || looks.renewal != Some(renewal)
    }

    /// A look is due, by a renewal at `now`. A failover may have lost every grant that no look has found since: after
    /// one TTL none of them is trusted any longer.
    pub(crate) fn await_look(&self, now: Moment) {
        let ttl = self.grant.ttl;
        let since = {
            let looks = &mut *self.looks.lock();
            let after = looks.last.map_or(now, |last| last + ttl);
            *looks
                .due
                .get_or_insert(if after < now { after } else { now })
        };
        if now < since + ttl {
            return;
        }
        let known: Vec<Weak<Grant>> = {
            let grants = self.grants.lock();
            let known = grants.known.values();
            known.map(|known| Weak::clone(&known.grant)).collect()
        };
        for grant in known.iter().filter_map(Weak::upgrade) {
            grant.lose(Loss::Expired);
        }
    }

    pub(crate) fn begin_look(&self, now: Moment) -> SessionLook {
        SessionLook {
            began: now,
            unsure: !self.grants.lock().asked.is_empty(),
            after: Vec::new(),
            strays: HashSet::new(),
        }
    }

    /// The next page has the grants in `found`. If there are no `more`, it was the last one. Of the first `added`
    /// grants, those that are missing are lost. Returns the strays that a look found before, `grace` ago or earlier.
    pub(crate) fn compare(
        &self,
        look: &mut SessionLook,
        found: &[(Vec<u8>, Uuid)],
        more: bool,
        added: u64,
        grace: Duration,
    ) -> Vec<(Name, Uuid)> {
        let ids: HashSet<&Uuid> = found.iter().map(|(_, id)| id).collect();
        let first = Name::from_bytes(&look.after).map_or(Bound::Unbounded, Bound::Excluded);
        let last = found.last().filter(|_| more);
        let end = last.and_then(|(name, _)| Name::from_bytes(name));
        let end = end.map_or(Bound::Unbounded, Bound::Included);
        let mut missing: Vec<Weak<Grant>> = Vec::new();
        let mut strays = Vec::new();
        {
            let grants = self.grants.lock();
            for known in grants.known.range((first, end)).map(|(_, known)| known) {
                if known.number <= added && !ids.contains(&known.id) {
                    missing.push(Weak::clone(&known.grant));
                }
            }
            for (name, id) in found {
                let name = Name::from_bytes(name);
                let known = name.as_ref().and_then(|name| grants.known.get(name));
                let is_known = known.is_some_and(|known| known.id == *id);
                if let Some(name) = name.filter(|_| !is_known && !grants.asked.contains(id)) {
                    strays.push((name, *id));
                }
            }
        }
        for grant in missing.iter().filter_map(Weak::upgrade) {
            grant.lose(Loss::TakenOver);
        }
        if let Some((name, _)) = last {
            look.after.clone_from(name);
        }
        let mut looks = self.looks.lock();
        look.strays.extend(strays.iter().map(|(_, id)| *id));
        strays.retain(|(_, id)| {
            let since = looks.strays.entry(*id).or_insert(look.began);
            look.began - *since >= grace
        });
        strays
    }

    /// All pages were read.
    pub(crate) fn end_look(&self, look: &SessionLook, renewal: SessionRenewal) {
        let mut looks = self.looks.lock();
        looks.last = (!look.unsure).then_some(look.began);
        looks.due = None;
        looks.renewal = Some(renewal);
        looks.strays.retain(|id, _| look.strays.contains(id));
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
