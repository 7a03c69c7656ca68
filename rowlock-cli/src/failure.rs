//! Why a command did not do what it should: what it says, and its exit code.

use rowlock::{ConnectError, Error, InvalidError, RecordError, SchemaError};

use crate::{
    DAMAGED, FAILED, LOST, NOT_ACQUIRED, NOT_SET_UP, UNAVAILABLE, USAGE, duration, idempotency,
};

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) enum Failure {
    Rowlock(Error),
    /// A message and an exit code.
    Other(String, u8),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Rowlock(error)
    }
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Other(_, code) => *code,
            Self::Rowlock(error) => match error {
                Error::Invalid(_)
                | Error::Connect(
                    ConnectError::InvalidUrl { .. } | ConnectError::EngineNotBuilt { .. },
                )
                | Error::WrongKind { .. } => USAGE,
                Error::Unreachable { .. }
                | Error::ReadOnly { .. }
                | Error::Connect(
                    ConnectError::LoginRefused { .. }
                    | ConnectError::NoSuchDatabase { .. }
                    | ConnectError::Unwritable { .. },
                )
                | Error::OutcomeUnknown { .. } => UNAVAILABLE,
                Error::WaitTimeout { .. } | Error::QueueFull { .. } => NOT_ACQUIRED,
                Error::Lost { .. } => LOST,
                Error::Schema(SchemaError::Corrupt { .. })
                | Error::Record(RecordError::Corrupt { .. }) => DAMAGED,
                Error::Denied { .. } | Error::Connect(_) | Error::Schema(_) => NOT_SET_UP,
                other => idempotency::code(other).unwrap_or(FAILED),
            },
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Self::Other(message, _) => message.clone(),
            Self::Rowlock(Error::Invalid(error)) => refusal(error),
            Self::Rowlock(error) => error.to_string(),
        }
    }
}

/// Names the option instead of the setting in Rust.
fn refusal(error: &InvalidError) -> String {
    let option = |setting| match setting {
        "ttl" | "wait" | "at_least_for" | "at_most_for" | "why" | "from" | "schema" => {
            Some(format!("--{}", setting.replace('_', "-")))
        }
        "quarantine" | "pause" => Some("--for".into()),
        _ => None,
    };
    let said = match error {
        InvalidError::Duration {
            setting,
            given,
            bounds,
        } => option(*setting)
            .map(|option| format!("{option} {} is refused: {bounds}", duration::span(*given))),
        InvalidError::Setting { setting, reason } => {
            option(*setting).map(|option| format!("{option} is refused: {reason}"))
        }
        _ => None,
    };
    said.unwrap_or_else(|| error.to_string())
}
