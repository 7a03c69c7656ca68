//! The operations whose round trips are counted.

use std::sync::Arc;
use std::time::Duration;

use rowlock::{Begun, Error, Fingerprint, Held, Outcome, Retry, Rowlock, Scope};

use crate::Failure;
use crate::bench::{Bench, Counts, counted};
use crate::shop::on_shop;

/// The first rounds connect and prepare statements, and do not count.
const WARM_UP: u32 = 3;

/// The first waiter of a lease, and a waiter of a lease that came from the queue.
const HAND_OVER: [&str; 2] = [
    "hand-over to the first waiter",
    "hand-over to the next waiter",
];

/// How long the client is left alone before a hand-over.
const QUIET: Duration = Duration::from_millis(700);

/// Of leases and sessions that are renewed.
const TTL: Duration = Duration::from_secs(2);

/// In a transaction that [`Retry`] has begun.
const IN_RETRY: [&str; 5] = [
    "Retry: pin",
    "Retry: in_tx().lock",
    "Retry: in_tx().lock, a fresh name",
    "Retry: in_tx().version",
    "Retry: in_tx().advance",
];

/// As the first statement of a transaction that the application has begun.
const IN_OWN: [&str; 5] = [
    "own transaction: pin",
    "own transaction: in_tx().lock",
    "own transaction: in_tx().lock, a fresh name",
    "own transaction: in_tx().version",
    "own transaction: in_tx().advance",
];

/// Operations that run in turns.
#[derive(Debug, Clone, Copy)]
enum Group {
    Leases,
    Permits,
    InRetry,
    InOwn,
    Keys,
}

impl Bench {
    async fn leases(&mut self, round: u32) -> Result<(), Failure> {
        let known = self.rowlock.lock("known");
        let held = self.count("acquire", known.acquire()).await?;
        self.count("release", held.release()).await?;
        let held = known.acquire().await?;
        let dropped = async {
            drop(held);
            Ok::<_, Failure>(())
        };
        self.count("drop", dropped).await?;
        let held = known.acquire().await?;
        let again = async {
            drop(held);
            known.acquire().await
        };
        let held = self.count("drop, then acquire", again).await?;
        held.release().await?;
        let fresh = self.rowlock.lock(format!("fresh {round}"));
        let held = self.count("acquire, a fresh name", fresh.acquire()).await?;
        held.release().await?;
        Ok(())
    }

    async fn permits(&mut self) -> Result<(), Failure> {
        let semaphore = self.rowlock.semaphore("permits", 10);
        let permit = self.count("acquire a permit", semaphore.acquire()).await?;
        self.count("release a permit", permit.release()).await?;
        Ok(())
    }

    async fn in_retry(&mut self, round: u32) -> Result<(), Failure> {
        let (shop, client) = (self.shop.clone(), self.rowlock.clone());
        let (rowlock, network) = (&client, &Arc::clone(&self.network));
        let pinned = &rowlock.lock("pinned").acquire().await?;
        let fresh = &format!("pessimistic, retry {round}");
        let retry = Retry::new();
        let all = on_shop!(&shop, pool => [
            retry.run(pool, |mut tx| async move {
                counted(network, pinned.pin(&mut tx)).await
            }).await?,
            retry.run(pool, |mut tx| async move {
                counted(network, rowlock.in_tx(&mut tx).lock("pessimistic").acquire()).await
            }).await?,
            retry.run(pool, |mut tx| async move {
                counted(network, rowlock.in_tx(&mut tx).lock(fresh).acquire()).await
            }).await?,
            retry.run(pool, |mut tx| async move {
                counted(network, rowlock.in_tx(&mut tx).version("optimistic")).await
            }).await?,
            retry.run(pool, |mut tx| async move {
                let seen = rowlock.in_tx(&mut tx).version("optimistic").await?;
                counted(network, rowlock.in_tx(&mut tx).advance(&seen)).await
            }).await?,
        ]);
        for (operation, (sent, waited)) in IN_RETRY.into_iter().zip(all) {
            self.add(operation, sent, Some(waited));
        }
        Ok(pinned.release().await?)
    }

    async fn in_own(&mut self, round: u32) -> Result<(), Failure> {
        let (shop, rowlock) = (self.shop.clone(), self.rowlock.clone());
        let [pin, lock, fresh, version, advance] = IN_OWN;
        let pinned = rowlock.lock("pinned").acquire().await?;
        on_shop!(&shop, pool => {
            let mut tx = pool.begin().await?;
            self.count(pin, pinned.pin(&mut tx)).await?;
            tx.commit().await?;

            let mut tx = pool.begin().await?;
            let known = rowlock.in_tx(&mut tx).lock("pessimistic");
            self.count(lock, known.acquire()).await?;
            tx.commit().await?;

            let mut tx = pool.begin().await?;
            let unknown = rowlock.in_tx(&mut tx).lock(format!("pessimistic {round}"));
            self.count(fresh, unknown.acquire()).await?;
            tx.commit().await?;

            let mut tx = pool.begin().await?;
            let read = rowlock.in_tx(&mut tx).version("optimistic");
            let seen = self.count(version, read).await?;
            let advanced = rowlock.in_tx(&mut tx).advance(&seen);
            self.count(advance, advanced).await?.or_conflict(&seen)?;
            tx.commit().await?;
        });
        Ok(pinned.release().await?)
    }

