//! The command, as a shell sees it: outputs, exit codes, signals.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod bad_input;
mod closed;
mod console;
mod exit_codes;
mod forget;
mod idempotency;
mod ignored;
mod jobs;
mod operators;
mod pause;
mod printable;
mod quarantine;
mod quiet;
mod records;
mod run;
mod scheduled;
mod sessions;
mod share;
mod shell;
mod show;
mod typed;
mod upgrade;
mod waiting;
mod words;
