//! Named questions about an engine. The rest of the crate asks these, and never which engine it is.

/// Facts about every server of an engine. Each engine's `connect.rs` states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and is asked alone"
)]
pub(crate) struct Capabilities {
    /// One connection writes at a time, in the whole database.
    ///
    /// An open transaction of the application's keeps every lane from writing. A lane waits for that transaction, so
    /// the transaction must not wait long for a lane. Beginning such a transaction waits for all other writers, so a
    /// look that may make the transaction unnecessary comes first. A second connection for renewals would not help.
    pub(crate) one_writer: bool,

    /// A transaction that has locked a row and finds a live lease in it cannot unlock the row. The holder could
    /// neither renew nor release the lease before the transaction ends.
    pub(crate) leased_rows_stay_locked: bool,

    /// A look for a missing row does not keep others from making it, and the transaction that looked can lock the new
    /// row.
    pub(crate) missing_rows_can_be_made: bool,

    /// A locking read sees the rows of the transaction's snapshot, and no newer ones.
    pub(crate) locks_only_its_snapshot: bool,

    /// Some decisions are functions in the database, and each release has its own.
    pub(crate) has_functions: bool,
}
