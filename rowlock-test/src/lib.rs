//! Shared by tests, benchmarks and examples: a database for each test, on four engines; transactions; servers.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "these are parts of tests: they have names instead of documentation, and panic when a test fails"
)]

mod app;
mod attempts;
mod crew;
mod db;
mod events;
mod killable;
mod kind;
mod mariadb;
mod mysql;
mod mysql_idle;
mod names;
mod patience;
mod postgres;
mod process;
mod promise;
mod proxy;
mod queue;
mod servers;
mod sqlite;
mod stripes;
mod trials;
mod tx;
mod urls;
mod users;

pub use app::App;
pub use attempts::{Provider, begin, begin_new, outcome, request, take_over};
pub use crew::Crew;
pub use db::{Db, lapse};
pub use events::{answered, busy, connected, eventually, last_run, loss, renewed, take};
pub use killable::{Killable, children};
pub use kind::{ENGINES, Kind};
pub(crate) use names::database_name;
pub use names::user_name;
pub use patience::{is_left_of, patience, takes_less_than};
pub use process::{Part, Process, Role, listen, tell};
pub use proxy::{Mode, Proxy, renewals_are_connected, through_proxy, through_readable_proxy};
pub use queue::{Waiting, join, join_with, queue_is, queue_of, release, turns, waiters};
pub use servers::{Commits, Own, servers};
pub use stripes::{Stock, Striped};
pub use trials::{list_trial, lone_trial, trial};
pub use tx::{TryLock, Tx};
pub use urls::{as_user, variable, with_database};
pub use users::{User, sessions_of};

/// The levels of isolation that an application may choose.
pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
