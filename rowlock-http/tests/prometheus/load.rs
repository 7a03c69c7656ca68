//! A program that has trouble of every kind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use rowlock::layer::LayerAttempt as _;
use rowlock::{Begun, Engine, Error, Fingerprint, IdempotencyGuard, Outcome, Rowlock, Scope};
use rowlock_http::IdempotencyLayer;
use rowlock_recipes::{Election, Job};
use rowlock_test::{Db, eventually, waiters};
use tower_service::Service as _;

/// Of a lease that is lost by the local clock.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_mins(1);

pub(crate) struct Load {
    db: Db,
    rowlock: Rowlock,
    job: Job,
    election: Election,
    /// Its schedule has no round in this test.
    _nightly: Job,
    rounds: AtomicU32,
}

impl Load {
    pub(crate) async fn new() -> Self {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = Rowlock::connect(&db.url).await.unwrap();
        Self {
            job: Job::new(&rowlock, "reminders"),
            election: Election::new(&rowlock, "scheduler"),
            _nightly: Job::new(&rowlock, "nightly"),
            rounds: AtomicU32::new(0),
            db,
            rowlock,
        }
    }

    /// Everything happens once.
    pub(crate) async fn round(&self) {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        self.locks().await;
        self.keys(round).await;
        self.jobs().await;
        self.terms().await;
        self.requests().await;
        self.database_stands_still().await;
    }

    async fn locks(&self) {
        let held = self.rowlock.lock("a").acquire().await.unwrap();
        let wait = Duration::from_millis(10);
        let waited = self.rowlock.lock("a").wait(wait).acquire().await;
        assert!(matches!(waited, Err(Error::WaitTimeout { .. })));
        let lock = self.rowlock.lock("a").wait(LONG);
        let release = async {
            eventually("it waits", async || {
                !waiters(&self.rowlock, "a").await.is_empty()
            })
            .await;
            held.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(lock.acquire(), release);
        next.unwrap().release().await.unwrap();
    }

    async fn keys(&self, round: u32) {
        let idempotency = self.rowlock.idempotency().max_attempts(1);
        let request = Fingerprint::of("request");
        let begin = async |key: &str| {
            let scope = Scope(format!("round {round}"));
            idempotency.begin(scope.key(key), request).await.unwrap()
        };
        let new = async |key: &str| -> IdempotencyGuard {
            match begin(key).await {
                Begun::New(guard) => guard,
                other => panic!("{other:?}"),
            }
        };
        let outcome = Outcome::json(&"done").unwrap();
        new("a").await.complete(&outcome).await.unwrap();
        assert!(matches!(begin("a").await, Begun::Replay(_)));
        drop(new("vanishes").await);
        self.rowlock.flush().await;
        assert!(matches!(begin("vanishes").await, Begun::Poisoned { .. }));
        let guard = new("charge").await;
        drop(guard.begin_whole("charge").await.unwrap());
        drop(guard);
        self.rowlock.flush().await;
        assert!(matches!(begin("charge").await, Begun::Unknown(_)));
        let taken = new("taken").await;
        let take = "UPDATE rowlock_idempotency SET attempt_id = x'00112233445566778899aabbccddeeff' WHERE state = 'running'";
        self.db.execute(take).await;
        taken.complete(&outcome).await.unwrap_err();
        let lost = new("lost").await;
        lost.keep_claimed();
        lost.outcome_is_lost();
    }

    async fn jobs(&self) {
        let ran = self.job.run(async |_| Ok::<_, Error>(()));
        ran.await.unwrap().here().unwrap();
        let ran = self.job.run(async |_| {
            let again = self.job.run(async |_| Ok::<_, Error>(())).await?;
            assert!(again.here().is_none());
            Err::<(), Box<dyn std::error::Error>>("no mail server".into())
        });
        ran.await.unwrap_err();
        let ran = self.job.run(async |held| {
            let name = held.name().clone();
            self.rowlock.admin().force_release(name).await?;
            std::future::pending::<Result<(), Error>>().await
        });
        assert!(matches!(ran.await, Err(Error::Lost { .. })));
    }

    async fn terms(&self) {
        let leadership = self.election.campaign().await.unwrap();
        leadership.resign().await.unwrap();
        let leadership = self.election.campaign().await.unwrap();
        let name = leadership.name().clone();
        self.rowlock.admin().force_release(name).await.unwrap();
        leadership.lost().await;
    }

    async fn requests(&self) {
        let idempotency = self.rowlock.idempotency();
        let layer = IdempotencyLayer::new(idempotency, |_| Some("ann")).required(true);
        let mut app: Router = Router::new().route("/", post(async || "paid")).layer(layer);
        let request = Request::post("/").body(Body::empty()).unwrap();
        assert_eq!(app.call(request).await.unwrap().status(), 400);
    }

    /// A transaction has the file until a lease is lost.
    async fn database_stands_still(&self) {
        let held = self.rowlock.lock("b").ttl(SHORT).acquire().await.unwrap();
        let tx = self.db.begin().await;
        held.lost().await;
        tx.release().await;
    }
}
