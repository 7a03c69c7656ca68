//! Group commit: jobs, and the lanes that send them in batches.

pub(crate) mod alone;
pub(crate) mod endpoints;
#[cfg(feature = "testing")]
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod head;
pub(crate) mod job;
pub(crate) mod lanes;
pub(crate) mod link;
pub(crate) mod request_batch;
mod slot;
pub(crate) mod slow;
pub(crate) mod spare;
