//! Counts nothing.

use std::time::Duration;

use crate::model::{Kind, Loss};

pub(crate) const fn describe() {}

pub(crate) const fn acquired(_: Kind, _: &str, _: Duration) {}

pub(crate) const fn lost(_: &str, _: Loss) {}

pub(crate) const fn late(_: usize) {}

pub(crate) const fn statement(_: &str, _: usize, _: Duration, _: bool) {}

pub(crate) const fn request(_: &str) {}

/// It knows no time.
#[derive(Debug)]
pub(crate) struct Since;

#[allow(clippy::unused_self, reason = "nothing is counted")]
impl Since {
    pub(crate) const fn now() -> Self {
        Self
    }

    pub(crate) const fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    pub(crate) const fn held(&self) {}

    pub(crate) const fn ran(&self, _: &str) {}
}

#[derive(Debug)]
pub(crate) struct InQueue;

impl InQueue {
    pub(crate) const fn new() -> Self {
        Self
    }
}
