//! Databases of PostgreSQL whose encoding lacks characters: what is for people to read is escaped, and nothing fails
//! for it.

use std::time::Duration;

use rowlock::{Begun, Engine, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{App, Db, eventually, last_run, on_app, queue_of, release, take, with_database};

const TTL: Duration = Duration::from_secs(30);

/// One character that LATIN1 has, and one that only Unicode has.
const TEXT: &str = "über 🐋";

async fn holder(rowlock: &Rowlock, name: &str) -> String {
    rowlock.inspect(name).await.unwrap().unwrap().holder
}

async fn texts_are_kept_as([rowlock, other]: &[Rowlock; 2], app: &App, kept: &str) {
    let held = take(rowlock, "🐋 client", TTL).await;
    assert_eq!(holder(rowlock, "🐋 client").await, kept);
    held.begin_run().await.unwrap();
    assert!(held.end_run(false, TEXT).await.unwrap());
    let run = last_run(rowlock, "🐋 client").await.unwrap();
    assert_eq!((&*run.message, &*run.holder), (kept, kept));
    // A message is cut as it is stored.
    let long = take(rowlock, "long", TTL).await;
    long.begin_run().await.unwrap();
    assert!(long.end_run(false, &TEXT.repeat(90)).await.unwrap());
    let message = last_run(rowlock, "long").await.unwrap().message;
    assert!(
        message.starts_with(kept) && message.len() <= 1_000,
        "{}",
        message.len()
    );

    // A lock's own text: asked for once, with a wait, in a session, as a permit, several at a time.
    let own = format!("{TEXT} own");
    let own_kept = format!("{kept} own");
    let lock = |name: &str| rowlock.lock(name).holder(&*own);
    let first = lock("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(holder(rowlock, "a").await, own_kept);
    let wait = other.lock("a").holder(&*own).ttl(TTL);
    let waiting = tokio::spawn(async move { wait.acquire().await });
    eventually("another client waits", async || {
        queue_of(rowlock, "a").await == [own_kept.as_str()]
    })
    .await;
    release(&first).await;
    drop(waiting.await.unwrap().unwrap());
    let _in_session = lock("b").in_session().acquire().await.unwrap();
    assert_eq!(holder(rowlock, "b").await, own_kept);
    let sessions = rowlock.admin().sessions().await.unwrap();
    assert!(sessions.iter().all(|session| session.holder == kept));
    let permit = rowlock.semaphore("c", 2).holder(&*own);
    let _permit = permit.acquire().await.unwrap();
    assert_eq!(
        rowlock.admin().holders("c").await.unwrap()[0].holder,
        own_kept
    );
    let both = rowlock.multi_lock(["d", "e"]).holder(&*own);
    let _both = both.acquire().await.unwrap();
    assert_eq!(holder(rowlock, "d").await, own_kept);

    // The name of an owner that waits.
    let owner = other.owner().named(TEXT);
    let _mine = other.lock("mine").owner(&owner).acquire().await.unwrap();
    let wait = other.lock("b").owner(&owner);
    let wait = tokio::spawn(async move { wait.acquire().await });
    eventually("the owner is told", async || {
        app.number("SELECT count(*) FROM rowlock_waiting_owner")
            .await
            == 1
    })
    .await;
    let names = format!("SELECT count(*) FROM rowlock_waiting_owner WHERE owner = '{kept}'");
    assert_eq!(app.number(&names).await, 1);
    wait.abort();

    // An attempt, and a claim in a transaction. Keys and outcomes are bytes.
    let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
    let begun = idempotency
        .begin(Scope("shop").key(TEXT), &request)
        .await
        .unwrap();
    let Begun::New(guard) = begun else {
        panic!("{begun:?}")
    };
    let record = idempotency
        .inspect(Scope("shop").key(TEXT))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.holder, kept);
    guard
        .complete(&Outcome::json(&TEXT).unwrap())
        .await
        .unwrap();
    let ran = on_app!(app, pool => {
        idempotency.run_in_tx(pool, Scope("shop").key("other"), &request, |tx| async move { drop(tx); Outcome::json(&TEXT) }).await
    });
    assert!(matches!(ran, Ok(Begun::New(_))), "{ran:?}");
}

#[tokio::test]
async fn what_a_database_may_lack_is_escaped_in_what_people_read() {
    let db = Db::new(Engine::Postgres).await;
    let escaped = "\\u{fc}ber \\u{1f40b}";
    for (encoding, kept) in [
        ("LATIN1", escaped),
        ("EUC_JP", escaped),
        ("SQL_ASCII", TEXT),
    ] {
        let name = format!("{}_{}", db.name(), encoding.to_lowercase());
        db.execute(&format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        ))
        .await;
        let url = with_database(&db.url, &name);
        let app = App::connect(&url, 2).await;
        let client = async || Rowlock::builder().holder(TEXT).connect(&url).await.unwrap();
        let clients = [client().await, client().await];
        texts_are_kept_as(&clients, &app, kept).await;
        on_app!(&app, pool => pool.close().await);
        drop(clients);
        eventually("the database is not in use", async || {
            db.try_execute(&format!("DROP DATABASE {name}"))
                .await
                .is_ok()
        })
        .await;
    }
    db.remove().await;
}
