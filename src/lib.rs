//! Locks that live as rows in the SQL database an application already runs.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
