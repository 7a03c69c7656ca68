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
mod columns;
pub(crate) mod deadlock;
pub(crate) mod fault;
pub(crate) mod form_token;
pub(crate) mod hold;
pub(crate) mod in_tx;
pub(crate) mod kept_state;
pub(crate) mod lease;
pub(crate) mod list;
pub(crate) mod lock_row;
pub(crate) mod pause;
pub(crate) mod permit;
pub(crate) mod quarantine;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod record_admin;
pub(crate) mod record_in_tx;
pub(crate) mod record_row;
pub(crate) mod release;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod step;
pub(crate) mod time;

/// A trait with the verbs of several.
macro_rules! verbs {
    ($(#[$doc:meta])+ $name:ident: $($of:path),+) => {
        $(#[$doc])+
        pub(crate) trait $name: $($of +)+ Send {}

        impl<T: $($of +)+ Send> $name for T {}
    };
}

verbs! {
    /// The verbs that rowlock sends on connections of its own.
    Store:
        lease::LeaseStore,
        queue::QueueStore,
        permit::PermitStore,
        deadlock::DeadlockStore,
        lock_row::LockRowStore,
        record::RecordStore,
        record_admin::RecordAdminStore,
        step::StepStore,
        form_token::FormTokenStore,
        clean::CleanStore,
        schema::SchemaStore,
        session::SessionStore,
        quarantine::QuarantineStore,
        pause::PauseStore,
        hold::HoldStore,
        run::RunStore,
        list::ListStore
}

verbs! {
    /// The verbs in a caller's transaction.
    TxStore:
        in_tx::InTxStore,
        record_in_tx::RecordInTxStore,
        form_token::FormTokenStore,
        schema::SchemaStore
}
