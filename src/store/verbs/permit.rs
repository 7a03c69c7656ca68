//! Read/write locks and semaphores: the verbs, with their parameters and outcomes.
//!
//! A name of this [`Kind`] has a row in `rowlock_lock` with its `capacity` and how much of it is `used`, and never a
//! grant. Each *permit* is a row of its own there, with a grant, an expiry or a session, and a `weight`. Its name is
//! that of the lock, NUL, and the grant id in hexadecimal digits ([`Name::permit`]): no lock of a caller's has such a
//! name. So the verbs for the rows of locks renew, confirm, pin and list permits too. A semaphore's permits have
//! weights from 1 to the capacity. In a read/write lock a reader has weight 1, and a writer the whole capacity,
//! [`Kind::ALL`].
//!
//! The queue is the one of [`queue`](super::queue), and each waiter has its weight. Waiters are granted
//! strictly in the order of their positions, as many as fit: the first one that does not fit blocks those after it.
//! So no writer starves.
//!
//! Permits are made and removed, and their weight is changed, only by verbs that have the row of the name locked. A
//! verb that ends or weighs a permit first locks that permit, without waiting: while a transaction has it pinned, the
//! verb keeps nobody from the name. The verbs answer `None` when a transaction has a row locked that they need.
//!
//! A permit that has expired, or whose session has ended, is *reclaimed*: a verb that finds too little capacity
//! removes such permits first, but none whose row is locked (a transaction has it pinned). If none has ended, the
//! verb writes into `reclaim_at` until when none can end; until then a full name is refused without reading its
//! permits. The cleaner reclaims where nobody asks. `used` may be too large until then, never too small.
//!
//! A fence is given by every grant of a semaphore, and by every grant of a writer. Readers share the fence of the last
//! write.

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::queue::{
    JoinOutcome, JoinParams, LookOutcome, LookParams, PassOutcome, PassParams, PassWhy, QueueStore,
};
use crate::model::{Kind, Name, Share};

/// How many waiters a verb grants permits to, at most. (PostgreSQL has this number in `functions/grant_permits.sql`.)
#[cfg(any(feature = "mysql", feature = "sqlite", test))]
pub(crate) const MOST: usize = 100;

/// The verbs for read/write locks and semaphores.
#[async_trait]
pub(crate) trait PermitStore {
    /// Grants a permit, if no one waits and it fits; otherwise puts a waiter at the end of the queue. Makes a missing
    /// row. Refuses a name of another kind, or of another capacity.
    ///
    /// Finds the permit or the waiter of an earlier sending, as [`queue_join`](super::queue::QueueStore::queue_join)
    /// does.
    async fn permit_join(
        &mut self,
        params: &JoinParams,
        share: Share,
    ) -> Result<Option<JoinOutcome>, Fault>;

    /// Grants permits to the first waiters, as many as fit, each for the window; removes waiters whose sessions are
    /// not live. The permit and the waiter of the ask are removed first.
    ///
    /// At most [`MOST`] waiters are granted permits at once: they have to confirm in the window. If more fit, the name
    /// stays orphaned: the looks of those that wait find that the first one fits. So a caller goes on looking, or
    /// passes the name on again. Every verb here that grants has this limit.
    ///
    /// Passing on an [orphaned](PassWhy::Orphaned) name counts what its permits weigh, if something does not fit or no
    /// one waits: a permit may have been removed by hand.
    async fn permit_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault>;

    /// [`queue_look`](super::queue::QueueStore::queue_look) for waiters of names of this kind. A name has to be passed
    /// on when its first live waiter fits, or when a permit has expired, or its session.
    async fn permit_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault>;

    /// Changes the weight of a live permit that has the asked fence. A permit that has the asked weight already may
    /// have any fence: the answer to an earlier sending was lost. A larger weight must fit; waiters do not count. A
    /// weight above 1 that is not smaller gets a new fence, so that a late downgrade changes nothing. After a smaller
    /// weight, waiters are granted.
    async fn permit_weigh(&mut self, params: &WeighParams) -> Result<Option<WeighOutcome>, Fault>;

    /// Changes the capacity of a semaphore, or makes its row. Waiters are granted; permits that no longer fit are
    /// kept. Waiters that are heavier than the new capacity are removed: they would keep back all others for good.
    async fn permit_resize(
        &mut self,
        name: &Name,
        capacity: u32,
    ) -> Result<Option<ResizeOutcome>, Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct WeighParams {
    /// That of the lock.
    pub(crate) name: Name,
    pub(crate) grant_id: Uuid,
    /// The fence that it has: a late sending, from before a later upgrade, changes nothing.
    pub(crate) fence: i64,
    pub(crate) weight: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WeighOutcome {
    Done {
        fence: i64,
        /// The grant ids of the waiters that have a permit now.
        next: Vec<Uuid>,
    },
    /// It does not fit: there are other permits.
    Full,
    /// It has another weight than the asked one, and another fence: this one.
    Stale(i64),
    /// The permit has expired, or is gone.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResizeOutcome {
    Done {
        /// The capacity until now. `None`: there was no row.
        before: Option<u32>,
        next: Vec<Uuid>,
    },
    /// The name is of this kind. `None`: its capacity is out of range.
    Mismatch(Option<Kind>),
}

/// Passes a name of any kind on. `None`: a transaction has a row locked.
pub(crate) async fn pass_any(
    store: &mut (impl PermitStore + QueueStore + Send + ?Sized),
    name: &Name,
    why: PassWhy,
    has_permits: bool,
) -> Result<Option<PassOutcome>, Fault> {
    let name = name.clone();
    let params = PassParams { name, why };
    if has_permits {
        store.permit_pass(&params).await
    } else {
        store.queue_pass(&params).await
    }
}
