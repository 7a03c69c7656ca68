//! What the attributes [`locked`](macro@crate::locked) and [`idempotent`](macro@crate::idempotent) stand for. A
//! program may call it without them.

mod call;
mod keep;
mod locked;
mod once;
mod refused;

pub use call::Call;
pub use locked::while_locked;
pub use once::once;
pub use refused::Refused;
