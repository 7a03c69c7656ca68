//! What the tasks do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rowlock::extend::raise_fence;
use rowlock::{Begun, Error, Outcome, Retry, Rowlock, Scope, TransactionError};
use rowlock_test::{App, on_app, request};
use sqlx::AssertSqlSafe;

use super::{ALL, NAMES, PERMITS, Seen, TTL};

const WAIT: Duration = Duration::from_millis(300);

const POLICY: Retry = Retry::new()
    .attempts(5)
    .backoff(Duration::from_millis(1), Duration::from_millis(20));

pub(super) async fn pause() {
    let micros = rand::rng().random_range(0..3_000);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// Counts one on, in whichever transaction it is.
macro_rules! count {
    ($tx:expr, $at:expr) => {{
        let read = format!("SELECT n FROM counter WHERE id = {}", $at);
        let n: i64 = sqlx::query_scalar(AssertSqlSafe(read))
            .fetch_one(&mut *$tx)
            .await?;
        let write = format!("UPDATE counter SET n = {} WHERE id = {}", n + 1, $at);
        sqlx::raw_sql(AssertSqlSafe(write))
            .execute(&mut *$tx)
            .await?;
    }};
}

async fn in_a_lease(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let at = rand::rng().random_range(0..NAMES);
    let name = format!("counter {at}");
    let lock = client.lock(name).wait(WAIT);
    let lock = if rand::rng().random_bool(0.5) {
        lock.in_session()
    } else {
        lock.ttl(TTL)
    };
    let held = lock.acquire().await?;
    seen.locks[at].enter(1);
    let guard = &held;
    let raised = raise_fence(guard, guard.fence() + 1).await;
    let done: Result<(), Error> = on_app!(app, pool => {
        POLICY.run(pool, |mut tx| async move {
            count!(tx, at);
            guard.pin(&mut tx).await
        }).await
    });
    seen.locks[at].leave(1);
    seen.counted(at, done)?;
    raised?;
    held.release().await
}

async fn in_a_transaction(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let at = rand::rng().random_range(0..NAMES);
    let name = &*format!("counter {at}");
    let done: Result<(), Error> = on_app!(app, pool => {
        POLICY.run(pool, |mut tx| async move {
            client.in_tx(&mut tx).lock(name).wait(WAIT).acquire().await?;
            count!(tx, at);
            Ok(())
        }).await
    });
    seen.counted(at, done)
}

async fn with_a_permit(client: &Rowlock, seen: &Seen) -> Result<(), Error> {
    let kind = rand::rng().random_range(0..3);
    if kind == 2 {
        let permits = client.semaphore("permits", PERMITS).ttl(TTL).wait(WAIT);
        let held = permits.acquire().await?;
        seen.permits.enter(1);
        pause().await;
        seen.permits.leave(1);
        return held.release().await;
    }
    let lock = client.rw_lock("read_write").ttl(TTL).wait(WAIT);
    let (held, weight) = match kind {
        0 => (lock.read().await?, 1),
        _ => (lock.write().await?, ALL),
    };
    seen.read_write.enter(weight);
    pause().await;
    seen.read_write.leave(weight);
    held.release().await
}

async fn once_in_a_transaction(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let (key, token) = (seen.key("tx"), rand::rng().random_range(1..i64::MAX));
    let effect = &format!("INSERT INTO effect VALUES ('{key}', {token})");
    let idempotency = client.idempotency().lease(TTL);
    let ran = on_app!(app, pool => {
        idempotency.run_in_tx(pool, Scope("killed").key(&*key), request(), |mut tx| async move {
            sqlx::raw_sql(AssertSqlSafe(effect.clone())).execute(&mut *tx).await?;
            Outcome::json(&token)
        }).await
    })?;
    match ran {
        Begun::New(_) => seen.outcome(&key, token),
        Begun::Replay(kept) => seen.outcome(&key, kept.parse_json()?),
        _ => {}
    }
    Ok(())
}

async fn in_an_attempt(client: &Rowlock, seen: &Seen) -> Result<(), Error> {
    let (key, token) = (seen.key("attempt"), rand::rng().random_range(1..i64::MAX));
    let idempotency = client.idempotency().lease(TTL);
    match idempotency
        .begin(Scope("killed").key(&*key), request())
        .await?
    {
        Begun::New(guard) => {
            seen.attempts(&key, 1);
            pause().await;
            seen.attempts(&key, -1);
            guard.complete(&Outcome::json(&token)?).await?;
            seen.outcome(&key, token);
        }
        Begun::Replay(kept) => seen.outcome(&key, kept.parse_json()?),
        _ => {}
    }
    Ok(())
}

pub(super) async fn work(client: Rowlock, app: App, seen: Arc<Seen>) {
    while !seen.stop.load(Ordering::Relaxed) {
        let kind = rand::rng().random_range(0..8);
        let done = match kind {
            0 => in_a_lease(&client, &app, &seen).await,
            1 => in_a_transaction(&client, &app, &seen).await,
            2 => once_in_a_transaction(&client, &app, &seen).await,
            3 => in_an_attempt(&client, &seen).await,
            // The longest texts.
            _ => with_a_permit(&client, &seen).await,
        };
        match done {
            Ok(()) => _ = seen.done.fetch_add(1, Ordering::Relaxed),
            Err(Error::WaitTimeout { .. }) => {}
            Err(error) => {
                // No lease of a holder that lives ends so soon.
                let wrong = matches!(
                    error,
                    Error::Lost { .. } | Error::Transaction(TransactionError::WrongDatabase { .. })
                );
                assert!(!wrong, "{error}");
                seen.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
