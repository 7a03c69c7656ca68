//! The database: one atomic decision of it per method.
//!
//! - [`verbs`]: the traits, with their parameters and outcomes, without any engine's SQL.
//! - [`driver`]: what all engines share below their SQL: the list of engines, URLs, connections, failures, migrations.
//! - `postgres`, `mysql`, `sqlite`: each implements a trait in its file of the same name, in its best native form.
//!   MariaDB is spoken to by `mysql`.
//! - `tests`: what every engine promises of the verbs. The contract tests hold all engines to the same promises.

pub(crate) mod driver;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verbs;
