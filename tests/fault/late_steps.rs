//! What is said of a step that must not be repeated, and reaches the server late.

use std::time::Duration;

use rowlock::{
    Begun, Engine, Error, Fingerprint, IdempotencyGuard, Rowlock, Scope, StepFailed,
    TransactionError,
};
use rowlock_test::{Db, Mode, Proxy, connected, through_readable_proxy};

const STEP: &str = "charge the card";

/// A client behind the proxy with an attempt, and one beside it.
struct Late {
    db: Db,
    proxy: Proxy,
    rowlock: Rowlock,
    watcher: Rowlock,
    guard: IdempotencyGuard,
}

impl Late {
    async fn new(engine: Engine) -> Self {
        let db = Db::new(engine).await;
        let (proxy, url) = through_readable_proxy(&db).await;
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let rowlock = connected(&builder.clean_every(None), &url).await;
        let watcher = db.rowlock().await;
        let Begun::New(guard) = begin(&rowlock).await else {
            panic!("the key is new")
        };
        Self {
            db,
            proxy,
            rowlock,
            watcher,
            guard,
        }
    }

    /// How many records have an open step.
    async fn open_steps(&self) -> i64 {
        let sql = "SELECT COUNT(*) FROM rowlock_idempotency WHERE open_step IS NOT NULL";
        self.db.number(sql).await
    }

    /// What has become of the key when the attempt is given up.
    async fn given_up(self) -> Begun<IdempotencyGuard> {
        drop(self.guard);
        self.proxy.set(Mode::Pass);
        self.rowlock.flush().await;
        let begun = begin(&self.watcher).await;
        self.db.remove().await;
        begun
    }
}

async fn begin(rowlock: &Rowlock) -> Begun<IdempotencyGuard> {
    let idempotency = rowlock.idempotency().lease(Duration::from_mins(5));
    let request = Fingerprint::of("request");
    idempotency
        .begin(Scope("s").key("k"), &request)
        .await
        .unwrap()
}

fn refused() -> Error {
    Error::Transaction(TransactionError::NotOneRow { rows: 0 })
}

/// The step is begun on the server when its caller has given up, and when what says that it did not happen was given
/// up, too: the end of the attempt says it.
pub(crate) async fn begun(engine: Engine) {
    let late = Late::new(engine).await;
    // PostgreSQL is asked for the step with the same text before.
    let behind = u32::from(engine == Engine::Postgres);
    late.proxy.set(Mode::KeepRequestWith(STEP, behind));
    let work = async { unreachable!("it has not begun") };
    let begun: Result<u32, Error> = late.guard.step_once(STEP, work).await;
    assert!(
        matches!(begun, Err(Error::OutcomeUnknown { .. })),
        "{begun:?}"
    );
    assert_eq!(late.proxy.mode(), Mode::Silent, "a request was kept");
    late.rowlock.flush().await;
    late.proxy.deliver().await;
    assert_eq!(late.open_steps().await, 1);
    let begun = late.given_up().await;
    assert!(matches!(begun, Begun::New(_)), "{begun:?}");
}

/// That the step did not happen reaches the server when it was begun again, and nobody knows what has become of it.
pub(crate) async fn begun_again(engine: Engine) {
    let late = Late::new(engine).await;
    // The second time everything is prepared: what is kept is what is said of the step.
    for keep in [false, true] {
        let not_done = late.guard.step_once(STEP, async {
            if keep {
                late.proxy.set(Mode::KeepNextRequest);
            }
            Err::<u32, _>(StepFailed::NotDone(refused()))
        });
        assert!(matches!(
            not_done.await,
            Err(Error::Transaction(TransactionError::NotOneRow { .. }))
        ));
        assert_eq!(late.proxy.mode(), Mode::Pass);
    }
    let unknown = late.guard.step_once(STEP, async {
        assert_eq!(late.open_steps().await, 1);
        late.proxy.deliver().await;
        Err::<u32, _>(StepFailed::Unknown(refused()))
    });
    assert!(matches!(
        unknown.await,
        Err(Error::Transaction(TransactionError::NotOneRow { .. }))
    ));
    let begun = late.given_up().await;
    assert!(matches!(begun, Begun::Unknown(_)), "{begun:?}");
}
