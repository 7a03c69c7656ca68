//! Distributed locks and idempotency as rows in the SQL database that an application already runs: PostgreSQL,
//! MySQL, MariaDB, or an embedded SQLite.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), rowlock::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite:{}/locks.db", dir.path().display());
//! use std::time::Duration;
//!
//! let rowlock = rowlock::Rowlock::connect(&url).await?; // postgres://…, mysql://…, sqlite:PATH
//! let held = rowlock.lock("stock:42").ttl(Duration::from_secs(30)).acquire().await?;
//! held.with(async || {
//!     // rowlock drops this work when the lease is lost; send `held.fence()` with every write
//! })
//! .await?;
//! held.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Rowlock`] is the client: connect with a URL, or from the application's own sqlx pool.
//! - [`Lock`] is a request: [`try_acquire`](Lock::try_acquire) asks once, [`acquire`](Lock::acquire)
//!   waits in the queue of the name, which is served in order.
//! - [`Held`] is the lease. It is renewed in the background until it is released, dropped or lost. Its page
//!   states the promise.
//! - [`Held::pin`] proves the lease inside the application's own transaction, so that the check and the write
//!   commit together.
//! - [`InTx`] has locks that belong to a transaction: [pessimistic](LockInTx) and [optimistic](Version) ones.
//!   [`Retry`] runs a transaction again after a conflict.
//! - [`RwLock`] has many readers or one writer, and [`Semaphore`] permits up to a capacity, for all processes.
//!   [`MultiLock`] takes several names, all or nothing.
//! - [`Lock::in_session`] takes a lock that ends with the client's session: one statement renews the session with all
//!   its locks.
//! - [`Owner`] can enter again a lock that it holds. For owners with [names](Owner::named) rowlock finds deadlocks, in
//!   whatever processes they are.
//! - [`Rowlock::admin`] shows an operator who holds what and who waits for it, releases by force, pauses names,
//!   cleans.
//! - [`Idempotency`] makes an effect happen once for a key ([`Scope::key`]): in one transaction
//!   ([`run_in_tx`](Idempotency::run_in_tx)), or over several attempts with a [guard](IdempotencyGuard) and its
//!   [steps](IdempotencyGuard::step). [`FormTokens`] make a form that is submitted twice do its work once.
//! - The attribute `#[locked]` makes a function hold a lock while it runs, and `#[idempotent]` makes a call take
//!   effect once (feature `macros`).
//! - The crate [`rowlock-recipes`](https://docs.rs/rowlock-recipes) has what programs build from these: scheduled
//!   jobs, leader elections, locks over several databases, striped counters, inboxes for queues and webhooks.
//!   To write your own recipe, see [`extend`]. [`attributes`] has the functions behind the attributes.
//! - [`Admin::quarantine`] keeps a database that may have forgotten its last commits from granting names again.
//! - The crate [`rowlock-http`](https://docs.rs/rowlock-http) has a layer for the `Idempotency-Key` header, for axum
//!   and tower. To write your own layer, see [`layer`].
//! - [`Error`] says what went wrong and what to do next.
//!
//! # Features
//!
//! `sqlite` (default, with a bundled library), `postgres`, `mysql` (MariaDB too); `macros` (default): the attributes;
//! `metrics`; [`testing`](https://docs.rs/rowlock/latest/rowlock/testing): for tests of an application.
//! Connections to PostgreSQL, MySQL and MariaDB support TLS, by rustls.
//!
//! # Runtime
//!
//! Call rowlock in a tokio runtime. Its connections and renewals have threads of their own. So asking once (without an
//! owner that several tasks share) and releasing need no timers in the caller's runtime. (Under load, one short task
//! of your runtime delivers many answers.) Every call that waits needs them: [`Lock::acquire`], [`Held::with`],
//! [`Rowlock::flush`], every call in a transaction, every `wait`. `#[tokio::main]` and `#[tokio::test]` have timers; a
//! runtime that you build yourself needs `enable_time` or `enable_all`. Without timers such a call panics when it must
//! wait.
//!
//! # Tables
//!
//! Connecting creates or updates the tables `rowlock_lock`, `rowlock_database`, `rowlock_idempotency`,
//! `rowlock_idempotency_step`, `rowlock_form_token`, `rowlock_session`, `rowlock_waiter`, `rowlock_waiting_owner`,
//! `rowlock_run` and `rowlock_schema_history`, under a lock in the database. [`Builder::migrate`] switches that off;
//! [`migration_sql`] returns the SQL for a DBA. At run time rowlock needs only SELECT, INSERT, UPDATE and DELETE on
//! them. On PostgreSQL, connecting also creates the table `rowlock_function` and functions, whose names end in a hash
//! of their text. Every user may run them unless an administrator has changed that.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "some items are used by some engines only")
)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/MODES.md")]
mod modes {}

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../docs/COOKBOOK.md")]
mod cookbook {}
#[cfg(doctest)]
#[doc = include_str!("../docs/PRODUCTION.md")]
mod production {}
#[cfg(all(doctest, feature = "testing", feature = "sqlite"))]
#[doc = include_str!("../docs/TESTING.md")]
mod testing_page {}
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../rowlock-macros/docs/locked.md")]
mod locked_attribute {}
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../rowlock-macros/docs/idempotent.md")]
mod idempotent_attribute {}

pub mod attributes;
mod client;
mod idempotency;
mod lock;
mod model;
mod runtime;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod transaction;

/// For who writes a layer, which puts idempotency around handlers that it does not know, as
/// [`rowlock-http`](https://docs.rs/rowlock-http) does for HTTP. Applications do not need it.
pub mod layer {
    pub use crate::idempotency::{LayerAttempt, LayerKeys};
    pub use crate::model::HTTP_SCOPES;
}

/// For who writes a recipe on top of locks, as [`rowlock-recipes`](https://docs.rs/rowlock-recipes) has them.
/// Applications do not need it.
pub mod extend {
    pub use crate::lock::raise_fence;
    pub use crate::model::bounds::{check_ttl, check_wait};
}

pub use crate::store::driver::migration_sql::migration_sql;
pub use client::{Admin, Builder, Cleaned, Rowlock};
pub use idempotency::{
    Begun, FormTokens, Idempotency, IdempotencyGuard, InFlight, Reconciled, RecordInfo,
    RecordState, Resolution, StepFailed, StepInfo, Submitted, UnknownStep,
};
pub use lock::{
    Advance, Held, InTx, Lock, LockInTx, Locked, MultiHeld, MultiLock, Owner, RwHeld, RwLock,
    Semaphore, Version, one_changed,
};
pub use model::{
    Blocked, Busy, Cause, ConnectError, Deadline, Engine, Error, Fingerprint, FingerprintBuilder,
    FingerprintPieces, FormToken, InvalidError, Key, Kind, LockInfo, Loss, Mode, Name, NameFilter,
    NameInfo, NameState, Outcome, Page, PauseInfo, RecordError, RecordFilter, RecordKey, RunInfo,
    RunState, SchemaError, Scope, SessionInfo, Subject, TransactionError, Unfinished, WaiterInfo,
};
#[cfg(feature = "macros")]
pub use rowlock_macros::{idempotent, locked};
pub use transaction::{Pool, Retry, RetryTx, Retryable, Transaction, is_retryable};
