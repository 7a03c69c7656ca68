//! The guard that an acquire wants, whichever request gets it.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::release;
use super::release::Release;
use crate::model::{Moment, Name};
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::{AnswerTime, Task};
use crate::runtime::held::grant::Grant;
use crate::runtime::held::guard::Guard;
use crate::runtime::held::holdings::Holdings;
use crate::runtime::held::session::{AskedGrant, Session};
use crate::runtime::wait::waiters::Waiters;
use crate::store::verbs::queue::{FenceBlock, Ticket};

/// A grant that is asked for.
#[derive(Debug)]
pub(crate) struct PendingGrant {
    holdings: Arc<Holdings>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// The TTL of the row.
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// The session of the lock, if it has one.
    pub(crate) session: Option<AskedGrant>,
    /// The waiter that a late join may still make.
    pub(crate) ticket: Option<Ticket>,
    /// The name is to be passed on to it.
    pub(crate) is_queued: bool,
    /// Where its waiter stands.
    pub(crate) position: Option<i64>,
    /// What was reserved for its cohort.
    pub(crate) reserved: FenceBlock,
    /// A second sending has found the grant.
    is_confirmed: bool,
}

impl PendingGrant {
    /// `session`: the session of the lock, if it has one.
    pub(crate) fn new(
        (holdings, waiters): (&Arc<Holdings>, &Arc<Waiters>),
        (name, grant_id): (&Name, Uuid),
        ttl: Duration,
        max_hold: Option<Duration>,
        session: Option<&Arc<Session>>,
    ) -> Self {
        Self {
            holdings: Arc::clone(holdings),
            waiters: Arc::clone(waiters),
            name: name.clone(),
            grant_id,
            ttl,
            max_hold,
            session: session.map(|session| session.ask(grant_id)),
            ticket: None,
            is_queued: false,
            position: None,
            reserved: FenceBlock::default(),
            is_confirmed: false,
        }
    }

    /// Whether the grant was answered late: the next sending finds it, and gives it the whole TTL. True once.
    pub(crate) fn is_late(&mut self, answered: AnswerTime) -> bool {
        answered.is_stale(self.ttl) && !std::mem::replace(&mut self.is_confirmed, true)
    }

    /// Frees the grants that the sendings of the acquire got, or may still get.
    pub(super) fn undone(&self, progress: &Progress, now: Moment) -> Task<Release> {
        let (grant_id, waiters) = (self.grant_id, &self.waiters);
        release::undo(
            &self.name,
            grant_id,
            self.ttl,
            progress.doubts,
            waiters,
            now,
        )
    }

    /// The grant was given under this fence, by a request that was sent at `sent`, and has `left` of its time. `late`:
    /// so many sendings of the acquire may still reach the server. `None`: it has ended already.
    pub(crate) fn guard(
        self,
        fence: i64,
        late: u32,
        sent: Moment,
        left: Duration,
    ) -> Option<Guard> {
        let holdings = self.holdings;
        let clock_error = holdings.settings.clock_error;
        // The row has more time left than the TTL if the database's clock was set back.
        let deadline = sent + clock_error.trusted(left.min(self.ttl));
        let cap = self.max_hold.map(|max_hold| sent + max_hold);
        let deadline = cap.map_or(deadline, |cap| deadline.min(cap));
        let session = self.session.as_ref().map(|asked| &asked.session);
        // What is renewed; a cap may end it before.
        let renewed = session.map_or(self.ttl, |of| of.grant.ttl.min(self.ttl));
        let (name, grant_id) = (self.name, self.grant_id);
        let mut grant = Grant::new(name, grant_id, fence, renewed, clock_error, cap, deadline);
        grant.late = late;
        grant.shown = grant.name.of_permit().unwrap_or_else(|| grant.name.clone());
        grant.ticket = self.ticket.filter(|_| late > 0);
        grant.was_queued = self.is_queued;
        grant.position = self.position;
        grant.reserved = self.reserved;
        let grant = match session {
            Some(session) => {
                let grant = Arc::new(grant.in_session(&session.grant));
                session.add(&grant);
                grant
            }
            None => Arc::new(grant),
        };
        holdings.renewals.add(&grant);
        holdings.guards.add_lock(&grant);
        Guard::new(grant, holdings)
    }
}
