//! What all engines share: the [list of them](engines), how they are [reached](connector), what [they can
//! do](capabilities), what their [errors mean](classify), and how their schema is [made](migrate).

pub(crate) mod capabilities;
pub(crate) mod classify;
pub(crate) mod connector;
pub(crate) mod engines;
pub(crate) mod fault_error;
pub(crate) mod json;
pub(crate) mod migrate;
pub(crate) mod migration_sql;
pub(crate) mod origin;
pub(crate) mod request;
pub(crate) mod rights;
pub(crate) mod servers;
pub(crate) mod url;
pub(crate) mod write_turn;
