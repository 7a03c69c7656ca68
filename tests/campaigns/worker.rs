//! A process of the campaign: takes leases and locks in its session, writes under them, and tells everything on its
//! output.

use std::time::Duration;

use rand::Rng;
use rowlock::Error;

use crate::history::{Event, now};
use crate::role::Role;
use rowlock_test::tell;

pub(crate) const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

pub(crate) async fn work(role: &Role) {
    let rowlock = role.connect().await;
    loop {
        let name = NAMES[rand::rng().random_range(0..NAMES.len())];
        let lock = rowlock.lock(name).wait(Duration::from_millis(500));
        let lock = if rand::rng().random_bool(0.5) {
            lock.ttl(role.ttl)
        } else {
            lock.in_session()
        };
        let asked = now();
        // Few wait in the queue: the turn of a killed waiter costs the others a window, and fewer holders would be
        // killed.
        let got = if rand::rng().random_bool(0.8) {
            lock.try_acquire().await
        } else {
            lock.acquire().await.map(Some)
        };
        let held = match got {
            Ok(Some(held)) => held,
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
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
}
