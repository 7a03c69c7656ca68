//! A lock over several databases has one holder, and its fences rise, while a minority of the databases is not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rowlock::extend::raise_fence;
use rowlock::{ConnectError, Error, InvalidError, Loss, Rowlock, SchemaError};
use rowlock_recipes::Quorum;
use rowlock_recipes::quorum::{QuorumError, QuorumHeld};
use rowlock_test::{Db, busy, eventually, on_every_engine, on_tx, take};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

/// The fence of a century.
const FAR: i64 = 3_000_000_000_000_000;

/// Three databases: the one of the test, and two of other engines.
pub(crate) struct Three<'a> {
    db: &'a Db,
    pub(crate) others: [Db; 2],
}

impl<'a> Three<'a> {
    pub(crate) async fn of(db: &'a Db) -> Self {
        let other = |n: usize| Db::new(db.engine_after(n));
        Self {
            db,
            others: [other(1).await, other(2).await],
        }
    }

    pub(crate) fn urls(&self) -> [&str; 3] {
        [&self.db.url, &self.others[0].url, &self.others[1].url]
    }

    pub(crate) async fn quorum(&self) -> Quorum {
        Quorum::connect(self.urls()).await.unwrap()
    }

    pub(crate) async fn clients(&self) -> [Rowlock; 3] {
        [
            self.db.rowlock().await,
            self.others[0].rowlock().await,
            self.others[1].rowlock().await,
        ]
    }

    /// A lock whose guard has the leases of all databases.
    pub(crate) async fn granted_by_all(
        &self,
        quorum: &Quorum,
        name: &str,
        ttl: Duration,
    ) -> QuorumHeld {
        let held = quorum.lock(name).ttl(ttl).acquire().await.unwrap();
        for member in 0..3 {
            self.guard_has(&held, member).await;
        }
        held
    }

    /// Waits until the guard has the lease of a member. (The slowest member of a round, and one that is taken again,
    /// grant it before: the guard has it when it also has the fence of the others.)
    pub(crate) async fn guard_has(&self, held: &QuorumHeld, member: usize) {
        let database = [self.db, &self.others[0], &self.others[1]][member];
        let has_lease = async || {
            let mut tx = database.begin().await;
            let pinned = on_tx!(&mut tx, tx => held.pin_on(member, tx).await);
            tx.release().await;
            assert!(
                matches!(pinned, Ok(()) | Err(Error::Lost { .. })),
                "{pinned:?}"
            );
            pinned.is_ok()
        };
        eventually("the guard has the lease", has_lease).await;
    }

    pub(crate) async fn remove(self) {
        for other in self.others {
            other.remove().await;
        }
    }
}

/// How many of the databases show the name as held.
pub(crate) async fn holders(clients: &[Rowlock], name: &str) -> usize {
    let mut held = 0;
    for client in clients {
        held += usize::from(client.inspect(name).await.unwrap().is_some());
    }
    held
}

