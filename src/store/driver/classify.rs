//! Classifies an error of sqlx's once, when it becomes a [`Fault`].

use sqlx::error::DatabaseError;

use super::engines;
use crate::model::{Cause, FaultKind, said};
use crate::store::verbs::fault::Fault;

impl Fault {
    /// The same for a borrowed error: keeps its text, not the error.
    pub(crate) fn seen(error: &sqlx::Error) -> Self {
        Self::said(classify(error), said(error))
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        let kind = classify(&error);
        Self {
            kind,
            cause: Cause::new(error, kind),
        }
    }
}

/// The kind of an error of the application's, if a driver's error is in its chain. Through `#[error(transparent)]`,
/// this skips sqlx's own error and finds the database's.
pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<FaultKind> {
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return Some(classify(error));
    }
    let error = error.downcast_ref::<Box<dyn DatabaseError>>()?;
    Some(classify_database(error.as_ref()))
}

/// The kind of a driver's error: by the vendor's code where it has one.
pub(crate) fn classify(error: &sqlx::Error) -> FaultKind {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::Tls(_) | E::Protocol(_) | E::WorkerCrashed | E::BeginFailed => {
            FaultKind::Disconnected
        }
        E::Database(error) => classify_database(error.as_ref()),
        _ => FaultKind::Other,
    }
}

fn classify_database(error: &dyn DatabaseError) -> FaultKind {
    engines::fault_kind(error).unwrap_or(FaultKind::Other)
}
