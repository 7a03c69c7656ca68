//! What is stored of a response: the application may take parts out of it, and encrypt the rest.

use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use rowlock::RecordKey;

use crate::body::BoxError;

/// Changes what is kept of a response.
pub(crate) type Redact = dyn Fn(&mut Parts, &mut Vec<u8>) + Send + Sync;

type Turn = dyn Fn(&RecordKey, &[u8]) -> Result<Vec<u8>, BoxError> + Send + Sync;

/// Seals what is stored, and opens it again.
#[derive(Clone)]
pub(crate) struct Seal {
    pub(crate) seal: Arc<Turn>,
    pub(crate) open: Arc<Turn>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}
