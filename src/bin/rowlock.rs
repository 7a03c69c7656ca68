//! The command `rowlock`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rowlock::cli::main()
}
