//! The vocabulary: the types that all other modules use. Nothing here waits, and nothing here uses SQL.

pub(crate) mod bounds;
mod cause;
mod clock;
mod clock_error;
mod engine;
mod error;
mod fault_kind;
mod fingerprint;
mod form_token;
mod kind;
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
pub(crate) use clock::Moment;
pub(crate) use clock_error::ClockError;
pub use engine::{Engine, UnknownEngine};
pub use error::Error;
pub(crate) use fault_kind::FaultKind;
pub use fingerprint::{Fingerprint, FingerprintBuilder, FingerprintPieces};
pub use form_token::FormToken;
pub use kind::{Kind, Mode};
pub use lock::{Busy, LockInfo, Loss, ReleaseOutcome, SessionInfo, WaiterInfo};
pub use name::{InvalidName, Name};
pub use outcome::Outcome;
pub(crate) use record::{HTTP, check_any_step, check_scope, check_step};
pub use record::{InvalidKey, RecordKey};
pub use record_state::RecordState;
pub use subject::Subject;
pub use unfinished::Unfinished;
