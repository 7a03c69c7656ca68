//! The shop of the example `payments`, over real sockets: what its clients and its operators can rely on.
//!
//! Kills and pauses are in `tests/fault/payments.rs`.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod limits;
mod orders;
mod start;
mod stop;
mod world;
