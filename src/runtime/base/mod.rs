//! Threads, tasks and time, and what the application is told: metrics and spans.

pub(crate) mod backoff;
pub(crate) mod meter;
pub(crate) mod password;
pub(crate) mod settings;
pub(crate) mod spans;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod wait_log;
