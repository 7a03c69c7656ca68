//! Promise 6, for owners with names: a circle of waits is found in whatever processes it is, and its youngest waiter
//! gets an error.

use std::time::Duration;

use rowlock::{Error, Held, InvalidError, Lock, Owner, Rowlock};
use rowlock_test::{Db, Waiting, eventually, on_every_engine, queue_is, release};

/// An owner of a client of its own, which holds a lock of its own.
struct Party {
    rowlock: Rowlock,
    owner: Owner,
    name: String,
    held: Held,
}

impl Party {
    async fn new(db: &Db, name: &str, holds: &str) -> Self {
        Self::of(db.rowlock().await, name, holds).await
    }

    async fn of(rowlock: Rowlock, name: &str, holds: &str) -> Self {
        let owner = rowlock.owner().named(name);
        let held = rowlock.lock(holds).owner(&owner).acquire().await.unwrap();
        Self {
            rowlock,
            owner,
            name: name.into(),
            held,
        }
    }

    fn lock(&self, name: &str) -> Lock {
        self.rowlock
            .lock(name)
            .owner(&self.owner)
            .holder(self.name.clone())
    }

    /// Waits for a lock. It is in the queue, behind these, when this returns.
    async fn waits(&self, name: &str, behind: &[&str]) -> Waiting {
        let lock = self.lock(name);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        queue_is(&self.rowlock, name, &[behind, &[&self.name]].concat()).await;
        waiting
    }
}

/// The owners in the circle that a wait has failed with.
async fn deadlock(waiting: Waiting) -> Vec<String> {
    match waiting.await.unwrap() {
        Err(Error::Deadlock { cycle, .. }) => {
            cycle.into_iter().map(|blocked| blocked.owner).collect()
        }
        other => panic!("no deadlock: {other:?}"),
    }
}

