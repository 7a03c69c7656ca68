//! The databases of a quorum: when it makes their tables, and what it does with one that comes later.

use std::time::Duration;

use rowlock::{Engine, Error, Rowlock, SchemaError};
use rowlock_recipes::Quorum;
use rowlock_recipes::quorum::QuorumError;
use rowlock_test::{Db, eventually, on_every_engine};

const QUARANTINE: Duration = Duration::from_millis(100);

/// Another database of this engine, and two of other engines. Nobody has made tables in them.
async fn databases(db: &Db) -> [Db; 3] {
    let other = |n: usize| Db::empty(db.engine_after(n));
    [other(0).await, other(1).await, other(2).await]
}

async fn remove(databases: [Db; 3]) {
    for db in databases {
        db.remove().await;
    }
}

async fn has_tables(db: &Db) -> bool {
    match Rowlock::builder().migrate(false).connect(&db.url).await {
        Ok(_) => true,
        Err(Error::Schema(SchemaError::Missing { .. })) => false,
        Err(error) => panic!("{error}"),
    }
}

fn connected(quorum: &Quorum) -> Vec<bool> {
    quorum.members().iter().map(Option::is_some).collect()
}

async fn take_and_release(quorum: &Quorum) {
    let held = quorum.lock("a").acquire().await.unwrap();
    held.release().await.unwrap();
}

