//! The command line, read by hand: a crate that parses it would have to be built before the first sale.

use std::ops::RangeInclusive;

pub(crate) const HELP: &str = "\
Sells a limited stock to many buyers from several processes, once per way of guarding it.

Usage: flash_sale [OPTIONS]

Options:
  --url URL          the database; a SQLite file in a temporary folder when not given [env: ROWLOCK_URL]
                     (postgres://… and mysql://… need a build with --features postgres,mysql)
  --stock ITEMS      items in stock [default: 100]
  --buyers BUYERS    buyers, each of whom wants one item [default: 500]
  --processes COUNT  operating system processes that serve the buyers [default: 4]
  --modes MODES      ways of guarding the stock [default: none,lease,pinned,pessimistic,optimistic,unique]
                       none         no guard at all: oversells
                       lease        a lease lock around reading and writing
                       pinned       the same, and the transaction that writes commits only if the lease is held until its end
                       pessimistic  a lock in the transaction that writes, which ends with it
                       optimistic   no lock: a buyer who finds that another one was faster begins again
                       unique       no lock of rowlock's: a unique index on the number of the order
  --json             print one JSON object and nothing else
  -h, --help         print this";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) url: Option<String>,
    pub(crate) stock: u32,
    pub(crate) buyers: u32,
    pub(crate) processes: u32,
    pub(crate) modes: Vec<Mode>,
    pub(crate) json: bool,
    /// Serve so many buyers of `modes[0]`, as one of the processes.
    pub(crate) serve: Option<u32>,
}

/// A way of guarding the stock; [`HELP`] describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    None,
    Lease,
    Pinned,
    Pessimistic,
    Optimistic,
    Unique,
}

const MODES: [(&str, Mode); 6] = [
    ("none", Mode::None),
    ("lease", Mode::Lease),
    ("pinned", Mode::Pinned),
    ("pessimistic", Mode::Pessimistic),
    ("optimistic", Mode::Optimistic),
    ("unique", Mode::Unique),
];

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        let found = MODES.iter().find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }

    pub(crate) fn is_guarded(self) -> bool {
        self != Self::None
    }
}

impl Arguments {
    /// `Ok(None)`: help is asked for.
    pub(crate) fn parse(given: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut arguments = Self {
            url: std::env::var("ROWLOCK_URL").ok(),
            stock: 100,
            buyers: 500,
            processes: 4,
            modes: MODES.map(|(_, mode)| mode).to_vec(),
            json: false,
            serve: None,
        };
        let mut given = given;
        while let Some(argument) = given.next() {
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            match (option, &value) {
                ("-h" | "--help", None) => return Ok(None),
                ("--json", None) => {
                    arguments.json = true;
                    continue;
                }
                _ => {}
            }
            let value = || {
                let value = value.or_else(|| given.next());
                value.ok_or_else(|| format!("{option} needs a value"))
            };
            match option {
                "--url" => arguments.url = Some(value()?),
                "--stock" => arguments.stock = number(option, &value()?, 1..=1_000_000)?,
                "--buyers" => arguments.buyers = number(option, &value()?, 1..=100_000)?,
                "--processes" => arguments.processes = number(option, &value()?, 1..=64)?,
                "--modes" => arguments.modes = modes(&value()?)?,
                "--serve" => arguments.serve = Some(number(option, &value()?, 0..=100_000)?),
                _ => return Err(format!("{argument} is unknown: --help lists the options")),
            }
        }
        Ok(Some(arguments))
    }
}

fn number(option: &str, value: &str, allowed: RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| allowed.contains(number));
    number.ok_or_else(|| {
        let (least, most) = (allowed.start(), allowed.end());
        format!("{option} {value} is refused: {least} to {most} are allowed")
    })
}

fn modes(list: &str) -> Result<Vec<Mode>, String> {
    let mode = |name: &str| {
        let found = MODES.iter().find(|(known, _)| *known == name);
        let mode = found.map(|(_, mode)| *mode);
        mode.ok_or_else(|| format!("there is no mode {name:?}: --help lists the modes"))
    };
    list.split(',').map(mode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Arguments>, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_in_both_forms() {
        let sale = parse("--url sqlite:a.db --stock=7 --modes unique,none --json");
        let sale = sale.unwrap().unwrap();
        assert_eq!(sale.url.as_deref(), Some("sqlite:a.db"));
        assert_eq!((sale.stock, sale.buyers, sale.processes), (7, 500, 4));
        assert_eq!(sale.modes, [Mode::Unique, Mode::None]);
        assert!(sale.json);
        assert_eq!(parse("--stock 7 --help"), Ok(None));
    }

    #[test]
    fn wrong_usage_says_what_is_right() {
        for (line, said) in [
            ("--stock", "--stock needs a value"),
            ("--stock 0", "1 to 1000000 are allowed"),
            ("--processes many", "1 to 64 are allowed"),
            ("--modes lease,hope", "there is no mode \"hope\""),
            ("--json=1", "--json=1 is unknown"),
            ("sell", "sell is unknown"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
