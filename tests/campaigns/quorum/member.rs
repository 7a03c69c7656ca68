//! One process: takes the lock in a majority of the databases, and tells when its guard says that it is held.

use std::time::Duration;

use rand::Rng;
use rowlock::Rowlock;
use rowlock_recipes::Quorum;

use crate::history::{Event, now};
use crate::role::Role;
use rowlock_test::tell;

const NAME: &str = "quorum";

pub(crate) async fn work(role: &Role) {
    let quorum = loop {
        // A database that comes back empty must get its tables in quarantine, and not here.
        let builder = Rowlock::builder()
            .migrate(false)
            .operation_timeout(Duration::from_secs(1))
            .session_ttl(role.ttl);
        match Quorum::connect_with(builder, role.url.split(' ')).await {
            Ok(quorum) => break quorum,
            Err(error) => eprintln!("member: {error}"),
        }
    };
    loop {
        let lock = quorum.lock(NAME).ttl(role.ttl);
        let asked = now();
        let held = match lock.wait(Duration::from_millis(500)).acquire().await {
            Ok(held) => held,
            Err(error) => {
                if !error.is_transient() {
                    eprintln!("member: {error}");
                }
                continue;
            }
        };
        let fence = held.fence();
        tell(Event::Granted {
            name: NAME.into(),
            fence,
            asked,
            at: now(),
        });
        for _ in 0..rand::rng().random_range(1..60) {
            let checked = now();
            if !held.is_held() {
                break;
            }
            // The work between asking the guard and writing, in which the process may be paused.
            let work = rand::rng().random_range(1..30);
            tokio::time::sleep(Duration::from_millis(work)).await;
            tell(Event::Write {
                name: NAME.into(),
                fence,
                checked,
                at: now(),
            });
        }
        tell(Event::Done {
            name: NAME.into(),
            fence,
        });
        if rand::rng().random_bool(0.7) {
            let _ = held.release().await;
        }
    }
}
