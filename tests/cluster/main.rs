//! Behind poolers and on clusters: real ones, started by `docker/servers.sh`.
//!
//! - [`commits`]: a commit of PostgreSQL that waits for a standby.
//! - [`packets`]: servers of MySQL and MariaDB that take small statements only.
//! - [`passwords`]: passwords that change while clients work.
//! - [`pooler`]: PgBouncer in transaction mode, which keeps no track of prepared statements.
//! - [`servers`]: a primary and its standby, several servers in one URL, and servers that are gone.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod commits;
mod packets;
mod passwords;
mod pooler;
mod servers;
