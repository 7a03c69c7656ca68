//! What one engine alone does.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod beside_rusqlite;
mod cancelled;
mod claims;
mod cleaning;
mod encoding;
mod full_disk;
mod functions;
mod idle;
mod journal;
mod looks;
mod mysql;
mod no_room;
mod own_transaction;
mod plans;
mod postgres;
mod read_split;
mod row_security;
mod schema;
mod sqlite;
mod sqlite_file;
mod wakes;
