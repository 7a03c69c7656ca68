//! A process: runs keys that the others run, too, in one transaction or in an attempt of its own, and tells what came
//! of it.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::IndexedRandom;
use rowlock::layer::LayerKeys as _;
use rowlock::{Begun, Error, Idempotency, Outcome, Scope, TransactionError};
use rowlock_test::{App, on_app, request, tell};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use super::judge::{Effect, Event};
use super::{ATTEMPTS, LEASE, SCOPE, Session};
use crate::history::now;
use crate::role::Role;

const TASKS: usize = 4;
const CONNECTIONS: u32 = 4;
/// So often the processes turn to new keys.
const TURN: Duration = Duration::from_millis(200);
/// New keys of a turn.
const KEYS: i64 = 4;
/// Keys of so many turns are in use.
const TURNS: i64 = 10;

/// Long ago and far ahead, in seconds: the clocks of the sessions stand there.
const FROZEN: [u32; 2] = [1_000_000_000, 2_000_000_000];

impl Session {
    /// What the application runs on each new connection.
    fn prepare(self) -> String {
        match self {
            Self::Frozen => set_timestamp(),
            Self::Plain | Self::Tenant => "SELECT 1".into(),
        }
    }

    /// What the work runs in its transaction, beside its effect. True: the outcome must be refused.
    fn interfere(self) -> (String, bool) {
        let choice = rand::rng().random_range(0..3);
        match (self, choice) {
            (Self::Frozen, 0) => (set_timestamp(), false),
            (Self::Tenant, 0) => ("SET LOCAL search_path = tenant, public".into(), true),
            (Self::Tenant, 1) => (
                "SET LOCAL search_path = tenant, public; SET LOCAL search_path = public, tenant"
                    .into(),
                false,
            ),
            _ => ("SELECT 1".into(), false),
        }
    }
}

fn set_timestamp() -> String {
    let at = FROZEN.choose(&mut rand::rng()).expect("a clock");
    format!("SET timestamp = {at}")
}

pub(crate) async fn work(role: &Role, session: Session) {
    let rowlock = role.connect().await;
    let app = App::prepared(&role.url, CONNECTIONS, &session.prepare()).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let app = app.clone();
        let idempotency = rowlock.idempotency().lease(role.ttl).max_attempts(ATTEMPTS);
        tasks.spawn(async move {
            loop {
                one(&idempotency, &app, session).await;
            }
        });
    }
    // They go on until one of them panics.
    let ended = tasks.join_next().await.expect("tasks");
    ended.expect("a task goes on");
}

/// A key that other tasks run at about the same time, or that they have run before.
fn record() -> i64 {
    let mut rng = rand::rng();
    let turn = i64::try_from(now().as_millis() / TURN.as_millis()).unwrap();
    (turn - rng.random_range(0..TURNS)) * KEYS + rng.random_range(0..KEYS)
}

/// Runs a key once.
async fn one(idempotency: &Idempotency, app: &App, session: Session) {
    let (record, token) = (record(), rand::rng().random_range(0..i64::MAX));
    let (interference, is_refused) = session.interfere();
    let began = Instant::now();
    let ran = if rand::rng().random_bool(0.5) {
        in_one_transaction(idempotency, app, (record, token), &interference).await
    } else {
        in_an_attempt(idempotency, app, (record, token), &interference).await
    };
    match ran {
        Ok(Begun::New(_)) => {
            assert!(!is_refused, "{record}: kept in another schema");
            tell(Event::New { record, token });
        }
        Ok(Begun::Replay(kept)) => {
            let token = kept.parse_json().unwrap();
            tell(Event::Replay { record, token });
        }
        Ok(Begun::InFlight(_)) => {}
        Ok(other) => panic!("{record}: {other:?}"),
        Err(Error::Transaction(TransactionError::WrongDatabase { .. })) if is_refused => {
            tell(Event::Refused { record, token });
        }
        Err(Error::Superseded { .. }) => {
            // This clock goes on while the process is stopped.
            assert!(
                began.elapsed() > LEASE / 2,
                "{record}: an attempt that lives was replaced"
            );
            tell(Event::Late { record, token });
        }
        // The next run of the key finds out.
        Err(error @ Error::CommitUnknown { .. }) => eprintln!("worker: {error}"),
        Err(error) if error.is_transient() || error.is_retryable() => eprintln!("worker: {error}"),
        Err(error) => panic!("{record}: {error}"),
    }
}

/// What the transaction of a run sends.
fn work_of((record, token, attempt): Effect, interference: &str) -> [String; 2] {
    let effect = format!("INSERT INTO effect VALUES ({record}, {token}, {attempt})");
    [interference.to_owned(), effect]
}

/// The claim, the effect and the outcome commit together.
async fn in_one_transaction(
    idempotency: &Idempotency,
    app: &App,
    (record, token): (i64, i64),
    interference: &str,
) -> Result<Begun<Outcome>, Error> {
    let (key, statements) = (
        record.to_string(),
        work_of((record, token, 0), interference),
    );
    let statements = &statements;
    on_app!(app, pool => {
        idempotency.run_in_tx(pool, Scope(SCOPE).key(&*key), request(), |mut tx| async move {
            for sql in statements {
                sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut *tx).await?;
            }
            Outcome::json(&token)
        }).await
    })
}

/// An attempt of its own, which the transaction of the effect completes.
async fn in_an_attempt(
    idempotency: &Idempotency,
    app: &App,
    (record, token): (i64, i64),
    interference: &str,
) -> Result<Begun<Outcome>, Error> {
    let guard = match idempotency
        .begin(Scope(SCOPE).key(&record.to_string()), request())
        .await?
    {
        Begun::New(guard) => guard,
        Begun::Replay(kept) => return Ok(Begun::Replay(kept)),
        Begun::InFlight(other) => return Ok(Begun::InFlight(other)),
        other => panic!("{record}: {other:?}"),
    };
    let attempt = guard.attempt();
    tell(Event::Begun { record, attempt });
    // Work outside of the transaction: pauses and kills meet an attempt.
    let work = Duration::from_millis(rand::rng().random_range(0..200));
    tokio::time::sleep(work).await;
    let statements = &work_of((record, token, attempt), interference);
    let (guard, outcome) = (&guard, &Outcome::json(&token)?);
    let done: Result<(), Error> = on_app!(app, pool => {
        idempotency.retry_policy().run(pool, |mut tx| async move {
            for sql in statements {
                sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut *tx).await?;
            }
            guard.complete_in(&mut tx, outcome).await
        }).await
    });
    done.map(|()| Begun::New(outcome.clone()))
}
