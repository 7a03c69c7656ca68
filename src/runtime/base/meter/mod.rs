//! What a client counts, for the application's own metrics: through the facade of the crate `metrics`, with the
//! feature `metrics`. Without that feature nothing is counted. docs/METRICS.md has the list.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{InQueue, Since, acquired, describe, late, lost, request, statement};
#[cfg(feature = "metrics")]
pub(crate) use on::{InQueue, Since, acquired, describe, late, lost, request, statement};
