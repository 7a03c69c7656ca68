//! Recipes on [rowlock](https://docs.rs/rowlock): what programs build from locks and records. They use its public API
//! only.
//!
//! - [`Job`]: a job that many machines start at the same minute runs once; [`job`](macro@job) is its attribute.
//! - [`Election`]: one leader at a time, and who it is.
//! - [`Inbox`]: a message takes effect once, in the transaction of its effect.
//! - [`Stripes`]: a counter that many transactions change at once.
//! - [`Quorum`]: one holder over several databases that have nothing in common.
//!
//! The cookbook (`docs/COOKBOOK.md` in the repository) says which recipe to use when, and what happens to the work
//! when its process is paused, killed or cut off.

#[cfg(doctest)]
#[doc = include_str!("../../rowlock-macros/docs/job.md")]
mod job_attribute {}

pub mod inbox;
pub mod job;
pub mod leader;
mod meter;
pub mod quorum;
pub mod stripes;

pub use inbox::Inbox;
pub use job::Job;
pub use leader::Election;
pub use quorum::Quorum;
pub use rowlock_macros::job;
pub use stripes::Stripes;
