//! The promises of the example `payments` to its clients and operators, tested over real sockets.
//!
//! Kills and pauses are in `tests/fault/payments`.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod files;
mod limits;
mod orders;
mod signals;
mod start;
mod stop;
mod world;
