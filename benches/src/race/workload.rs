//! Which names the tasks lock.

use std::fmt;

use rand::Rng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

/// How many names the workload *mixed* has.
const MIXED: u32 = 10_000;

/// How many names the workload *own* has.
const OWN: u32 = 1_000;

/// What the tasks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Workload {
    /// Each task locks a name of its own.
    Spread,
    /// Each task locks random names of its own again and again. Together, the tasks have 1,000.
    Own,
    /// All tasks lock one name.
    Hot,
    /// Each task locks random names of 10,000, with Zipf's distribution (exponent 1): some of them are hot.
    Mixed,
    /// Each task locks random names of its own. Together, the tasks have so many names. All are in the table before.
    Growth(u32),
    /// As `Hot`, while a REPEATABLE READ transaction is open, as that of a dump: the database cannot remove old row
    /// versions.
    Snapshot,
}

impl Workload {
    /// How many names there are for `tasks` tasks in all processes.
    pub(crate) fn names(self, tasks: u32) -> u32 {
        match self {
            Self::Spread => tasks,
            Self::Own => OWN.max(tasks),
            Self::Hot | Self::Snapshot => 1,
            Self::Mixed => MIXED,
            Self::Growth(names) => names,
        }
    }

    /// The names are `prefix` and a number from 0.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Spread => "spread:",
            Self::Own => "own:",
            Self::Hot | Self::Snapshot => "hot:",
            Self::Mixed => "mixed:",
            Self::Growth(_) => "growth:",
        }
    }

    /// A database of its own, where the number of rows matters.
    pub(crate) fn database(self) -> Option<String> {
        match self {
            Self::Growth(names) => Some(format!("race_growth_{names}")),
            _ => None,
        }
    }

    /// The name without its number.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Own => "own",
            Self::Hot => "hot",
            Self::Mixed => "mixed",
            Self::Growth(_) => "growth",
            Self::Snapshot => "snapshot",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Growth(names) => write!(f, " ({names} names)"),
            _ => Ok(()),
        }
    }
}

/// The numbers of the names that one task locks, in turn.
#[derive(Debug)]
pub(crate) struct Names {
    workload: Workload,
    task: u32,
    tasks: u32,
    zipf: Zipf<f64>,
    random: SmallRng,
}

impl Names {
    /// For the task number `task` of `tasks` in all processes.
    pub(crate) fn new(workload: Workload, task: u32, tasks: u32, random: SmallRng) -> Self {
        let zipf =
            Zipf::new(f64::from(MIXED), 1.0).expect("the parameters are constants in Zipf's range");
        Self {
            workload,
            task,
            tasks,
            zipf,
            random,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "Zipf's ranks are whole numbers from 1 to MIXED"
    )]
    pub(crate) fn next(&mut self) -> u32 {
        match self.workload {
            Workload::Spread => self.task,
            Workload::Hot | Workload::Snapshot => 0,
            Workload::Mixed => self.zipf.sample(&mut self.random) as u32 - 1,
            Workload::Own | Workload::Growth(_) => {
                let names = self.workload.names(self.tasks);
                // The names with numbers task, task + tasks, task + 2 × tasks, …
                let own = (names - self.task).div_ceil(self.tasks);
                self.task + self.tasks * self.random.random_range(0..own)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn names(workload: Workload, task: u32, tasks: u32) -> Vec<u32> {
        let mut names = Names::new(workload, task, tasks, SmallRng::seed_from_u64(1));
        (0..10_000).map(|_| names.next()).collect()
    }

    #[test]
    fn tasks_share_no_names_where_each_has_its_own() {
        for (workload, count) in [
            (Workload::Growth(100), 100),
            (Workload::Own, 1_000),
            (Workload::Spread, 7),
        ] {
            let mut seen = std::collections::HashMap::new();
            for task in 0..7 {
                for name in names(workload, task, 7) {
                    assert!(name < workload.names(7));
                    assert_eq!(*seen.entry(name).or_insert(task), task);
                }
            }
            assert_eq!(seen.len(), count, "{workload}");
        }
    }

    #[test]
    fn some_of_the_mixed_names_are_hot() {
        let names = names(Workload::Mixed, 0, 1);
        assert!(names.iter().all(|name| *name < MIXED));
        let share = |rank| names.iter().filter(|name| **name == rank).count();
        // The most frequent of 10,000 has about a tenth; all others are rarer.
        assert!((700..1400).contains(&share(0)), "{}", share(0));
        assert!(share(1) < share(0));
    }
}
