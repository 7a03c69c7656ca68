//! What rowlock promises, on every engine: one file per promise (ARCHITECTURE.md, "Promises").
#![allow(missing_docs, reason = "tests are named, not documented")]

mod attempts;
mod bad_input;
mod bounded_trust;
mod cleaner;
mod complete_in;
mod ended_by_hand;
mod exclusion;
mod fence;
mod form_tokens;
mod idempotency;
mod idle_locks;
mod in_tx_bad_input;
mod lock_all;
mod migrations;
mod modes;
mod nothing_leaks;
mod one_clock;
mod one_outcome;
mod open_steps;
mod optimistic;
mod order_dedupe;
mod pessimistic;
mod pin;
mod pool;
mod re_entry;
mod record_states;
mod release;
mod renewals;
mod retry;
mod run_in_tx;
mod runtimes;
mod sessions;
mod shutdown;
mod steps;
mod waiting;
