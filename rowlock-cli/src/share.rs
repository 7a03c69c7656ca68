//! What `rowlock run` takes of a name: a lock, a part of a read/write lock, or permits of a semaphore.

use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use rowlock::{Error, Held, Name, Rowlock, RwHeld};
use rowlock_recipes::job::JobRun;

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Share {
    /// Share a read/write lock with all that run with --shared.
    #[arg(long)]
    shared: bool,
    /// Take a read/write lock alone: no command with --shared or --exclusive runs meanwhile.
    #[arg(long)]
    exclusive: bool,
    /// Take N of the M permits of a semaphore: N = 1 lets M commands run at a time.
    #[arg(long, value_name = "N/M", allow_hyphen_values = true)]
    permits: Option<Permits>,
}

/// What a command holds.
pub(crate) enum Holding {
    Held(Held),
    Rw(RwHeld),
    Job(JobRun),
}

impl Deref for Holding {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Self::Held(held) => held,
            Self::Rw(held) => held,
            Self::Job(run) => run.held(),
        }
    }
}

impl Share {
    /// How many permits it takes; 0: it takes no permits.
    pub(crate) fn permits(&self) -> u32 {
        self.permits.map_or(0, |permits| permits.weight)
    }

    /// Waits for it: `None` for ever.
    pub(crate) async fn acquire(
        &self,
        rowlock: &Rowlock,
        name: &Name,
        ttl: Duration,
        wait: Option<Duration>,
    ) -> Result<Holding, Error> {
        let asked = self.ask(rowlock, name, ttl, wait).await;
        asked.map_err(|error| match error {
            // The moment that the question took is no wait.
            Error::WaitTimeout { name, busy, .. } if wait == Some(Duration::ZERO) => {
                let waited = Duration::ZERO;
                Error::WaitTimeout { name, waited, busy }
            }
            error => error,
        })
    }

    async fn ask(
        &self,
        rowlock: &Rowlock,
        name: &Name,
        ttl: Duration,
        wait: Option<Duration>,
    ) -> Result<Holding, Error> {
        let name = name.clone();
        if let Some(Permits { weight, capacity }) = self.permits {
            let semaphore = rowlock.semaphore(name, capacity).weight(weight).ttl(ttl);
            let semaphore = match wait {
                Some(wait) => semaphore.wait(wait),
                None => semaphore,
            };
            return semaphore.acquire().await.map(Holding::Held);
        }
        if self.shared || self.exclusive {
            let lock = rowlock.rw_lock(name).ttl(ttl);
            let lock = match wait {
                Some(wait) => lock.wait(wait),
                None => lock,
            };
            return if self.shared {
                lock.read().await.map(Holding::Rw)
            } else {
                lock.write().await.map(Holding::Rw)
            };
        }
        let lock = rowlock.lock(name).ttl(ttl);
        let lock = match wait {
            Some(wait) => lock.wait(wait),
            None => lock,
        };
        lock.acquire().await.map(Holding::Held)
    }
}

/// The largest capacity.
const MOST: u32 = (1 << 31) - 2;

/// So many permits, of so many in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Permits {
    weight: u32,
    capacity: u32,
}

impl FromStr for Permits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers = numbers.and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        match numbers {
            Some((_, capacity)) if capacity > MOST => {
                Err(format!("give N/M with an M of at most {MOST}"))
            }
            Some((weight, capacity)) if 1 <= weight && weight <= capacity => {
                Ok(Self { weight, capacity })
            }
            Some((weight, capacity)) if capacity > 0 => Err(format!(
                "give N/M with N from 1 to M: this asks for {weight} of {capacity}"
            )),
            _ => Err("give N/M: this command takes N of M permits, as in 1/3".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_some_of_all() {
        let permits = |weight, capacity| Ok(Permits { weight, capacity });
        assert_eq!("1/4".parse(), permits(1, 4));
        assert_eq!("4/4".parse(), permits(4, 4));
        for text in [
            "",
            "4",
            "0/4",
            "5/4",
            "1/",
            "/4",
            "-1/4",
            "1/4/2",
            "a/b",
            "1/4294967296",
        ] {
            assert!(text.parse::<Permits>().is_err(), "{text}");
        }
        let too_many = "5/4".parse::<Permits>().unwrap_err();
        assert_eq!(
            too_many,
            "give N/M with N from 1 to M: this asks for 5 of 4"
        );
    }
}
