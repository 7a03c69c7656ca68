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
    Client, LONG_TTL, PermitParams, Place, TTL, confirm_params, freed, named, unless_locked,
    until_unlocked,
};
use crate::model::{Kind, Mode, Share};
use crate::store::verbs::in_tx::{InTxStore, PinBy, PinOutcome, PinParams};
use crate::store::verbs::lease::{LeaseStore, RenewOutcome, RenewParams, TakeOutcome};
use crate::store::verbs::list::{KeyRange, ListStore};
use crate::store::verbs::lock_row::{LockRowStore, RowAction};
use crate::store::verbs::permit::{MOST, PermitStore, ResizeOutcome, WeighOutcome, WeighParams};
use crate::store::verbs::queue::{
    ConfirmOutcome, EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams, PassOutcome,
    PassParams, PassWhy, QueueStore,
};
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::session::SessionStore;

pub(super) const TWO: Kind = Kind::Semaphore { capacity: 2 };

/// What a client asks for or has.
pub(super) struct Asked {
    pub(super) params: PermitParams,
    pub(super) number: i64,
}

impl<P: Place> Client<P> {
    pub(super) fn asks(&self, kind: Kind, weight: u32, in_session: bool) -> PermitParams {
        let join = JoinParams {
            in_session,
            most: 1_000,
            ..self.ask("a")
        };
        let share = Share { kind, weight };
        PermitParams { join, share }
    }

    /// Is granted a permit at once; the number is the fence.
    pub(super) async fn permit(&mut self, kind: Kind, weight: u32) -> Asked {
        let params = self.asks(kind, weight, false);
        match self.joins_permits(&params).await {
            JoinOutcome::Granted { fence: number } => Asked { params, number },
            other => panic!("no permit: {other:?}"),
        }
    }

    pub(super) async fn permit_in_session(&mut self, kind: Kind, weight: u32) -> Asked {
        let mut params = self.asks(kind, weight, true);
        params.join.ttl = crate::store::verbs::lease::FOR_EVER;
        match self.joins_permits(&params).await {
            JoinOutcome::Granted { fence: number } => Asked { params, number },
            other => panic!("no permit: {other:?}"),
        }
    }

    /// Has to wait; the number is the position.
    pub(super) async fn waits(&mut self, kind: Kind, weight: u32) -> Asked {
        let params = self.asks(kind, weight, false);
        match self.joins_permits(&params).await {
            JoinOutcome::Queued { position, .. } => Asked {
                params,
                number: position,
            },
            other => panic!("it does not wait: {other:?}"),
        }
    }

    pub(super) async fn releases(&mut self, permit: &Asked) -> FreeOutcome {
        let params = ReleaseParams {
            name: named("a").permit(permit.params.join.grant_id),
            grant_id: permit.params.join.grant_id,
            fence: permit.number,
            was_queued: false,
        };
        until_unlocked!(freed(
            self.conn.lease_release(slice::from_ref(&params)).await
        ))
    }

    pub(super) async fn passes(&mut self, why: PassWhy) -> PassOutcome {
        let name = named("a");
        self.passes_permits(&PassParams { name, why }).await
    }

    pub(super) async fn confirms(&mut self, waits: &Asked) -> ConfirmOutcome {
        let grant_id = waits.params.join.grant_id;
        let params = confirm_params(named("a").permit(grant_id), grant_id);
        until_unlocked!(unless_locked(self.conn.queue_confirm(&params).await))
    }

    pub(super) async fn looks(&mut self, waits: &Asked) -> LookOutcome {
        let params = LookParams {
            name: named("a"),
            grant_id: waits.params.join.grant_id,
            position: waits.number,
        };
        let looked = self.conn.permit_look(&[params]).await.unwrap();
        assert_eq!(looked.len(), 1);
        looked[0].clone()
    }

    pub(super) async fn weighs(&mut self, permit: &Asked, weight: u32) -> WeighOutcome {
        let params = WeighParams {
            name: named("a"),
            grant_id: permit.params.join.grant_id,
            fence: permit.number,
            weight,
        };
        self.weighs_permit(&params).await
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
            grant_id: self.params.join.grant_id,
            at: Some(self.number),
        }
    }
}

/// Passing on that ended no permit, and granted one to this waiter.
pub(super) fn granted_to(waiter: Uuid) -> PassOutcome {
    PassOutcome {
        ended: EndedGrant::Nothing,
        next: vec![waiter],
    }
}

pub(super) fn is_orphaned(looked: &LookOutcome) -> bool {
    matches!(
        looked,
        LookOutcome::Waiting {
            is_orphaned: true,
            ..
        }
    )
}

pub(super) fn waits_on(looked: &LookOutcome) -> bool {
    matches!(looked, LookOutcome::Waiting { is_orphaned: false, remaining } if *remaining > Duration::from_secs(10) && *remaining <= TTL)
}

impl<P: Place> Client<P> {
    /// Lets a permit expire, and the time go by in which none ended of itself.
    pub(super) async fn expire_permit(&mut self, permit: &Asked) {
        let sql = format!(
            "UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0 AND fence = {}",
            P::AGO,
            permit.number
        );
        self.run(&sql).await;
        self.run("UPDATE rowlock_lock SET reclaim_at = NULL WHERE weight = 0")
            .await;
    }
}