on_every_engine! {
    async fn one_holds_it_at_a_time_and_fences_rise(db: &Db) {
        let three = Three::of(db).await;
        let (one, two) = (three.quorum().await, three.quorum().await);
        let clients = three.clients().await;
        let held = one.lock("a").acquire().await.unwrap();
        assert!(held.is_held() && held.remaining() > TTL / 2);
        assert!(holders(&clients, "a").await >= 2);
        let busy = busy(two.lock("a").wait(Duration::ZERO).acquire().await);
        assert!(busy.holder.is_some(), "{busy}");
        let late = two.lock("a").wait(Duration::from_millis(100)).acquire().await;
        assert!(matches!(late, Err(Error::WaitTimeout { .. })), "{late:?}");
        let waiting = tokio::spawn({
            let two = two.clone();
            async move { two.lock("a").acquire().await }
        });
        let before = held.fence();
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(next.fence() > before);
        drop(next);
        eventually("it is free", async || holders(&clients, "a").await == 0).await;
        three.remove().await;
    }

    async fn tasks_of_several_clients_exclude_each_other(db: &Db) {
        let three = Three::of(db).await;
        let last = Arc::new(AtomicI64::new(0));
        let inside = Arc::new(AtomicI64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let quorum = three.quorum().await;
            for _ in 0..2 {
                let (quorum, last, inside) = (quorum.clone(), Arc::clone(&last), Arc::clone(&inside));
                tasks.spawn(async move {
                    for _ in 0..5 {
                        let held = quorum.lock("a").acquire().await.unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        let before = last.swap(held.fence(), Ordering::SeqCst);
                        assert!(before < held.fence(), "{before} {}", held.fence());
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        held.release().await.unwrap();
                    }
                });
            }
        }
        tasks.join_all().await;
        three.remove().await;
    }

    async fn the_fence_rises_although_the_clocks_are_not_ordered(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
        // The clock of one database is a century ahead.
        let ahead = take(&clients[0], "a", TTL).await;
        raise_fence(&ahead, FAR).await.unwrap();
        ahead.release().await.unwrap();
        let mut first = quorum.lock("a").acquire().await.unwrap();
        // A round may end before the slowest member has answered.
        while first.fence() < FAR {
            first.release().await.unwrap();
            first = quorum.lock("a").acquire().await.unwrap();
        }
        let fence = first.fence();
        first.release().await.unwrap();
        // That database is out of reach now: nobody else knows its clock.
        let other = loop {
            if let Some(held) = clients[0].lock("a").try_acquire().await.unwrap() {
                break held;
            }
        };
        let second = quorum.lock("a").acquire().await.unwrap();
        assert!(second.fence() > fence, "{} {fence}", second.fence());
        drop(other);
        three.remove().await;
    }

    async fn it_is_lost_with_the_majority_and_a_lost_member_is_taken_again(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
        let ttl = Duration::from_secs(5);
        let held = three.granted_by_all(&quorum, "a", ttl).await;
        for (member, client) in clients.iter().enumerate() {
            client.admin().force_release("a").await.unwrap();
            assert!(held.is_held(), "a minority is lost");
            three.guard_has(&held, member).await;
        }
        let info = clients[0].inspect("a").await.unwrap().unwrap();
        assert!(info.fence >= held.fence(), "{} {}", info.fence, held.fence());
        let (lost, done) = tokio::join!(
            held.lost(),
            async {
                let work = held.with(async || std::future::pending::<()>().await);
                let take_two = async {
                    let mut others = Vec::new();
                    for client in &clients[..2] {
                        // It must not be taken again.
                        others.push(loop {
                            client.admin().force_release("a").await.unwrap();
                            if let Some(held) = client.lock("a").try_acquire().await.unwrap() {
                                break held;
                            }
                        });
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    done = work => done,
                    () = take_two => unreachable!(),
                }
            }
        );
        assert_eq!(lost, Loss::TakenOver);
        assert!(matches!(done, Err(Error::Lost { .. })), "{done:?}");
        held.at_risk().await;
        assert!(!held.is_held() && held.remaining().is_zero());
        assert!(matches!(held.release().await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
        eventually("it is free", async || holders(&clients, "a").await == 0).await;
        three.remove().await;
    }

    async fn a_minority_may_be_out_of_reach_and_a_majority_may_not(db: &Db) {
        let three = Three::of(db).await;
        let mut urls: Vec<String> = three.urls().iter().map(ToString::to_string).collect();
        let nowhere = |port| format!("postgres://me:s3cret@127.0.0.1:{port}/x");
        urls.extend([nowhere(1), nowhere(2)]);
        let quorum = Quorum::connect(urls.clone()).await.unwrap();
        assert_eq!((quorum.members().iter().flatten().count(), quorum.majority()), (3, 3));
        let held = quorum.lock("a").acquire().await.unwrap();
        // One more, and no majority is left.
        three.others[1].rowlock().await.admin().force_release("a").await.unwrap();
        held.lost().await;
        let other = take(&three.others[1].rowlock().await, "a", TTL).await;
        let error = quorum.lock("a").wait(Duration::ZERO).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. } | Error::WaitTimeout { .. }), "{error}");
        drop(other);
        urls.push(nowhere(3));
        urls.push(nowhere(4));
        let error = Quorum::connect(urls).await.unwrap_err();
        assert!(matches!(error, QuorumError::NoMajority { reached: 3, needed: 4, members: 7, .. }), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        three.remove().await;
    }

    async fn databases_that_are_no_quorum_are_refused(db: &Db) {
        let three = Three::of(db).await;
        let [one, two, last] = three.clients().await;
        for members in [vec![], vec![one.clone()], vec![one.clone(), two.clone()], vec![one.clone(); 4]] {
            let count = members.len();
            let error = Quorum::new(members).unwrap_err();
            assert!(matches!(error, QuorumError::Count(n) if n == count), "{error}");
            let advice = if count < 3 { "Give at least 3" } else { "Add one or remove one" };
            assert!(error.to_string().contains(advice), "{error}");
        }
        // Another client, by another URL.
        let again = Rowlock::builder().holder("again").connect(&db.url).await.unwrap();
        let error = Quorum::new([one.clone(), two.clone(), again]).unwrap_err();
        assert!(matches!(error, QuorumError::SameDatabase { .. }), "{error}");
        let error = Quorum::connect([&db.url, &three.others[0].url, &db.url]).await.unwrap_err();
        assert!(matches!(error, QuorumError::SameDatabase { .. }), "{error}");
        assert!(error.to_string().contains("was given twice"), "{error}");
        let error = Quorum::connect(["redis://x", "redis://y", "redis://z"]).await.unwrap_err();
        assert!(matches!(error, QuorumError::Member(Error::Connect(ConnectError::InvalidUrl { .. }))), "{error}");
        // One of them has older tables.
        three.others[1].execute("DELETE FROM rowlock_schema_history WHERE version > 2").await;
        let unmigrated = Rowlock::builder().migrate(false);
        let error = Quorum::connect_with(unmigrated, three.urls()).await.unwrap_err();
        assert!(matches!(error, QuorumError::Member(Error::Schema(SchemaError::Older { found: 2, .. }))), "{error}");

        let quorum = Quorum::new([one, two, last]).unwrap();
        let error = quorum.lock("").acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
        let error = quorum.lock("a").ttl(Duration::ZERO).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "ttl", .. })), "{error}");
        let error = quorum.lock("a").wait(TTL * 10_000_000).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "wait", .. })), "{error}");
        let error = quorum.lock("a").holder("").acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "holder", .. })), "{error}");
        three.remove().await;
    }

    async fn databases_in_quarantine_grant_nothing(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let clients = three.clients().await;
        clients[0].admin().quarantine(TTL).await.unwrap();
        let held = quorum.lock("a").acquire().await.unwrap();
        assert!(clients[0].inspect("a").await.unwrap().is_none());
        held.release().await.unwrap();
        clients[1].admin().quarantine(TTL).await.unwrap();
        let busy = busy(quorum.lock("a").wait(Duration::ZERO).acquire().await);
        assert!(busy.quarantine.is_some(), "{busy}");
        let waiting = tokio::spawn(async move { quorum.lock("a").acquire().await });
        clients[0].admin().end_quarantine().await.unwrap();
        let held = waiting.await.unwrap().unwrap();
        assert!(held.is_held());
        three.remove().await;
    }

    async fn a_pin_on_one_member_proves_that_members_lease(db: &Db) {
        let three = Three::of(db).await;
        let quorum = three.quorum().await;
        let held = three.granted_by_all(&quorum, "a", TTL).await;
        let member = three.db.rowlock().await;
        let mut tx = db.begin().await;
        on_tx!(&mut tx, tx => held.pin_on(0, tx).await.unwrap());
        tx.commit().await.unwrap();
        member.admin().force_release("a").await.unwrap();
        let mut tx = db.begin().await;
        let error = on_tx!(&mut tx, tx => held.pin_on(0, tx).await.unwrap_err());
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        tx.release().await;
        let mut tx = db.begin().await;
        let error = on_tx!(&mut tx, tx => held.pin_on(9, tx).await.unwrap_err());
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "member", .. })), "{error}");
        tx.release().await;
        assert!(held.is_held());
        three.remove().await;
    }
}
