//! Exactly once: an effect happens once for a key, however often it is requested.
//!
//! # Overview
//!
//! A *record* is a row for a key within a scope. The first caller runs an *attempt*. The attempt stores its *outcome*
//! in the record, in the same transaction as the business write where there is one. Every later caller with the same
//! key and the same request (its *fingerprint*) gets that outcome: a *replay*.
//!
//! # State model
//!
//! ```text
//!            begin              complete, complete_in         retention over           forgotten
//!  (nothing) ─────► running ───────────────────────────► done ──────────────► expired ──────────────► (nothing)
//!                   │ │ ▲ ▲
//!  released, dropped│ │ │ └─ past its lease: the next one takes over, under a higher attempt
//!                   ▼ │ │
//!                  free ┘    begin, under a higher attempt
//!                     │
//!                     └────► unknown: the attempt ended or was abandoned during a step that must not be repeated
//! ```
//!
//! When `max_attempts` attempts in a row were abandoned, each within an hour after the one before, no attempt begins:
//! the key is *poisoned*, until an hour after the last one, or until an administrator resets it. An unknown record
//! becomes free when a hook or a person reports whether the step happened.
//!
//! # Trust window
//!
//! None. The statement that ends an attempt names it, and changes nothing when another attempt has taken over. In a
//! transaction this is an error ([`Error::Superseded`](crate::Error::Superseded)), and the business write is rolled
//! back too. The lease only decides when others may take over.
//!
//! # Failure
//!
//! - *The process crashes*: the database rolls its transaction back. Another attempt can take over when the lease is
//!   over.
//! - *The process is paused past its lease*: another attempt may take over, under a higher number. When the paused
//!   process wakes, it can neither record nor commit. Its calls to other servers still happen: send them the
//!   [`downstream_key`](IdempotencyGuard::downstream_key), so that they have their effect once, too.
//! - *The database is out of reach*: no attempt can begin or end. A running attempt can end when the database is back.

mod begin;
mod begun;
mod events;
mod form_token;
mod form_token_tx;
mod guard;
mod judge;
mod layer_attempt;
mod layer_keys;
mod list;
mod look;
#[cfg(feature = "testing")]
mod lose;
mod outcome_bounds;
mod record;
mod request;
mod run_in_tx;
mod step;
mod step_state;
mod waiting;

pub use crate::model::RecordState;
pub use begun::{Begun, InFlight, Reconciled, UnknownStep};
pub use form_token::{FormTokens, Submitted};
pub use guard::IdempotencyGuard;
pub use layer_attempt::LayerAttempt;
pub use layer_keys::LayerKeys;
pub use record::{RecordInfo, Resolution, StepInfo};
pub use request::Idempotency;
pub use step::StepFailed;

/// The traits for layers are methods of this room's types.
mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Idempotency {}
    impl Sealed for super::IdempotencyGuard {}
}
