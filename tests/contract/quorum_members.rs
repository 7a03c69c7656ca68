//! The databases of a quorum: when it makes their tables, and what it does with one that comes later.

use std::time::Duration;

use rowlock::compose::Quorum;
use rowlock::compose::quorum::QuorumError;
use rowlock::{Engine, Error, ReleaseOutcome, Rowlock};
use rowlock_test::{Db, ENGINES, eventually, on_every_engine};

const QUARANTINE: Duration = Duration::from_millis(100);

/// Another database of this brand, and two of other brands. Nobody has made tables in them.
async fn databases(db: &Db) -> [Db; 3] {
    let at = ENGINES
        .iter()
        .position(|engine| *engine == db.engine)
        .unwrap();
    let other = |n: usize| Db::new(ENGINES[(at + n) % ENGINES.len()]);
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
        Err(Error::SchemaMissing { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn connected(quorum: &Quorum) -> Vec<bool> {
    quorum.members().iter().map(Option::is_some).collect()
}

async fn take_and_release(quorum: &Quorum) {
    let held = quorum.lock("a").acquire().await.unwrap();
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
}

on_every_engine! {
    async fn a_copy_gets_an_id_of_its_own_as_the_error_says(db: &Db) {
        let databases = databases(db).await;
        let urls = databases.each_ref().map(|db| db.url.clone());
        let copied = databases[1].rowlock().await.database_id();
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
        assert!(matches!(error, QuorumError::Member(Error::SchemaMissing { .. })), "{error}");
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
            assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
            takes_part
        })
        .await;
        assert_eq!(connected(&quorum), [true, true, true]);
        remove(databases).await;
    }
}
