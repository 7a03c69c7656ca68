//! How a release ended.

use super::{Error, Loss, Name};

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it tells whether the lease was still held"]
pub(crate) enum ReleaseOutcome {
    /// The lease was held until this call, which released this guard.
    Released,
    /// The lease was lost before this call. Work after the loss was not protected by the lock.
    Lost(Loss),
    /// An earlier call released this guard.
    AlreadyReleased,
}

impl ReleaseOutcome {
    /// A loss is an error of the caller's.
    pub(crate) fn or_lost(self, name: &Name) -> Result<(), Error> {
        match self {
            Self::Released | Self::AlreadyReleased => Ok(()),
            Self::Lost(loss) => Err(Error::Lost {
                name: name.clone(),
                loss,
            }),
        }
    }
}
