//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, ValueEnum};

const URL: &str = "\
The database; without it a SQLite file in a temporary folder. It removes and makes the table web_sessions there; rowlock's own \
tables stay. postgres://… needs a build with --features postgres.";

/// Lets users with several browser tabs fill their carts on two servers, once for each way of guarding the session.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Arguments {
    #[arg(long, help = URL)]
    pub(crate) url: Option<String>,
    /// Users, each with a session.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) users: u32,
    /// Tabs of each user. In each round, all of them add an item at the same time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) tabs: u32,
    /// Rounds: items that each tab adds.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) items: u32,
    /// Ways of guarding the session.
    #[arg(long, value_delimiter = ',', default_value = "none,lease,pinned")]
    pub(crate) modes: Vec<Mode>,
    /// How long a handler works between the load and the save.
    #[arg(long, default_value_t = 5, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) think_ms: u64,
    /// How long a crashed server keeps a session from the other server.
    #[arg(long, default_value_t = 5_000, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(100..=86_400_000))]
    pub(crate) ttl_ms: u64,
    /// How long a request waits for others of its session. Longer than the TTL, so that it outlasts a crash.
    #[arg(long, default_value_t = 10_000, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub(crate) wait_ms: u64,
    /// Kill one of the servers halfway, in the middle of a request.
    #[arg(long)]
    pub(crate) kill: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Let the tabs of a user wait for each other: without a lock until all have loaded the session, with a lock until
    /// all ask for it.
    #[arg(long, hide = true)]
    pub(crate) meet: bool,
    #[command(flatten)]
    pub(crate) process: Process,
}

/// What the program tells the processes that serve.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Process {
    /// Serve `modes[0]`, as one of the processes. The first line of the input is the URL.
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
    /// Where the requests that this process serves meet.
    #[arg(long, hide = true)]
    pub(crate) meet_at: Option<SocketAddr>,
    /// Stop in the middle of this request, and wait to be killed.
    #[arg(long, hide = true)]
    pub(crate) stop_at: Option<u32>,
}

impl Arguments {
    pub(crate) fn think(&self) -> Duration {
        Duration::from_millis(self.think_ms)
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(crate) fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }

    /// The requests that add an item.
    pub(crate) fn requests(&self) -> u32 {
        self.users
            .saturating_mul(self.tabs)
            .saturating_mul(self.items)
    }

    /// The arguments of a serving process.
    pub(crate) fn for_server(&self, mode: Mode) -> Vec<String> {
        let ms = [
            ("--think-ms", self.think_ms),
            ("--ttl-ms", self.ttl_ms),
            ("--wait-ms", self.wait_ms),
        ];
        let serve = ["--serve".to_owned(), "--modes".to_owned(), mode.name()];
        let times = ms.map(|(name, ms)| [name.to_owned(), ms.to_string()]);
        serve
            .into_iter()
            .chain(times.into_iter().flatten())
            .collect()
    }
}

/// A way of guarding the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// No guard: loses items.
    None,
    /// A lease around load, handler and save.
    Lease,
    /// A lease too, and the save commits only if the lease is still held.
    Pinned,
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

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["web_sessions"].iter().chain(words))
    }

    #[test]
    fn every_mode_runs_unless_some_are_named() {
        assert_eq!(parse(&[]).unwrap().modes, Mode::value_variants());
        let some = parse(&["--modes", "pinned,none"]).unwrap();
        assert_eq!(some.modes, [Mode::Pinned, Mode::None]);
    }

    #[test]
    fn a_serving_process_understands_its_arguments() {
        let asked = parse(&["--think-ms", "1", "--ttl-ms", "200", "--wait-ms", "3"]).unwrap();
        for mode in Mode::value_variants() {
            let words = asked.for_server(*mode);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let served = parse(&words).unwrap();
            assert!(served.process.serve);
            assert_eq!(served.modes, [*mode]);
            let ms = [1, 200, 3].map(Duration::from_millis);
            assert_eq!([served.think(), served.ttl(), served.wait()], ms);
        }
    }

    #[test]
    fn wrong_usage_says_what_is_right() {
        for (words, said) in [
            (["--tabs", "0"], "1..=16"),
            (["--ttl-ms", "99"], "100..=86400000"),
            (["--modes", "hope"], "possible values: none, lease, pinned"),
        ] {
            let error = parse(&words).unwrap_err().to_string();
            assert!(error.contains(said), "{words:?}: {error}");
        }
    }
}
