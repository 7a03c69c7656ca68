//! Read/write locks and semaphores.

pub(crate) mod edges;
pub(crate) mod ends;
pub(crate) mod granting;
mod order;
mod pace;
pub(crate) mod stress;

use std::slice;
use std::time::Duration;

use uuid::Uuid;

use super::{
    Client, LONG_TTL, PermitAsk, Place, TTL, confirm_ask, freed, named, unless_locked,
    until_unlocked,
};
use crate::model::{Kind, Mode, Share};
use crate::store::verbs::in_tx::{InTxStore, PinAsk, PinBy, Pinned};
use crate::store::verbs::lease::{LeaseStore, RenewAsk, Renewed, Taken};
use crate::store::verbs::lock_row::{LockRowStore, RowAsk};
use crate::store::verbs::permit::{MOST, PermitStore, Resized, WeighAsk, Weighed};
use crate::store::verbs::queue::{
    Confirmed, Ended, JoinAsk, Joined, LookAsk, Looked, PassAsk, PassWhy, Passed, QueueStore,
};
use crate::store::verbs::release::{Freed, ReleaseAsk};
use crate::store::verbs::session::SessionStore;

pub(super) const TWO: Kind = Kind::Semaphore { capacity: 2 };

/// What a client asks for or has.
pub(super) struct Asked {
    pub(super) ask: PermitAsk,
    pub(super) number: i64,
}

impl<P: Place> Client<P> {
    pub(super) fn asks(&self, kind: Kind, weight: u32, in_session: bool) -> PermitAsk {
        let join = JoinAsk {
            in_session,
            most: 1_000,
            ..self.ask("a")
        };
        let share = Share { kind, weight };
        PermitAsk { join, share }
    }

    /// Is granted a permit at once; the number is the fence.
    pub(super) async fn permit(&mut self, kind: Kind, weight: u32) -> Asked {
        let ask = self.asks(kind, weight, false);
        match self.joins_permits(&ask).await {
            Joined::Granted { fence: number } => Asked { ask, number },
            other => panic!("no permit: {other:?}"),
        }
    }

    pub(super) async fn permit_in_session(&mut self, kind: Kind, weight: u32) -> Asked {
        let mut ask = self.asks(kind, weight, true);
        ask.join.ttl = crate::store::verbs::lease::FOR_EVER;
        match self.joins_permits(&ask).await {
            Joined::Granted { fence: number } => Asked { ask, number },
            other => panic!("no permit: {other:?}"),
        }
    }

    /// Has to wait; the number is the position.
    pub(super) async fn waits(&mut self, kind: Kind, weight: u32) -> Asked {
        let ask = self.asks(kind, weight, false);
        match self.joins_permits(&ask).await {
            Joined::Queued { position, .. } => Asked {
                ask,
                number: position,
            },
            other => panic!("it does not wait: {other:?}"),
        }
    }

    pub(super) async fn releases(&mut self, permit: &Asked) -> Freed {
        let ask = ReleaseAsk {
            name: named("a").permit(permit.ask.join.grant_id),
            grant_id: permit.ask.join.grant_id,
            fence: permit.number,
            was_queued: false,
        };
        until_unlocked!(freed(self.conn.lease_release(slice::from_ref(&ask)).await))
    }

    pub(super) async fn passes(&mut self, why: PassWhy) -> Passed {
        let name = named("a");
        self.passes_permits(&PassAsk { name, why }).await
    }

    pub(super) async fn confirms(&mut self, waits: &Asked) -> Confirmed {
        let grant_id = waits.ask.join.grant_id;
        let ask = confirm_ask(named("a").permit(grant_id), grant_id);
        until_unlocked!(unless_locked(self.conn.queue_confirm(&ask).await))
    }

    pub(super) async fn looks(&mut self, waits: &Asked) -> Looked {
        let ask = LookAsk {
            name: named("a"),
            grant_id: waits.ask.join.grant_id,
            position: waits.number,
        };
        let looked = self.conn.permit_look(&[ask]).await.unwrap();
        assert_eq!(looked.len(), 1);
        looked[0].clone()
    }

    pub(super) async fn weighs(&mut self, permit: &Asked, weight: u32) -> Weighed {
        let ask = WeighAsk {
            name: named("a"),
            grant_id: permit.ask.join.grant_id,
            fence: permit.number,
            weight,
        };
        self.weighs_permit(&ask).await
    }

    /// What is used of the name, by its row and by its permits.
    pub(super) async fn used(&mut self) -> [i64; 2] {
        let used = "SELECT used FROM rowlock_lock WHERE weight = 0";
        let weights = "SELECT weight FROM rowlock_lock WHERE weight > 0";
        let used = P::numbers(&mut self.conn, used).await;
        let weights = P::numbers(&mut self.conn, weights).await;
        [used[0], weights.iter().sum()]
    }
}

impl Asked {
    pub(super) fn leaves(&self) -> PassWhy {
        PassWhy::Left {
            grant_id: self.ask.join.grant_id,
            at: Some(self.number),
        }
    }
}

/// Passing on that ended no permit, and granted one to this waiter.
pub(super) fn granted_to(waiter: Uuid) -> Passed {
    Passed {
        ended: Ended::Nothing,
        next: vec![waiter],
    }
}

pub(super) fn is_orphaned(looked: &Looked) -> bool {
    matches!(
        looked,
        Looked::Waiting {
            is_orphaned: true,
            ..
        }
    )
}

pub(super) fn waits_on(looked: &Looked) -> bool {
    matches!(looked, Looked::Waiting { is_orphaned: false, remaining } if *remaining > Duration::from_secs(10) && *remaining <= TTL)
}

impl<P: Place> Client<P> {
    /// Lets a permit expire.
    pub(super) async fn expire_permit(&mut self, permit: &Asked) {
        let sql = format!(
            "UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0 AND fence = {}",
            P::AGO,
            permit.number
        );
        self.run(&sql).await;
    }
}