on_every_engine! {
    async fn a_copy_gets_an_id_of_its_own_as_the_error_says(db: &Db) {
        let databases = databases(db).await;
        let urls = databases.each_ref().map(|db| db.url.clone());
        let copied = databases[1].rowlock().await.admin().database_id();
        databases[0].rowlock().await;
        let id = match db.engine {
            Engine::Postgres => format!("'{copied}'"),
            _ => format!("X'{}'", copied.simple()),
        };
        databases[0].execute(&format!("UPDATE rowlock_database SET id = {id}")).await;
        let error = Quorum::connect(urls.clone()).await.unwrap_err();
        assert!(matches!(&error, QuorumError::SameDatabase { id, .. } if *id == copied), "{error}");
        let (own, rest) = match db.engine {
            Engine::Postgres => ("gen_random_uuid()", " on PostgreSQL"),
            Engine::Sqlite => ("randomblob(16)", " on SQLite"),
            _ => ("UNHEX(REPLACE(UUID(), '-', ''))", " on MySQL and MariaDB"),
        };
        assert!(error.to_string().contains(&format!("{own}{rest}")), "{error}");
        assert!(error.to_string().contains("UPDATE rowlock_database SET id = …"), "{error}");
        databases[0].execute(&format!("UPDATE rowlock_database SET id = {own}")).await;
        take_and_release(&Quorum::connect(urls).await.unwrap()).await;
        remove(databases).await;
    }

    async fn the_tables_of_a_new_quorum_are_made(db: &Db) {
        let databases = databases(db).await;
        let urls = databases.each_ref().map(|db| db.url.clone());
        let unmigrated = Rowlock::builder().migrate(false);
        let error = Quorum::connect_with(unmigrated, urls.clone()).await.unwrap_err();
        assert!(matches!(error, QuorumError::Member(Error::Schema(SchemaError::Missing { .. }))), "{error}");
        // The application uses one of them already.
        databases[1].rowlock().await;
        // Processes that start at the same time.
        let (one, two) = tokio::join!(Quorum::connect(urls.clone()), Quorum::connect(urls));
        take_and_release(&one.unwrap()).await;
        take_and_release(&two.unwrap()).await;
        for db in &databases {
            assert!(has_tables(db).await, "{}", db.engine);
        }
        remove(databases).await;
    }

    async fn a_database_without_tables_is_left_out_until_it_has_them(db: &Db) {
        let databases = databases(db).await;
        let urls = databases.each_ref().map(|db| db.url.clone());
        databases[1].rowlock().await;
        databases[2].rowlock().await;
        let quorum = Quorum::connect(urls.clone()).await.unwrap();
        assert_eq!(connected(&quorum), [false, true, true]);
        take_and_release(&quorum).await;
        assert!(!has_tables(&databases[0]).await, "it may have lost its data");
        // Nor when there is no majority without it.
        let [lost, there, _] = urls;
        let nowhere = String::from("postgres://me@127.0.0.1:1/x");
        let error = Quorum::connect([lost, there, nowhere]).await.unwrap_err();
        assert!(matches!(error, QuorumError::NoMajority { reached: 1, needed: 2, .. }), "{error}");
        assert!(error.to_string().contains("rowlock migrate"), "{error}");
        assert!(!has_tables(&databases[0]).await, "it may have lost its data");
        // The operator makes them.
        let builder = Rowlock::builder().quarantine(QUARANTINE);
        let member = builder.connect(&databases[0].url).await.unwrap();
        eventually("it takes part", async || {
            let held = quorum.lock("b").acquire().await.unwrap();
            let takes_part = member.inspect("b").await.unwrap().is_some();
            held.release().await.unwrap();
            takes_part
        })
        .await;
        assert_eq!(connected(&quorum), [true, true, true]);
        remove(databases).await;
    }

    async fn a_database_that_gets_its_tables_in_quarantine_is_left_out_until_it_has_all(db: &Db) {
        let databases = databases(db).await;
        for db in &databases {
            db.rowlock().await;
        }
        // Its operator's `rowlock quarantine` has made the row that says so, and no more.
        let lost = &databases[0];
        let tables = [
            "waiter", "waiting_owner", "lock", "idempotency_step", "idempotency", "form_token", "session", "run",
        ];
        for table in tables {
            lost.execute(&format!("DROP TABLE rowlock_{table}")).await;
        }
        lost.execute("DELETE FROM rowlock_schema_history WHERE version > 1").await;
        assert!(!has_tables(lost).await);
        let quorum = Quorum::connect(databases.each_ref().map(|db| db.url.clone())).await.unwrap();
        assert_eq!(connected(&quorum), [false, true, true]);
        take_and_release(&quorum).await;
        assert!(!has_tables(lost).await, "it may have lost its data");
        let again = Rowlock::builder().quarantine(Duration::from_mins(1));
        let again = again.connect(&lost.url).await.unwrap();
        assert!(again.admin().quarantine_left().await.unwrap().is_some());
        remove(databases).await;
    }

    async fn a_database_that_was_silent_once_is_waited_for_when_the_others_are_no_majority(db: &Db) {
        let [there, quarantined, unused] = databases(db).await;
        let slow = Db::new(Engine::Sqlite).await;
        let clients = [there.rowlock().await, quarantined.rowlock().await];
        let urls = [&there, &quarantined, &slow].map(|db| db.url.clone());
        let quorum = Quorum::connect(urls).await.unwrap();
        // It comes later than the quorum, and is not asked since.
        slow.rowlock().await;
        eventually("it is connected", async || {
            let is_there = quorum.members().iter().all(Option::is_some);
            if !is_there {
                take_and_release(&quorum).await;
            }
            is_there
        })
        .await;
        clients[1].admin().quarantine(Duration::from_mins(10)).await.unwrap();
        // It answers after the database in quarantine.
        let mut writing = slow.begin().await;
        writing.execute("UPDATE rowlock_lock SET fence = fence").await.unwrap();
        let asked = tokio::spawn(async move { quorum.lock("b").try_acquire().await });
        let granted = async || clients[0].inspect("b").await.unwrap().is_some();
        eventually("the first one has granted it", granted).await;
        writing.release().await;
        let held = asked.await.unwrap().unwrap().expect("two databases grant it");
        held.release().await.unwrap();
        slow.remove().await;
        remove([there, quarantined, unused]).await;
    }
}
