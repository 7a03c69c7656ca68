//! Exactly once: an effect that happens once for a key, whoever asks how often.
//!
//! # Overview
//!
//! A *record* is a row for a key within a scope. Whoever begins first runs an *attempt*; what it comes to, the
//! *outcome*, is kept in the record, in the same transaction as the business write where there is one. Everybody who
//! comes with the same key and the same request (its *fingerprint*) later gets that outcome: a *replay*.
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
//!                     └────► unknown: it ended, or vanished, in the middle of a step that must not be repeated
//! ```
//!
//! When `max_attempts` attempts in a row have vanished, nobody takes over: the key is *poisoned*, until somebody resets it. What
//! was unknown is free when somebody has found out.
//!
//! # Trust window
//!
//! There is none: an attempt is ended by a statement that names it, and which changes nothing when another attempt has
//! taken over. In a transaction that statement fails ([`Error::Superseded`](crate::Error::Superseded)) and the business
//! write is rolled back with it. The lease only decides when others may take over.
//!
//! # Failure
//!
//! - *The process crashes*: what its transaction wrote is rolled back; its key is taken over when the lease is over.
//! - *The process is paused past its lease*: somebody takes over, under a higher attempt. The one that wakes up can
//!   neither record nor commit. What it does elsewhere (a call to another server) happens: give that one the
//!   [`downstream_key`](IdempotencyGuard::downstream_key), and it happens once there, too.
//! - *The database is out of reach*: nobody can begin, and nobody can end. The attempt can be ended when it is back.

mod begin;
mod begun;
mod form_token;
mod guard;
mod judge;
mod look;
mod record;
mod request;
mod run;
mod step;
mod steps;
mod waiting;
mod whole;

pub use crate::model::RecordState;
pub use begun::{Begun, InFlight, Reconciled, UnknownStep};
pub use form_token::{FormTokens, Submitted};
pub use guard::IdempotencyGuard;
pub use record::{RecordInfo, Resolution, StepInfo};
pub use request::Idempotency;
pub use step::StepFailed;
