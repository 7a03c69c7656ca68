//! What the command logs on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::{EnvFilter, FilterExt as _, LevelFilter};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use crate::out::tell;

const VARIABLE: &str = "ROWLOCK_LOG";
/// Errors, and what blocks a wait.
const USUAL: &str = "error,rowlock::waiting=info";
/// An action in the console has no other record than its line in the log.
const ACTIONS: &str = "rowlock::console=info";
/// sqlx logs a line of `~/.pgpass` that it cannot read, with its password.
const PASSWORDS: &str = "sqlx_postgres::options::pgpass=off";

/// From now on errors, what blocks a wait, the actions of the console, and what the variable adds are printed. With
/// `off`: the actions.
pub(crate) fn begin() {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let added = EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .parse(&wanted)
        .unwrap_or_else(|error| {
            tell(format_args!(
                "{VARIABLE}={wanted:?} is not understood: {error}"
            ));
            EnvFilter::new("off")
        });
    let usual = if wanted.trim().eq_ignore_ascii_case("off") {
        ACTIONS.into()
    } else {
        format!("{USUAL},{ACTIONS}")
    };
    let no_passwords = |filter: EnvFilter| match PASSWORDS.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let filter = no_passwords(added).or(no_passwords(EnvFilter::new(usual)));
    let lines = layer()
        .with_ansi(has_colours())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
}

/// Whether standard error is a terminal, and nobody has switched colours off (no-color.org).
fn has_colours() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|off| !off.is_empty());
    std::io::stderr().is_terminal() && !is_off
}
