//! The command on real servers: rights, poolers, servers that take no writes.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod command;
mod console;
mod pooler;
mod read_only;
mod rights;
mod start;
mod url;
