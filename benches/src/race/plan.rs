//! Which heats a race has. In a heat, all contenders do the same.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::Failure;
use crate::contender::{ENTRIES, Entry, Means};
use crate::workload::Workload;

/// Races rowlock against other locks, on private servers.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Who takes part. Without this: everyone.
    #[arg(long, value_delimiter = ',')]
    pub(crate) contenders: Vec<String>,
    /// What they do.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "spread,own,hot,mixed,growth,snapshot"
    )]
    pub(crate) workloads: Vec<Kind>,
    /// How many tasks there are in all processes together.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    pub(crate) tasks: Vec<u32>,
    /// How many processes have these tasks.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    pub(crate) processes: Vec<u32>,
    /// How many names are in the table, for the workload growth.
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000")]
    pub(crate) names: Vec<u32>,
    /// Puts a network in front of every server. Round-trip times in milliseconds; the runs with each of them take
    /// turns.
    #[arg(long, value_delimiter = ',')]
    pub(crate) round_trips: Vec<f64>,
    /// The number of rounds. In each round, the contenders take turns. The result is the median of the rounds.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// The measured time of a run, in seconds.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// The measured time of a run of the workload snapshot.
    #[arg(long, default_value_t = 12.0)]
    pub(crate) snapshot_seconds: f64,
    /// The time of a run before the measured time.
    #[arg(long, default_value_t = 0.5)]
    pub(crate) warm_up: f64,
    /// The contender that is compared with all others, in each round.
    #[arg(long, default_value = "rowlock-postgres")]
    pub(crate) base: String,
    /// The program of the contender distributed-lock. It takes part only with it. docs/RACE.md says how to build it.
    #[arg(long)]
    pub(crate) distributed_lock: Option<PathBuf>,
    /// The program `race` of an earlier commit, for the contender rowlock-before. It takes part only with it.
    #[arg(long)]
    pub(crate) before: Option<PathBuf>,
    /// The folder for the CSV files and the plots. It is made if it is missing.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// One short round of a few heats, on servers that do not wait for the disk: shows that everything works, and
    /// measures nothing.
    #[arg(long)]
    pub(crate) short: bool,
    /// Prints the contenders and what is left of their locks after a crash.
    #[arg(long)]
    pub(crate) list: bool,
    /// The orders of a child process, which the race starts itself.
    #[arg(long, hide = true)]
    pub(crate) child: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Spread,
    Own,
    Hot,
    Mixed,
    Growth,
    Snapshot,
}

/// What all contenders of a heat do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heat {
    pub(crate) workload: Workload,
    /// In all processes together.
    pub(crate) tasks: u32,
    pub(crate) processes: u32,
    /// Of the network in front of the servers, if there is one.
    pub(crate) round_trip: Option<Duration>,
}

impl fmt::Display for Heat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.workload.fmt(f)?;
        match self.round_trip {
            Some(round_trip) => write!(f, ", {} ms", round_trip.as_secs_f64() * 1e3),
            None => Ok(()),
        }
    }
}

/// A heat of a contender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) entry: &'static Entry,
    pub(crate) heat: Heat,
}

impl Arguments {
    /// Short runs.
    pub(crate) fn shortened(mut self) -> Self {
        if self.short {
            self.tasks = vec![8];
            self.processes = vec![1, 2];
            self.names = vec![100, 1000];
            (
                self.rounds,
                self.seconds,
                self.snapshot_seconds,
                self.warm_up,
            ) = (1, 0.2, 0.2, 0.05);
        }
        self
    }

    /// Who takes part.
    pub(crate) fn entries(&self) -> Result<Vec<&'static Entry>, Failure> {
        if self.contenders.is_empty() {
            let (here, missing): (Vec<_>, Vec<_>) = ENTRIES
                .iter()
                .partition(|entry| self.program(entry).is_ok());
            for entry in missing {
                eprintln!(
                    "{} does not take part: it needs its program, see docs/RACE.md",
                    entry.name
                );
            }
            return Ok(here);
        }
        let named = self.contenders.iter().map(|name| Entry::find(name));
        let named: Vec<_> = named.collect::<Result<_, _>>()?;
        for entry in &named {
            self.program(entry)?;
        }
        Ok(named)
    }

    /// The program whose processes run a contender: this one, or its own.
    pub(crate) fn program(&self, entry: &Entry) -> Result<PathBuf, Failure> {
        let (given, option) = match entry.means {
            Means::DistributedLock => (&self.distributed_lock, "--distributed-lock"),
            Means::Before => (&self.before, "--before"),
            _ => return Ok(std::env::current_exe()?),
        };
        let name = entry.name;
        let given = given.clone();
        given.ok_or_else(|| {
            format!("{name} is another program: give its path in {option}, see docs/RACE.md").into()
        })
    }

    /// The measured time of a run in this group.
    pub(crate) fn seconds_of(&self, group: &[Heat]) -> f64 {
        let has_snapshot = group.iter().any(|heat| heat.workload == Workload::Snapshot);
        if has_snapshot {
            self.snapshot_seconds
        } else {
            self.seconds
        }
    }

    /// The times of a round trip through a network.
    pub(crate) fn round_trips(&self) -> impl Iterator<Item = Duration> {
        let times = self.round_trips.iter();
        times.map(|milliseconds| Duration::from_secs_f64(milliseconds / 1e3))
    }

    /// Heats in groups. In a round of a group, the runs of all its heats take turns, because they are compared.
    pub(crate) fn groups(&self) -> Vec<Vec<Heat>> {
        let mut groups = Vec::new();
        for kind in &self.workloads {
            for processes in &self.processes {
                for tasks in self.tasks.iter().filter(|tasks| *tasks >= processes) {
                    groups.extend(self.group(*kind, *tasks, *processes));
                }
            }
        }
        groups
    }

    fn group(&self, kind: Kind, tasks: u32, processes: u32) -> Option<Vec<Heat>> {
        let is_largest = self.tasks.iter().max() == Some(&tasks);
        let is_first = self.processes.first() == Some(&processes);
        // In the short mode, only one name for all needs two processes.
        let is_wanted = match kind {
            Kind::Hot => !(self.short && is_first),
            Kind::Spread | Kind::Own | Kind::Mixed => !self.short || is_first,
            Kind::Growth => is_largest && is_first,
            Kind::Snapshot => is_first,
        };
        let workloads = match kind {
            Kind::Spread => vec![Workload::Spread],
            Kind::Own => vec![Workload::Own],
            Kind::Hot => vec![Workload::Hot],
            Kind::Mixed => vec![Workload::Mixed],
            Kind::Snapshot => vec![Workload::Hot, Workload::Snapshot],
            Kind::Growth => {
                // Each task needs a name.
                let names = self.names.iter().map(|names| *names.max(&tasks));
                names.map(Workload::Growth).collect()
            }
        };
        let mut round_trips: Vec<_> = self.round_trips().map(Some).collect();
        if round_trips.is_empty() {
            round_trips.push(None);
        }
        let heats = workloads.into_iter().flat_map(|workload| {
            round_trips.iter().map(move |round_trip| Heat {
                workload,
                tasks,
                processes,
                round_trip: *round_trip,
            })
        });
        is_wanted.then(|| heats.collect())
    }
}
