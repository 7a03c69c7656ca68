//! The command line.

use clap::{Parser, ValueEnum};

const URL: &str = "\
The database; without it a SQLite file in a temporary folder. It removes and makes the tables flash_sale_stock and \
flash_sale_orders there; rowlock's own tables stay. postgres://… and mysql://… need a build with --features postgres,mysql.";

/// Sells a limited stock to many buyers from several processes, once for each way of guarding the stock.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Arguments {
    #[arg(long, help = URL)]
    pub(crate) url: Option<String>,
    /// Items in stock.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) stock: u32,
    /// Buyers. Each wants one item.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) buyers: u32,
    /// Operating system processes that serve the buyers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: u32,
    /// Ways of guarding the stock.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,lease,pinned,pessimistic,optimistic,unique,striped"
    )]
    pub(crate) modes: Vec<Mode>,
    /// Stripes of the stock, in the mode `striped`.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) stripes: u32,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve this many buyers of `modes[0]`, as one of the processes. The first line of the input is the URL.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<u32>,
}

/// A way of guarding the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// No guard: oversells.
    None,
    /// A lease around reading and writing.
    Lease,
    /// A lease too, and the transaction that writes commits only if the lease is still held.
    Pinned,
    /// A lock in the transaction that writes; it ends with the transaction.
    Pessimistic,
    /// No lock: a buyer who finds that another buyer was faster begins again.
    Optimistic,
    /// No lock of rowlock's: a unique index on the order number.
    Unique,
    /// The stock in several rows, each under a lock of its own in the transaction that writes.
    Striped,
}

impl Mode {
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn is_guarded(self) -> bool {
        self != Self::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["flash_sale"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn every_mode_sells_unless_some_are_named() {
        assert_eq!(parse("").unwrap().modes, Mode::value_variants());
        let some = parse("--modes unique,none").unwrap();
        assert_eq!(some.modes, [Mode::Unique, Mode::None]);
    }

    #[test]
    fn a_serving_process_understands_the_name_of_every_mode() {
        for mode in Mode::value_variants() {
            let serving = parse(&format!("--modes {} --serve 7", mode.name())).unwrap();
            assert_eq!((serving.modes, serving.serve), (vec![*mode], Some(7)));
        }
    }

    #[test]
    fn wrong_usage_says_what_is_right() {
        for (line, said) in [
            ("--stock 0", "1..=1000000"),
            ("--processes 65", "1..=64"),
            ("--stripes 0", "1..=256"),
            ("--modes lease,hope", "possible values: none, lease, pinned"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
