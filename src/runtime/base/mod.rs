//! Threads, tasks and time.

pub(crate) mod backoff;
pub(crate) mod meter;
pub(crate) mod password;
pub(crate) mod settings;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod wait_log;