on_every_engine! {
    async fn the_youngest_of_two_owners_that_wait_for_each_other_gets_an_error(db: &Db) {
        let (one, two) = (Party::new(db, "one", "a").await, Party::new(db, "two", "b").await);
        let older = one.waits("b", &[]).await;
        let younger = two.waits("a", &[]).await;
        assert_eq!(deadlock(younger).await, ["two", "one"]);
        queue_is(&one.rowlock, "a", &[]).await;
        assert!(!older.is_finished());
        release(&two.held).await;
        assert!(older.await.unwrap().unwrap().is_held());
        let again = two.lock("a").wait(Duration::from_millis(100)).acquire().await.unwrap_err();
        assert!(matches!(again, Error::WaitTimeout { .. }), "{again}");
    }

    async fn of_two_owners_of_one_client_the_older_one_goes_on(db: &Db) {
        let rowlock = db.rowlock().await;
        let one = Party::of(rowlock.clone(), "one", "a").await;
        let two = Party::of(rowlock, "two", "b").await;
        let older = one.waits("b", &[]).await;
        // One look sees both waits in the circle.
        let younger = two.waits("a", &[]).await;
        assert_eq!(deadlock(younger).await, ["two", "one"]);
        release(&two.held).await;
        assert!(older.await.unwrap().unwrap().is_held());
    }

    async fn a_circle_of_three_is_found_and_says_who_waits_for_what(db: &Db) {
        let parties = [
            Party::new(db, "one", "a").await,
            Party::new(db, "two", "b").await,
            Party::new(db, "three", "c").await,
        ];
        let second = parties[1].waits("c", &[]).await;
        let third = parties[2].waits("a", &[]).await;
        let first = parties[0].waits("b", &[]).await;
        let error = first.await.unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "waiting for \"b\" is a deadlock: \"one\" waits for \"b\", which \"two\" holds; \"two\" waits for \"c\", which \
             \"three\" holds; \"three\" waits for \"a\", which \"one\" holds. Release what you hold, and begin anew"
        );
        assert!(!second.is_finished() && !third.is_finished());
        release(&parties[0].held).await;
        let held = third.await.unwrap().unwrap();
        release(&held).await;
        release(&parties[2].held).await;
        assert!(second.await.unwrap().unwrap().is_held());
    }

    async fn a_circle_that_others_wait_for_is_theirs_alone(db: &Db) {
        let (one, two) = (Party::new(db, "one", "a").await, Party::new(db, "two", "b").await);
        let outside = Party::new(db, "outside", "c").await;
        let older = one.waits("b", &[]).await;
        // It holds something, and waits for one of them; but nobody waits for it.
        let outsider = outside.waits("a", &[]).await;
        let younger = two.waits("a", &["outside"]).await;
        assert_eq!(deadlock(younger).await, ["two", "one"]);
        assert!(!older.is_finished() && !outsider.is_finished());
        release(&two.held).await;
        assert!(older.await.unwrap().unwrap().is_held());
        release(&one.held).await;
        assert!(outsider.await.unwrap().unwrap().is_held());
    }

    async fn no_circle_is_seen_where_none_is(db: &Db) {
        let (one, two) = (Party::new(db, "one", "a").await, Party::new(db, "two", "b").await);
        // A chain: the first one waits for the second one, which waits for nobody.
        let chain = one.waits("b", &[]).await;
        // An owner that enters its own lock again waits for nobody.
        let again = two.lock("b").acquire().await.unwrap();
        // A wait that ends by itself.
        let error = two.lock("a").wait(Duration::from_millis(200)).acquire().await.unwrap_err();
        assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
        // Owners without names.
        let three = db.rowlock().await;
        let nameless = three.owner();
        let c = three.lock("c").owner(&nameless).acquire().await.unwrap();
        let waits = three.lock("a").owner(&nameless).wait(Duration::from_secs(3)).acquire().await;
        assert!(matches!(waits, Err(Error::WaitTimeout { .. })), "{waits:?}");
        assert!(!chain.is_finished());
        drop((again, c));
        release(&two.held).await;
        assert!(chain.await.unwrap().unwrap().is_held());
    }

    async fn a_circle_with_a_lease_that_has_run_out_is_none(db: &Db) {
        for _ in 0..10 {
            let (one, two) = (Party::new(db, "one", "a").await, Party::new(db, "two", "b").await);
            let older = one.waits("b", &[]).await;
            let younger = two.waits("a", &[]).await;
            one.rowlock.admin().force_release("a").await.unwrap();
            match younger.await.unwrap() {
                Ok(a) => {
                    release(&two.held).await;
                    assert!(older.await.unwrap().unwrap().is_held());
                    return assert!(a.is_held());
                }
                // Two looks may have seen the circle before.
                Err(error) => assert!(matches!(error, Error::Deadlock { .. }), "{error}"),
            }
            release(&two.held).await;
            release(&older.await.unwrap().unwrap()).await;
        }
        panic!("each time a circle is seen");
    }

    async fn a_wait_that_is_over_leaves_nothing_behind(db: &Db) {
        // Without a cleaner.
        let client = async || {
            let builder = Rowlock::builder().clean_every(None);
            builder.connect(&db.url).await.unwrap()
        };
        let one = Party::of(client().await, "one", "a").await;
        let two = Party::of(client().await, "two", "b").await;
        let waiting = one.waits("b", &[]).await;
        eventually("what it holds is told", async || {
            db.number("SELECT count(*) FROM rowlock_waiting_owner").await == 1
        })
        .await;
        release(&two.held).await;
        let held = waiting.await.unwrap().unwrap();
        eventually("it is forgotten", async || {
            db.number("SELECT count(*) FROM rowlock_waiting_owner").await == 0
        })
        .await;
        // A process that has crashed leaves rows behind, which the cleaner removes.
        let crashed = format!(
            "INSERT INTO rowlock_waiting_owner (grant_id, held_grant, name, position, owner) \
             SELECT s.id, s.id, {}, 1000, s.holder FROM rowlock_session s",
            db.bytes("b")
        );
        assert!(db.execute(&crashed).await > 0);
        one.rowlock.admin().clean(100).await.unwrap();
        assert_eq!(db.number("SELECT count(*) FROM rowlock_waiting_owner").await, 0);
        assert!(held.is_held());
    }

    async fn a_wait_that_is_over_is_forgotten_also_when_the_search_fails(db: &Db) {
        let rowlock = db.rowlock().await;
        let one = Party::of(rowlock.clone(), "one", "a").await;
        let two = Party::of(rowlock, "two", "b").await;
        let three = Party::new(db, "three", "c").await;
        let (over, goes_on) = (one.waits("b", &[]).await, two.waits("c", &[]).await);
        let told = async || db.number("SELECT count(*) FROM rowlock_waiting_owner").await;
        eventually("what they hold is told", async || told().await == 2).await;
        let rename = async |from: &str, to: &str| {
            db.execute(&format!("ALTER TABLE rowlock_waiting_owner RENAME COLUMN {from} TO {to}")).await;
        };
        // Only the search reads it.
        rename("owner", "lost").await;
        release(&two.held).await;
        assert!(over.await.unwrap().unwrap().is_held());
        eventually("the first wait is forgotten", async || told().await == 1).await;
        assert!(!goes_on.is_finished());
        rename("lost", "owner").await;
        release(&three.held).await;
        assert!(goes_on.await.unwrap().unwrap().is_held());
    }

    async fn a_name_of_an_owner_has_bounds(db: &Db) {
        let rowlock = db.rowlock().await;
        let longest = rowlock.owner().named("x".repeat(200));
        assert!(rowlock.lock("a").owner(&longest).try_acquire().await.is_ok());
        for name in [String::new(), "x".repeat(201), "a\0b".into()] {
            let owner = rowlock.owner().named(name);
            let error = rowlock.lock("a").owner(&owner).try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "owner", .. })), "{error}");
        }
    }
}
