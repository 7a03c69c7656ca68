//! What one brand alone does.
#![allow(missing_docs, reason = "tests are named, not documented")]

#[path = "../common/mod.rs"]
mod common;

mod claims;
mod full_disk;
mod idle;
mod looks;
mod mysql;
mod postgres;
mod read_split;
mod sqlite;
