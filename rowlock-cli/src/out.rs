//! What the command prints. A reader that goes away early (`rowlock ls | head`) is no error, and ends nothing but the
//! printing.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use serde::Serialize;

use crate::{FAILED, Failure};

/// Prints a line on standard output.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::out::line(format_args!($($text)*))
    };
}
pub(crate) use say;

pub(crate) fn line(text: Arguments<'_>) -> Result<(), Failure> {
    print(format_args!("{text}\n"))
}

pub(crate) fn print(text: Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Other(format!("cannot print: {error}"), FAILED))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard error. This may fail: nobody reads it, or another process group has the terminal. Then
/// the command goes on.
pub(crate) fn tell(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "rowlock: {text}");
}

/// For JSON.
pub(crate) fn milliseconds(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    // Strings and numbers only: serialising cannot fail.
    say!(
        "{}",
        serde_json::to_string_pretty(value).unwrap_or_default()
    )
}
