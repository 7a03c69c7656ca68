//! Functions of the application's, which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt as _;

/// Calls a function of the application's. `None`: it has panicked. (The process's panic hook has said where.)
///
/// The function gets shared references and copies that are dropped after a panic. So it leaves nothing half done.
pub(crate) fn catch<T>(name: &'static str, function: impl FnOnce() -> T) -> Option<T> {
    told(name, catch_unwind(AssertUnwindSafe(function)))
}

/// [`catch`] for an async function.
pub(crate) async fn catch_async<T>(
    name: &'static str,
    called: impl Future<Output = T>,
) -> Option<T> {
    told(name, AssertUnwindSafe(called).catch_unwind().await)
}

fn told<T>(name: &'static str, called: std::thread::Result<T>) -> Option<T> {
    if called.is_err() {
        tracing::error!(name, "a function that the layer was given has panicked");
    }
    called.ok()
}
