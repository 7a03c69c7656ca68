//! Recipes: what is built on locks and records. They use the public API of this crate only, as a program outside of it could.
//!
//! The cookbook (`docs/COOKBOOK.md`) says when to use which, and what each one does when its process is paused, killed or cut off.

mod call;
pub mod job;
mod keep;
pub mod leader;
mod locked;
mod once;
pub mod quorum;
mod refused;
pub mod stripes;

pub use call::Call;
pub use job::Job;
pub use leader::Election;
pub use locked::while_locked;
pub use once::once;
pub use quorum::Quorum;
pub use refused::Refused;
pub use stripes::Stripes;
