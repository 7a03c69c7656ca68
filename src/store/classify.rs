//! Where an error of sqlx's becomes a [`Fault`]: its kind is found out once, here.

use sqlx::error::DatabaseError;

use super::brands;
use super::fault::Fault;
use crate::model::{Cause, FaultKind, said};

impl Fault {
    /// The same as of an error that is only lent: what it says is kept, not the error.
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

/// The kind of an error that the application has met, if it is one of a driver's. Behind `#[error(transparent)]`, sqlx's own
/// error is passed over, and the database's is seen.
pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<FaultKind> {
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return Some(classify(error));
    }
    let error = error.downcast_ref::<Box<dyn DatabaseError>>()?;
    Some(classify_database(error.as_ref()))
}

/// The kind of any driver's error: by the vendor's code where there is one.
pub(super) fn classify(error: &sqlx::Error) -> FaultKind {
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
    brands::fault_kind(error).unwrap_or(FaultKind::Other)
}
