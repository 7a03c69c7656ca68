//! Who waits: in the [queue] of the database, or in this client.

pub(crate) mod cohort;
pub(crate) mod queue;
pub(crate) mod queue_place;
pub(crate) mod single_flight;
pub(crate) mod waiters;
