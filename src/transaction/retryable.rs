//! Which errors mean that a transaction may succeed when it begins again.

use crate::model::Error;
use crate::store::driver::classify::kind_of;

/// An error that says whether its transaction may succeed when it begins again.
///
/// [`rowlock::Error`](Error) implements it, and so do boxed errors: `Box<dyn Error + Send + Sync>` and
/// `anyhow::Error`. A boxed error searches its sources for an error of rowlock or sqlx. (An enum variant with
/// `#[error(transparent)]` hides rowlock's error.) An error enum of the application decides for each variant:
///
/// ```
/// use rowlock::Retryable;
///
/// #[derive(Debug, thiserror::Error)]
/// enum ShopError {
///     #[error(transparent)]
///     Lock(#[from] rowlock::Error),
///     #[error(transparent)]
///     Sql(#[from] sqlx::Error),
///     #[error("sold out")]
///     SoldOut,
/// }
///
/// impl Retryable for ShopError {
///     fn is_retryable(&self) -> bool {
///         match self {
///             Self::Lock(error) => error.is_retryable(),
///             Self::Sql(error) => rowlock::is_retryable(error),
///             Self::SoldOut => false,
///         }
///     }
/// }
///
/// assert!(ShopError::Lock(rowlock::one_changed(0).unwrap_err()).is_retryable());
/// assert!(!ShopError::Sql(sqlx::Error::RowNotFound).is_retryable());
/// assert!(!ShopError::SoldOut.is_retryable());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell whether a transaction that failed with it may be tried again",
    label = "this error type does not implement `rowlock::Retryable`",
    note = "return `rowlock::Error`, `Box<dyn std::error::Error + Send + Sync>` or `anyhow::Error` from the closure",
    note = "or write `impl rowlock::Retryable for {Self}`: its `is_retryable` asks `rowlock::Error::is_retryable` and \
            `rowlock::is_retryable` for the errors in it"
)]
pub trait Retryable {
    /// Whether to try again.
    fn is_retryable(&self) -> bool;
}

impl Retryable for Error {
    fn is_retryable(&self) -> bool {
        Error::is_retryable(self)
    }
}

impl<E: AsRef<dyn std::error::Error + Send + Sync>> Retryable for E {
    fn is_retryable(&self) -> bool {
        is_retryable(self.as_ref())
    }
}

/// Whether an error, or one of its sources, means that the transaction may succeed when it begins again: a conflict,
/// a deadlock, a serialization failure, or a lock wait that timed out.
#[must_use]
pub fn is_retryable(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_retryable();
        }
        if let Some(kind) = kind_of(error) {
            return kind.may_begin_anew();
        }
        next = error.source();
    }
    false
}
