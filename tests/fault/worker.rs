//! A process of the campaign: takes leases, writes under them, and tells everything on its output.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Rowlock};

use crate::history::{Event, now};

pub(crate) const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// What the parent wants of this process.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) url: String,
    pub(crate) ttl: Duration,
}

impl Role {
    const URL: &str = "ROWLOCK_FAULT_WORKER_URL";
    const TTL: &str = "ROWLOCK_FAULT_WORKER_TTL_MS";

    pub(crate) fn of_this_process() -> Option<Self> {
        let url = std::env::var(Self::URL).ok()?;
        let ttl = std::env::var(Self::TTL).ok()?.parse().ok()?;
        Some(Self {
            url,
            ttl: Duration::from_millis(ttl),
        })
    }

    /// The command that starts this binary in this role.
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        // A group of its own: when a group with a stopped process in it is orphaned, the kernel sends all
        // of it SIGHUP (setpgid(2)).
        command
            .process_group(0)
            .env(Self::URL, &self.url)
            .env(Self::TTL, self.ttl.as_millis().to_string());
        command
    }
}

pub(crate) fn run(role: &Role) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // While its peers are killed and paused, the database may be slow: a worker never gives up.
        let rowlock = loop {
            match Rowlock::connect(&role.url).await {
                Ok(rowlock) => break rowlock,
                Err(error) if error.is_transient() => eprintln!("worker: {error}"),
                Err(error) => panic!("{error}"),
            }
        };
        let tell = |event: Event| {
            // One write call per line, so that a killed process leaves whole lines.
            let line = format!("{event}\n");
            std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
        };
        loop {
            let name = NAMES[rand::rng().random_range(0..NAMES.len())];
            let lock = rowlock
                .lock(name)
                .ttl(role.ttl)
                .wait(Duration::from_millis(500));
            let asked = now();
            let held = match lock.acquire().await {
                Ok(held) => held,
                Err(error @ Error::WaitTimeout { .. }) => {
                    drop(error);
                    continue;
                }
                Err(error) if error.is_transient() => {
                    eprintln!("worker: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let fence = held.fence();
            tell(Event::Granted {
                name: name.into(),
                fence,
                asked,
                at: now(),
            });
            for _ in 0..rand::rng().random_range(1..8) {
                let checked = now();
                if !held.is_held() {
                    break;
                }
                // The work between asking the guard and writing, in which the process may be paused.
                let work = rand::rng().random_range(1..30);
                tokio::time::sleep(Duration::from_millis(work)).await;
                tell(Event::Write {
                    name: name.into(),
                    fence,
                    checked,
                    at: now(),
                });
            }
            tell(Event::Done {
                name: name.into(),
                fence,
            });
            if rand::rng().random_bool(0.5) {
                let _ = held.release().await;
            }
        }
    });
}
