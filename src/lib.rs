//! Locks that live as rows in the SQL database an application already runs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "what one brand never needs, another one does")
)]

#[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
compile_error!("rowlock needs an engine: enable one of the features sqlite, postgres, mysql");

mod client;
mod error;
mod hold;
mod lock;
mod migrate;
mod name;
mod store;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;

pub use client::{Builder, Engine, Pool, Rowlock};
pub use error::{Cause, Error};
pub use hold::clock::Deadline;
pub use lock::{Busy, Held, Lock, LockInfo, Loss, Mode, Owner, ReleaseOutcome, TryAcquire};
pub use migrate::migration_sql;
pub use name::Name;
