//! The schema, the cleaner, and what a client remembers of rows, keys and pools.

pub(crate) mod cleaner;
pub(crate) mod known_rows;
pub(crate) mod prepare;
pub(crate) mod proven_pools;
pub(crate) mod seen_keys;
