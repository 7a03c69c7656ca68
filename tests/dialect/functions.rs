//! PostgreSQL: the functions of the queue, of which each release has its own.

use std::time::Duration;

use rowlock::{Engine, Error, Rowlock, SchemaError};
use rowlock_test::{Db, as_user, eventually, take, user_name};

const TTL: Duration = Duration::from_secs(30);

/// Of this release.
const OURS: &str = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'rowlock\\_%'";

/// Notes of this release.
const NOTES: &str = "SELECT count(*) FROM rowlock_function \
                     WHERE used_at > clock_timestamp() - interval '1 minute'";

/// A function of another release, noted two days ago or just now.
async fn add_another_release(db: &Db, name: &str, noted: &str) {
    db.execute(&format!(
        "CREATE FUNCTION {name}(x int) RETURNS int LANGUAGE sql AS 'SELECT x'; \
         INSERT INTO rowlock_function VALUES ('{name}', {noted})"
    ))
    .await;
}

async fn is_there(db: &Db, name: &str) -> bool {
    let found = format!("SELECT count(*) FROM pg_proc WHERE proname = '{name}'");
    db.number(&found).await == 1
}

/// Two clients wait for the same name in turn.
async fn assert_that_the_queue_works(db: &Db) {
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let held = take(&one, "queue", TTL).await;
    let lock = two.lock("queue");
    let waits = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", async || {
        one.admin().queue("queue").await.unwrap().len() == 1
    })
    .await;
    held.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_missing_function_is_made_again_by_who_may() {
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    let all = db.number(OURS).await;
    assert!(all > 10);
    assert_eq!(db.number(NOTES).await, all);
    // As after a partial restore: the note is there, and the function is not.
    db.execute(
        "DO $$ BEGIN EXECUTE 'DROP FUNCTION ' || (SELECT min(oid)::regproc FROM pg_proc \
         WHERE proname LIKE 'rowlock\\_join\\_%'); END $$",
    )
    .await;
    let error = Rowlock::builder().migrate(false).connect(&db.url).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Schema(SchemaError::FunctionsMissing { .. })),
        "{error}"
    );
    let said = error.to_string();
    assert!(said.contains("(rowlock_join_"), "{said}");
    assert!(said.contains("--print postgres --from 3"), "{said}");
    assert_eq!(db.number(OURS).await, all - 1);

    let second = db.rowlock().await;
    let [made] = second.admin().applied_migrations() else {
        panic!("{:?}", second.admin().applied_migrations());
    };
    assert!(made.starts_with("rowlock_join_"), "{made}");
    assert_eq!(db.number(OURS).await, all);
    assert_that_the_queue_works(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_dba_makes_the_functions_of_a_new_release() {
    let db = Db::new(Engine::Postgres).await;
    let user = user_name("u");
    db.execute(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'pw'; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}; \
         DO $$ BEGIN EXECUTE 'DROP FUNCTION ' || (SELECT min(oid)::regproc FROM pg_proc \
         WHERE proname LIKE 'rowlock\\_pass\\_%'); END $$"
    ))
    .await;
    let url = as_user(&db.url, &user, "pw");
    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, Error::Schema(SchemaError::Denied { .. })),
        "{error}"
    );
    // A program that uses locks only.
    db.execute(&format!(
        "REVOKE ALL ON rowlock_form_token, rowlock_function FROM {user}"
    ))
    .await;
    let locks_only = Rowlock::builder().migrate(false).connect(&url).await;
    assert!(
        matches!(
            locks_only,
            Err(Error::Schema(SchemaError::FunctionsMissing { .. }))
        ),
        "{locks_only:?}"
    );
    let sql = rowlock::migration_sql(Engine::Postgres, 3).unwrap();
    assert!(!sql.contains("CREATE TABLE"), "{sql}");
    db.execute(&sql).await;
    let client = Rowlock::connect(&url).await.unwrap();
    // Whether it may note its use or not, it cleans the locks.
    db.execute("INSERT INTO rowlock_lock (name, fence) VALUES ('old', 1)")
        .await;
    client.flush().await;
    db.execute(&format!("GRANT ALL ON rowlock_form_token TO {user}"))
        .await;
    assert_eq!(client.admin().clean(100).await.unwrap().locks, 1);
    drop(client);
    db.execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}"))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn the_functions_of_another_release_stay_while_a_client_uses_them() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    let all = db.number(OURS).await;
    let ago = |time: &str| format!("clock_timestamp() - interval '{time}'");
    add_another_release(&db, "rowlock_join_0ld", &ago("25 hours")).await;
    add_another_release(&db, "rowlock_join_used", &ago("23 hours")).await;
    add_another_release(&db, "other_join", &ago("25 hours")).await;
    rowlock.admin().clean(100).await.unwrap();
    assert!(!is_there(&db, "rowlock_join_0ld").await);
    assert!(is_there(&db, "other_join").await, "it is not rowlock's");
    db.execute("DROP FUNCTION other_join; DELETE FROM rowlock_function WHERE name = 'other_join'")
        .await;
    // Our own are not old: this client uses them.
    db.execute(
        "UPDATE rowlock_function SET used_at = used_at - interval '30 hours' \
         WHERE name <> 'rowlock_join_used'",
    )
    .await;
    rowlock.admin().clean(100).await.unwrap();
    assert!(is_there(&db, "rowlock_join_used").await);
    assert_eq!(db.number(OURS).await, all + 1);
    assert_eq!(
        db.number("SELECT count(*) FROM rowlock_function").await,
        all + 1
    );
    assert_that_the_queue_works(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn a_client_that_connects_while_its_functions_are_dropped_makes_them_again() {
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    let all = db.number(OURS).await;
    let old = "UPDATE rowlock_function SET used_at = used_at - interval '2 days'";
    db.execute(old).await;
    // What the cleaner of another release does, up to its commit.
    let mut cleaner = db.begin().await;
    cleaner
        .execute("SELECT name FROM rowlock_function ORDER BY name FOR UPDATE")
        .await
        .unwrap();
    cleaner
        .execute(
            "DO $$ DECLARE f regprocedure; BEGIN \
             FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'rowlock\\_%' LOOP \
             EXECUTE 'DROP FUNCTION ' || f; END LOOP; \
             DELETE FROM rowlock_function; END $$",
        )
        .await
        .unwrap();
    let url = db.url.clone();
    let connects = tokio::spawn(async move { Rowlock::connect(&url).await });
    eventually("it waits for the cleaner", async || db.waiting().await > 0).await;
    cleaner.commit().await.unwrap();
    let rowlock = connects.await.unwrap().unwrap();
    assert_eq!(
        rowlock.admin().applied_migrations().len(),
        usize::try_from(all).unwrap()
    );
    assert_eq!(db.number(OURS).await, all);
    assert_that_the_queue_works(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn functions_are_made_in_the_schema_of_the_tables() {
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    let all = db.number(OURS).await;
    db.execute(
        "CREATE SCHEMA tenant; DO $$ DECLARE f regprocedure; BEGIN \
         FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'rowlock\\_%' LOOP \
         EXECUTE 'DROP FUNCTION ' || f; END LOOP; DELETE FROM rowlock_function; END $$",
    )
    .await;
    let url = format!("{}?options=-csearch_path%3Dtenant,public", db.url);
    drop(Rowlock::connect(&url).await.unwrap());
    let in_public = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'rowlock\\_%' \
                     AND pronamespace = 'public'::regnamespace";
    assert_eq!(db.number(in_public).await, all);
    assert_that_the_queue_works(&db).await;
    db.remove().await;
}

#[tokio::test]
async fn two_releases_share_one_queue() {
    let db = Db::new(Engine::Postgres).await;
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let held = take(&one, "q", TTL).await;
    // The same functions under the names of another release, and a client of it.
    db.execute(
        r"DO $$ DECLARE f record; BEGIN
          FOR f IN SELECT pg_get_functiondef(oid) AS made FROM pg_proc WHERE proname LIKE 'rowlock\_%' LOOP
              EXECUTE regexp_replace(f.made, '(rowlock_[a-z_]+_)[0-9a-f]{8}\M', '\1other', 'g');
          END LOOP; END $$;
          INSERT INTO rowlock_session (id, holder, opened_at, expires_at)
          VALUES ('00000000-0000-0000-0000-000000000001', 'other', now(), now() + interval '1 hour')",
    )
    .await;
    let theirs = "00000000-0000-0000-0000-000000000002";
    let join = format!(
        "SELECT status::bigint FROM rowlock_join_other('q'::bytea, '{theirs}', \
         '00000000-0000-0000-0000-000000000001', false, 30000000, 'other', 100)"
    );
    assert_eq!(db.number(&join).await, 2, "it waits");
    let lock = two.lock("q");
    let waits = tokio::spawn(async move { lock.acquire().await });
    eventually("both wait", async || {
        one.admin().queue("q").await.unwrap().len() == 2
    })
    .await;

    // Our release passes the name on to them, and their release passes it on to us.
    held.release().await.unwrap();
    let granted = format!("SELECT count(*) FROM rowlock_lock WHERE grant_id = '{theirs}'");
    eventually("they have it", async || db.number(&granted).await == 1).await;
    assert!(!waits.is_finished());
    let pass = format!("SELECT 1 FROM rowlock_pass_other('q'::bytea, '{theirs}', NULL, 2000000)");
    db.execute(&pass).await;
    waits.await.unwrap().unwrap().release().await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn two_schemas_have_functions_of_their_own() {
    let db = Db::new(Engine::Postgres).await;
    let all = db.number(OURS).await;
    let sql = rowlock::migration_sql(Engine::Postgres, 0).unwrap();
    let (tables, _) = sql.split_once("CREATE OR REPLACE FUNCTION").unwrap();
    db.execute(&format!(
        "CREATE SCHEMA tenant; SET search_path = tenant; {tables}; SET search_path = public; \
         CREATE FUNCTION rowlock_fake() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         INSERT INTO tenant.rowlock_function VALUES ('rowlock_fake', now() - interval '2 days')"
    ))
    .await;
    let url = format!("{}?options=-csearch_path%3Dtenant,public", db.url);
    let tenant = Rowlock::connect(&url).await.unwrap();
    let in_tenant = format!("{OURS} AND pronamespace = 'tenant'::regnamespace");
    assert_eq!(db.number(&in_tenant).await, all);
    tenant.admin().clean(100).await.unwrap();
    assert!(
        is_there(&db, "rowlock_fake").await,
        "it is in another schema"
    );
    db.remove().await;
}

#[tokio::test]
async fn a_quorum_makes_the_functions_of_its_release() {
    let databases = [
        Db::new(Engine::Postgres).await,
        Db::new(Engine::Postgres).await,
        Db::new(Engine::Postgres).await,
    ];
    for db in &databases {
        drop(db.rowlock().await);
        db.execute(
            "DO $$ BEGIN EXECUTE 'DROP FUNCTION ' || (SELECT min(oid)::regproc FROM pg_proc \
             WHERE proname LIKE 'rowlock\\_join\\_%'); END $$",
        )
        .await;
    }
    let urls = databases.each_ref().map(|db| db.url.clone());
    let quorum = rowlock_recipes::Quorum::connect(urls).await.unwrap();
    drop(quorum.lock("a").acquire().await.unwrap());
    drop(quorum);
    for db in databases {
        db.remove().await;
    }
}

/// As when its database was out of reach for a day, and other releases have gone on.
#[tokio::test]
async fn a_running_client_makes_its_functions_again() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    let all = db.number(OURS).await;
    let drop_all = "DO $$ DECLARE f regprocedure; BEGIN \
         FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'rowlock\\_%' LOOP \
         EXECUTE 'DROP FUNCTION ' || f; END LOOP; DELETE FROM rowlock_function; END $$";
    db.execute(drop_all).await;
    rowlock.admin().clean(100).await.unwrap();
    assert_eq!(db.number(OURS).await, all);
    assert_that_the_queue_works(&db).await;
    db.remove().await;
}
