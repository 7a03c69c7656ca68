//! Threads of rowlock's own, each with a runtime. They run no code of the caller's (but for `password.rs`).

use std::thread;

use tokio::runtime;

use super::tasks::{TaskKind, Tasks};
use crate::model::Error;

/// The name of the thread of the lanes.
pub(crate) const LANES: &str = "rowlock-lanes";

/// That of the renewals.
pub(crate) const RENEWALS: &str = "rowlock-renew";

/// Starts a thread with a runtime of its own. It runs no code of the caller's.
pub(crate) fn spawn(
    name: &'static str,
    target: &str,
    (tasks, kind): (&Tasks, TaskKind),
    body: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    let member = tasks.enter(kind, name);
    begin(name, target, move || {
        let _member = member;
        body()
    })
}

/// Starts a thread that no shutdown waits for.
pub(crate) fn begin(
    name: &'static str,
    target: &str,
    body: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    let run = move || {
        if let Err(error) = body() {
            tracing::error!(%error, "{name} cannot start a runtime");
        }
    };
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|error| Error::Unreachable {
        target: target.into(),
        detail: format!("the thread {name} cannot be started: {error}"),
    })
}

/// The runtime of a thread of rowlock's own.
pub(crate) fn own_runtime() -> std::io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}
