//! What a failed statement means, the same for every brand.

/// What a failed statement means for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Another transaction was faster (MariaDB's 1020): rolled back.
    Conflict,
    /// A duplicate key.
    Duplicate,
    /// Chosen as the victim of a deadlock: rolled back.
    Deadlock,
    /// A serialization failure: rolled back.
    Serialization,
    /// A lock was waited for in vain: the statement is rolled back.
    LockTimeout,
    /// Somebody, or a limit of the server's, ended the statement: rolled back.
    Interrupted,
    /// The transaction that the statement was meant for has failed before, or has ended.
    TransactionOver,
    /// The connection is of no use any more. If a statement was under way, its outcome is unknown.
    Disconnected,
    /// The server takes no writes, because it is not the primary any more: nothing was done, and
    /// another connection may find the one that is.
    ReadOnly,
    /// The search path names no schema that is there. (The cause is the path.)
    NoSchema,
    /// The server refuses the login.
    LoginRefused,
    /// There is no such database.
    NoSuchDatabase,
    /// The file cannot be opened, or not be written.
    Unwritable,
    /// This user lacks a right.
    Denied,
    /// A table is missing.
    NoSuchTable,
    /// The statement is larger than the server takes. Nothing was done, and the connection is closed.
    TooLarge,
    /// Something else: rolled back, and the same statement would fail again.
    Other,
}

impl FaultKind {
    /// Whether the connection is of no use any more, or another one may find a better server.
    pub(crate) fn ends_connection(self) -> bool {
        matches!(self, Self::Disconnected | Self::ReadOnly | Self::TooLarge)
    }

    /// Whether the statement was rolled back and may simply be sent again.
    pub(crate) fn may_be_sent_again(self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::Duplicate
                | Self::Deadlock
                | Self::Serialization
                | Self::LockTimeout
                | Self::Interrupted
        )
    }

    /// Whether a whole transaction that failed with it may well succeed when it is begun anew. (A
    /// duplicate key would be one again.)
    pub(crate) fn may_begin_anew(self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::Deadlock | Self::Serialization | Self::LockTimeout
        )
    }
}
