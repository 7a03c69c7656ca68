//! Row level security on rowlock's tables, as consoles of hosted databases propose it: the error names it.

use std::time::Duration;

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Rowlock, Scope, TransactionError};
use rowlock_test::{App, Db, as_user, eventually, on_app, take, user_name};

const TTL: Duration = Duration::from_secs(30);

/// A role with all rights on the tables, which another role owns.
async fn role(db: &Db) -> String {
    let role = user_name("secured");
    drop(db.rowlock().await);
    for statement in [
        format!("CREATE ROLE {role} LOGIN"),
        format!("GRANT ALL ON SCHEMA public TO {role}"),
        format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"),
    ] {
        db.execute(&statement).await;
    }
    role
}

async fn tables(db: &Db) -> Vec<String> {
    let sql = "SELECT tablename::text FROM pg_tables WHERE tablename LIKE 'rowlock%' ORDER BY 1";
    let App::Postgres(pool) = &db.app else {
        unreachable!("it is PostgreSQL's")
    };
    sqlx::query_scalar(sql).fetch_all(pool).await.unwrap()
}

async fn secure(db: &Db, table: &str, on: bool) {
    let what = if on { "ENABLE" } else { "DISABLE" };
    db.execute(&format!("ALTER TABLE {table} {what} ROW LEVEL SECURITY"))
        .await;
}

fn names_it<T: std::fmt::Debug>(result: Result<T, Error>, table: &str) {
    let error = result.unwrap_err();
    let said = error.to_string();
    let plain = said.to_lowercase().replace("row-level", "row level");
    let is_denied = matches!(error, Error::Denied { .. }) && said.contains("BYPASSRLS");
    let is_named = is_denied
        || matches!(
            error,
            Error::Transaction(TransactionError::WrongDatabase { .. })
        );
    assert!(
        is_named && plain.contains("row level security"),
        "{table}: {said}"
    );
    assert!(said.contains(table), "{table}: {said}");
}

async fn remove(db: Db, role: &str) {
    eventually("its sessions are gone", async || {
        let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
        db.try_execute(&drop).await.is_ok()
    })
    .await;
    db.remove().await;
}

#[tokio::test]
async fn connecting_names_the_tables_whose_rows_it_may_not_see() {
    let db = Db::new(Engine::Postgres).await;
    let role = role(&db).await;
    let url = as_user(&db.url, &role, "pw");
    let connect = async |migrate: bool| Rowlock::builder().migrate(migrate).connect(&url).await;
    let tables = tables(&db).await;
    assert!(tables.len() > 8, "{tables:?}");
    for table in &tables {
        secure(&db, table, true).await;
        names_it(connect(true).await, table);
        names_it(connect(false).await, table);
        // A policy for another role.
        let policy = format!("CREATE POLICY other ON {table} TO postgres USING (true)");
        db.execute(&policy).await;
        names_it(connect(true).await, table);
        secure(&db, table, false).await;
    }
    for table in &tables {
        secure(&db, table, true).await;
    }
    names_it(connect(true).await, &tables.join(", "));
    // Policies that allow all.
    for table in &tables {
        db.execute(&format!(
            "CREATE POLICY mine ON {table} TO {role} USING (true)"
        ))
        .await;
    }
    drop(take(&connect(false).await.unwrap(), "a", TTL).await);
    // Policies that allow nothing.
    for table in ["rowlock_schema_history", "rowlock_database"] {
        db.execute(&format!("ALTER POLICY mine ON {table} USING (false)"))
            .await;
        names_it(connect(true).await, table);
        names_it(connect(false).await, table);
        db.execute(&format!("ALTER POLICY mine ON {table} USING (true)"))
            .await;
    }
    // The owner of the tables is exempt.
    drop(take(&db.rowlock().await, "a", TTL).await);
    remove(db, &role).await;
}

#[tokio::test]
async fn what_a_running_client_may_not_write_any_more_is_named() {
    let db = Db::new(Engine::Postgres).await;
    let role = role(&db).await;
    let rowlock = Rowlock::connect(&as_user(&db.url, &role, "pw"))
        .await
        .unwrap();
    let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
    drop(take(&rowlock, "known", TTL).await);
    rowlock.flush().await;
    for table in tables(&db).await {
        secure(&db, &table, true).await;
    }
    names_it(rowlock.lock("new").try_acquire().await, "rowlock_lock");
    names_it(rowlock.lock("known").try_acquire().await, "rowlock_lock");
    names_it(
        idempotency.begin(Scope("shop").key("key"), &request).await,
        "rowlock_idempotency",
    );
    names_it(
        rowlock.lock("session").in_session().try_acquire().await,
        "rowlock_session",
    );
    names_it(
        rowlock.form_tokens().issue("shop").await,
        "rowlock_form_token",
    );
    drop(rowlock);
    remove(db, &role).await;
}

/// The application's pool has another user than rowlock's own connections.
#[tokio::test]
async fn a_transaction_of_a_user_who_may_not_see_the_rows_is_told_so() {
    let db = Db::new(Engine::Postgres).await;
    let role = role(&db).await;
    let rowlock = db.rowlock().await;
    let app = App::connect(&as_user(&db.url, &role, "pw"), 2).await;
    let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
    let held = take(&rowlock, "held", TTL).await;
    drop(take(&rowlock, "known", TTL).await);
    rowlock.flush().await;
    for table in ["rowlock_database", "rowlock_lock", "rowlock_idempotency"] {
        secure(&db, table, true).await;
        if table != "rowlock_idempotency" {
            for name in ["known", "new"] {
                let mut tx = app.begin().await;
                names_it(tx.try_lock(&rowlock, name).await.map(drop), table);
            }
            let mut tx = app.begin().await;
            names_it(tx.pin(&held).await, table);
        }
        if table != "rowlock_lock" {
            let ran = on_app!(&app, pool => {
                idempotency.run_in_tx(pool, Scope("shop").key(table), &request, |tx| async move { drop(tx); Outcome::json(&1) }).await
            });
            names_it(ran, table);
            let begun = idempotency
                .begin(Scope("shop").key(&format!("{table} 2")), &request)
                .await;
            let Begun::New(guard) = begun.unwrap() else {
                panic!("it is new")
            };
            on_app!(&app, pool => {
                let mut tx = pool.begin().await.unwrap();
                names_it(guard.complete_in(&mut tx, &Outcome::json(&1).unwrap()).await, table);
            });
        }
        secure(&db, table, false).await;
    }
    on_app!(&app, pool => pool.close().await);
    drop((held, rowlock));
    remove(db, &role).await;
}
