//! Functions of the application's, which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a function of the application's. `None`: it has panicked. (The process's panic hook has said where.)
///
/// The function gets shared references and copies that are dropped after a panic. So it leaves nothing half done.
pub(crate) fn catch<T>(name: &'static str, function: impl FnOnce() -> T) -> Option<T> {
    let called = catch_unwind(AssertUnwindSafe(function));
    if called.is_err() {
        tracing::error!(name, "a function that the layer was given has panicked");
    }
    called.ok()
}
