//! What rowlock promises, on every engine: one file per promise.
#![allow(missing_docs, reason = "tests are named, not documented")]

#[path = "../common/mod.rs"]
mod common;

mod exclusion;
