//! Recipes: programs often need more than a lock or a record, and these modules build it from them. They use only the public API of this crate.
//!
//! The cookbook (`docs/COOKBOOK.md`) says which recipe to use when, and what happens to the work when its process is paused, killed or cut off.

mod call;
pub mod inbox;
pub mod job;
mod keep;
pub mod leader;
mod locked;
mod once;
pub mod quorum;
mod refused;
pub mod stripes;

pub use call::Call;
pub use inbox::Inbox;
pub use job::Job;
pub use leader::Election;
pub use locked::while_locked;
pub use once::once;
pub use quorum::Quorum;
pub use refused::Refused;
pub use stripes::Stripes;
