//! Bad input: refused before the database is asked, or an error that says what and what to do.

use std::time::Duration;

use rowlock::{
    ConnectError, Error, Fingerprint, InvalidError, Outcome, RecordError, Rowlock, SchemaError,
    Scope,
};
use rowlock_test::{Db, on_app, on_every_engine, take};

on_every_engine! {
    async fn names_and_durations_out_of_bounds_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        for name in [String::new(), "x".repeat(256), "a\0b".into()] {
            let error = rowlock.lock(name.as_str()).try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
            assert!(matches!(rowlock.inspect(name.as_str()).await, Err(Error::Invalid(InvalidError::Name { .. }))));
            assert!(matches!(rowlock.admin().force_release(name).await, Err(Error::Invalid(InvalidError::Name { .. }))));
        }
        let (zero, long) = (Duration::ZERO, Duration::MAX);
        let short = Duration::from_millis(99);
        for ttl in [zero, short, Duration::from_hours(24) + Duration::from_nanos(1), long] {
            let error = rowlock.lock("a").ttl(ttl).acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "ttl", .. })), "{error}");
        }
        for max_hold in [zero, short, long] {
            let error = rowlock.lock("a").max_hold(max_hold).acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "max_hold", .. })), "{error}");
        }
        let error = rowlock.lock("a").wait(long).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "wait", .. })), "{error}");
        for holder in ["", "a\0b", &"x".repeat(201)] {
            let error = rowlock.lock("a").holder(holder).acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "holder", .. })), "{error}");
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_lock").await, 0);
        // The bounds themselves are fine.
        let lock = rowlock.lock("x".repeat(255)).ttl(Duration::from_hours(24));
        let held = lock.holder("ö".repeat(100)).wait(Duration::ZERO).acquire().await.unwrap();
        held.release().await.unwrap();
        let _shortest = take(&rowlock, "a", Duration::from_millis(100)).await;
    }

    async fn the_scopes_of_the_http_layer_are_not_for_the_application(db: &Db) {
        let rowlock = db.rowlock().await;
        let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
        for scope in ["http:", "http:alice"] {
            let ran = on_app!(&db.app, pool => {
                idempotency.run_in_tx(pool, Scope(scope).key("k"), &request, |tx| async move { drop(tx); Outcome::json(&1) }).await
            });
            for error in [
                idempotency.begin(Scope(scope).key("k"), &request).await.unwrap_err(),
                ran.unwrap_err(),
                rowlock.form_tokens().issue(scope).await.unwrap_err(),
            ] {
                assert!(matches!(&error, Error::Invalid(InvalidError::Key { what: "scope", .. })), "{error}");
                assert!(error.to_string().contains("HTTP layer"), "{error}");
            }
            // To look, and to decide, is an administrator's right.
            assert!(idempotency.inspect(Scope(scope).key("k")).await.unwrap().is_none());
            let error = idempotency.reset(Scope(scope).key("k")).await.unwrap_err();
            assert!(matches!(error, Error::Record(RecordError::Missing { .. })), "{error}");
        }
        for scope in ["http", "https:", "my http:"] {
            drop(idempotency.begin(Scope(scope).key("k"), &request).await.unwrap());
        }
    }

    async fn unknown_parameters_of_a_url_are_refused_by_name_and_never_by_value(db: &Db) {
        let sign = if db.url.contains('?') { '&' } else { '?' };
        for (parameter, name) in [
            ("rowlock_prepard=s3cret", "rowlock_prepard"),
            ("Rowlock_Pooler=s3cret", "Rowlock_Pooler"),
            ("sslmod=s3cret", "sslmod"),
            ("SSLMODE=s3cret", "SSLMODE"),
            ("pasword=s3cret", "pasword"),
            ("schema=s3cret", "schema"),
            ("hots=s3cret", "hots"),
            ("target_session_attrs=s3cret", "target_session_attrs"),
            ("sslm%6Fd=s3cret", "sslmod"),
            ("options[search_path=s3cret", "options[search_path"),
        ] {
            let url = format!("{}{sign}{parameter}", db.url);
            let error = Rowlock::connect(&url).await.unwrap_err();
            assert!(matches!(error, Error::Connect(ConnectError::InvalidUrl { .. })), "{parameter}: {error}");
            let said = format!("{error} {error:?}");
            assert!(said.contains(&format!("`{name}`")) && !said.contains("s3cret"), "{parameter}: {said}");
        }
    }

    async fn work_under_a_released_guard_does_not_begin(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_mins(5)).await;
        held.release().await.unwrap();
        let refused = held.with(async || unreachable!("it runs")).await;
        assert!(matches!(refused, Err(Error::Released { .. })), "{refused:?}");
    }

    async fn rows_edited_by_hand_are_an_error_and_no_panic(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_mins(5)).await;
        // The constraints refuse what makes no sense …
        let damage = "UPDATE rowlock_lock SET grant_id = NULL";
        assert!(db.try_execute(damage).await.is_err());
        assert!(db.try_execute("UPDATE rowlock_lock SET fence = -1").await.is_err());
        assert!(db.try_execute("UPDATE rowlock_lock SET holder = NULL").await.is_err());
        // … and who drops them gets errors, until the row is repaired.
        db.damage(damage).await;
        let error = rowlock.lock("a").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Corrupt { .. })), "{error}");
        // Waiting would not mend it.
        let error = rowlock.lock("a").acquire().await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Corrupt { .. })), "{error}");
        assert!(matches!(rowlock.inspect("a").await, Err(Error::Schema(SchemaError::Corrupt { .. }))));
        assert!(matches!(rowlock.admin().list().await, Err(Error::Schema(SchemaError::Corrupt { .. }))));
        let _other = take(&rowlock, "b", Duration::from_secs(5)).await;
        drop(held);
        rowlock.admin().force_release("a").await.unwrap();
        let _again = take(&rowlock, "a", Duration::from_secs(5)).await;
    }

    async fn a_fence_at_its_end_is_an_error_for_this_name_only(db: &Db) {
        let rowlock = db.rowlock().await;
        for name in ["end", "fine"] {
            drop(take(&rowlock, name, Duration::from_secs(5)).await);
        }
        rowlock.flush().await;
        let end = 4_611_686_018_427_387_903_i64;
        db.execute(&format!("UPDATE rowlock_lock SET fence = {end} WHERE name = {}", db.bytes("end"))).await;
        // Both in one statement: the innocent one is granted.
        let (bad, good) = (rowlock.lock("end"), rowlock.lock("fine"));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (bad, good) = (bad.clone(), good.clone());
            tasks.spawn(async move {
                let (bad, good) = tokio::join!(bad.try_acquire(), good.acquire());
                assert!(matches!(bad, Err(Error::Database { .. })), "{bad:?}");
                good.unwrap().release().await.unwrap();
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    }

    async fn a_server_that_is_not_there_is_told_with_its_address_and_without_the_password(db: &Db) {
        let error = Rowlock::connect(db.kind.nowhere).await.unwrap_err();
        let message = error.to_string();
        if db.has_server() {
            assert!(matches!(error, Error::Unreachable { .. }), "{message}");
            assert!(message.contains("me@127.0.0.1:1/shop"), "{message}");
        } else {
            assert!(matches!(error, Error::Connect(ConnectError::Unwritable { .. })), "{message}");
            assert!(message.contains("/no/such/folder/locks.db"), "{message}");
        }
        assert!(!format!("{message}{error:?}").contains("s3cret"), "{error:?}");
    }
}
