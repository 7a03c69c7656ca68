//! The vocabulary: the types that all other rooms speak of. Nothing here waits, or knows of SQL.

pub(crate) mod bounds;
mod cause;
mod clock;
mod engine;
mod error;
mod fault_kind;
mod fingerprint;
mod form_token;
mod lock;
mod name;
mod outcome;
mod record;
mod record_state;
mod subject;
mod unfinished;

pub use cause::Cause;
pub(crate) use cause::said;
pub use clock::Deadline;
pub(crate) use clock::{ClockError, Moment};
pub use engine::{Engine, UnknownEngine};
pub use error::Error;
pub(crate) use fault_kind::FaultKind;
#[cfg(feature = "tower")]
pub(crate) use fingerprint::Pieces;
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use form_token::FormToken;
pub use lock::{Busy, LockInfo, Loss, ReleaseOutcome};
pub use name::{InvalidName, Name};
pub use outcome::Outcome;
#[cfg(feature = "tower")]
pub(crate) use record::HTTP;
#[cfg(feature = "cli")]
pub(crate) use record::quoted;
pub use record::{InvalidKey, RecordKey};
pub(crate) use record::{check_scope, check_step};
pub use record_state::RecordState;
pub use subject::Subject;
pub use unfinished::Unfinished;
