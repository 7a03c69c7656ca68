//! The verbs that the rest of the crate sends to a database, without any engine's SQL.
//!
//! There is one trait per concern, in a file of its own. Each method is **one atomic decision**, documented there
//! once: precondition, outcome, isolation, clock. Nothing here waits, or knows an engine.
//!
//! For every verb:
//!
//! - *isolation*: READ COMMITTED (SQLite: one writer at a time). A row that another transaction has locked is skipped,
//!   never waited for, so that one long transaction cannot hold up a batch.
//! - *clock*: the database's, read after the row is locked, never when the statement began.
//! - *batches*: the parameters of one call have different names and come sorted by name. Each is
//!   atomic; a call that fails may have done some of its asks.
//! - *repeating*: every verb but `lease_force_release` may be sent again after a broken connection. A grant has its
//!   own id, so the second sending finds the effect of the first.

pub(crate) mod clean;
pub(crate) mod deadlock;
pub(crate) mod fault;
pub(crate) mod form_token;
pub(crate) mod hold;
pub(crate) mod in_tx;
pub(crate) mod lease;
pub(crate) mod lock_row;
pub(crate) mod permit;
pub(crate) mod quarantine;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod record_admin;
pub(crate) mod record_in_tx;
pub(crate) mod record_state;
pub(crate) mod release;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod step;
pub(crate) mod time;

use clean::CleanStore;
use deadlock::DeadlockStore;
use form_token::FormTokenStore;
use hold::HoldStore;
use in_tx::InTxStore;
use lease::LeaseStore;
use lock_row::LockRowStore;
use permit::PermitStore;
use quarantine::QuarantineStore;
use queue::QueueStore;
use record::RecordStore;
use record_admin::RecordAdminStore;
use record_in_tx::RecordInTxStore;
use run::RunStore;
use schema::SchemaStore;
use session::SessionStore;
use step::StepStore;

/// The verbs that rowlock sends on connections of its own.
pub(crate) trait Store:
    LeaseStore
    + QueueStore
    + PermitStore
    + DeadlockStore
    + LockRowStore
    + RecordStore
    + RecordAdminStore
    + StepStore
    + FormTokenStore
    + CleanStore
    + SchemaStore
    + SessionStore
    + QuarantineStore
    + HoldStore
    + RunStore
    + Send
{
}

impl<T> Store for T where
    T: LeaseStore
        + QueueStore
        + PermitStore
        + DeadlockStore
        + LockRowStore
        + RecordStore
        + RecordAdminStore
        + StepStore
        + FormTokenStore
        + CleanStore
        + SchemaStore
        + SessionStore
        + QuarantineStore
        + HoldStore
        + RunStore
        + Send
{
}

/// The verbs in a caller's transaction.
pub(crate) trait TxStore:
    InTxStore + RecordInTxStore + FormTokenStore + SchemaStore + Send
{
}

impl<T: InTxStore + RecordInTxStore + FormTokenStore + SchemaStore + Send> TxStore for T {}
