//! The kinds of failure of a statement. They are the same for every engine.

/// The meaning of a failed statement for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Another transaction was faster (MariaDB's 1020): rolled back.
    Conflict,
    /// A duplicate key.
    Duplicate,
    /// The victim of a deadlock: rolled back.
    Deadlock,
    /// A serialization failure: rolled back.
    Serialization,
    /// A lock wait timed out: the statement is rolled back.
    LockTimeout,
    /// A person, or a limit of the server, ended the statement: rolled back.
    Interrupted,
    /// The statement's transaction failed or ended before the statement.
    TransactionOver,
    /// The connection is broken. If a statement was in flight, its outcome is unknown.
    Disconnected,
    /// The server takes no writes, because it is no longer the primary. Nothing was done, and
    /// another connection may find the new primary.
    ReadOnly,
    /// The search path names no existing schema. (The cause contains the path.)
    NoSchema,
    /// The server refuses the login.
    LoginRefused,
    /// The database does not exist.
    NoSuchDatabase,
    /// The file cannot be opened or written.
    Unwritable,
    /// The file has two names.
    TwoNames,
    /// This user lacks a right.
    Denied,
    /// Row level security hides rows of rowlock's tables from this user, or refuses to write them (PostgreSQL).
    RowSecurity,
    /// A table is missing.
    NoSuchTable,
    /// A table has no such column, or a function of rowlock's is missing.
    NoSuchColumn,
    /// The statement is larger than the server accepts. Nothing was done, and the connection is closed.
    TooLarge,
    /// Any other failure: rolled back, and the same statement would fail again.
    Other,
}

impl FaultKind {
    /// Whether the connection must be replaced: it is broken, or another one may find the primary.
    pub(crate) fn ends_connection(self) -> bool {
        matches!(self, Self::Disconnected | Self::ReadOnly | Self::TooLarge)
    }

    /// Whether the statement was rolled back and may be sent again.
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

    /// Whether every statement fails until a person mends the schema, or the rights.
    pub(crate) fn is_of_schema(self) -> bool {
        matches!(
            self,
            Self::NoSchema
                | Self::Denied
                | Self::RowSecurity
                | Self::NoSuchTable
                | Self::NoSuchColumn
        )
    }

    /// Whether the whole transaction may succeed when it begins again. (A duplicate key would fail
    /// again.)
    pub(crate) fn may_begin_anew(self) -> bool {
        matches!(
            self,
            Self::Conflict | Self::Deadlock | Self::Serialization | Self::LockTimeout
        )
    }
}
