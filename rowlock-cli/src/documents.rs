//! `rowlock completions` and `rowlock man`: what clap knows of the arguments, for shells and for man(1).

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Arguments, FAILED, Failure, out};

const NAME: &str = "rowlock";

pub(crate) fn print_completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut script);
    out::print(format_args!("{}", String::from_utf8_lossy(&script)))
}

/// Prints the page of the whole command, or writes a page for each command into `dir`.
pub(crate) fn print_manual(dir: Option<&Path>) -> Result<(), Failure> {
    let command = Arguments::command();
    let mut page = Vec::new();
    let made = match dir {
        Some(dir) => clap_mangen::generate_to(command, dir),
        None => clap_mangen::Man::new(command).render(&mut page),
    };
    made.map_err(|error| Failure::Other(format!("cannot write the manual: {error}"), FAILED))?;
    out::print(format_args!("{}", String::from_utf8_lossy(&page)))
}