    async fn keys(&mut self, round: u32) -> Result<(), Failure> {
        let (shop, idempotency) = (self.shop.clone(), self.idempotency.clone());
        let request = Fingerprint::of("request");
        let outcome = Outcome::json(&"an outcome")?;
        let key = format!("key {round}");
        let key = || Scope("bench").key(&key);
        let begun = self.count("begin, a fresh key", idempotency.begin(key(), &request));
        let Begun::New(guard) = begun.await? else {
            return Err("the key is not fresh".into());
        };
        self.count("complete", guard.complete(&outcome)).await?;
        let begun = self.count("begin, a replay", idempotency.begin(key(), &request));
        if !matches!(begun.await?, Begun::Replay(_)) {
            return Err("no replay".into());
        }
        let key = format!("in a transaction {round}");
        let key = || Scope("bench").key(&key);
        on_shop!(&shop, pool => {
            let bare = async { pool.begin().await?.commit().await };
            self.count("BEGIN and COMMIT, and the pool's ping", bare).await?;
            let work = |tx| {
                drop(tx);
                std::future::ready(Ok::<_, Error>(outcome.clone()))
            };
            let run = idempotency.run_in_tx(pool, key(), &request, work);
            let begun = self.count("run_in_tx, with these", run).await?;
            if !matches!(begun, Begun::New(_)) {
                return Err("the key is not fresh".into());
            }
            let run = idempotency.run_in_tx(pool, key(), &request, work);
            let begun = self.count("run_in_tx, a replay", run).await?;
            if !matches!(begun, Begun::Replay(_)) {
                return Err("no replay".into());
            }
        });
        Ok(())
    }

    /// From one client's release to another client's guard, and back.
    async fn hand_overs(&mut self, other: &Rowlock) -> Result<(), Failure> {
        let held = self.rowlock.lock("handed over").acquire().await?;
        let held = self.hand_over(HAND_OVER[0], held, other).await?;
        let own = self.rowlock.clone();
        let held = self.hand_over(HAND_OVER[1], held, &own).await?;
        Ok(held.release().await?)
    }

    async fn hand_over(
        &mut self,
        operation: &'static str,
        held: Held,
        to: &Rowlock,
    ) -> Result<Held, Failure> {
        let next = to.lock("handed over");
        let next = tokio::spawn(async move { next.acquire().await });
        while self.rowlock.admin().queue("handed over").await?.is_empty() {
            tokio::time::sleep(self.round_trip).await;
        }
        tokio::time::sleep(QUIET).await;
        let both = async {
            let (released, next) = tokio::join!(held.release(), next);
            released?;
            Ok::<_, Failure>(next??)
        };
        self.count(operation, both).await
    }

    /// From one renewal to the next.
    async fn renewals(
        &mut self,
        operation: &'static str,
        held: Held,
        rounds: u32,
    ) -> Result<(), Failure> {
        let mut before = None;
        for _ in 0..=rounds {
            let deadline = held.deadline();
            while held.deadline() == deadline {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let trips = self.network.trips();
            if let Some(before) = before.replace(trips) {
                self.add(operation, trips - before, None);
            }
        }
        Ok(held.release().await?)
    }

    /// Runs all operations so often; a short run has those of one client.
    pub(crate) async fn run(
        mut self,
        rounds: u32,
        is_short: bool,
    ) -> Result<Vec<(&'static str, Counts)>, Failure> {
        // Each group by itself: a connection may forget a statement that it has not sent for some seconds.
        for group in [
            Group::Leases,
            Group::Permits,
            Group::InRetry,
            Group::InOwn,
            Group::Keys,
        ] {
            for round in 0..WARM_UP + rounds {
                self.warm = round >= WARM_UP;
                match group {
                    Group::Leases => self.leases(round).await,
                    Group::Permits => self.permits().await,
                    Group::InRetry => self.in_retry(round).await,
                    Group::InOwn => self.in_own(round).await,
                    Group::Keys => self.keys(round).await,
                }?;
            }
        }
        if is_short {
            return Ok(self.counts);
        }
        let other = Rowlock::connect(&self.url).await?;
        for round in 0..WARM_UP + rounds {
            self.warm = round >= WARM_UP;
            self.hand_overs(&other).await?;
        }
        other.shutdown(Duration::from_secs(5)).await;
        let client = Rowlock::builder().session_ttl(TTL);
        let client = client.connect(&self.url).await?;
        let held = client.lock("renewed").ttl(TTL).acquire().await?;
        self.renewals("renewal of a lease", held, rounds).await?;
        let held = client.lock("in a session").in_session().acquire().await?;
        self.renewals("renewal of a session", held, rounds).await?;
        Ok(self.counts)
    }
}
