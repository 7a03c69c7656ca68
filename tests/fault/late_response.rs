//! The database is out of reach when a handler of the HTTP layer has finished, for longer than the lease: its response
//! is kept when the database is back, unless another process has taken the key over meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use rowlock::{Engine, RecordState, Rowlock, Scope};
use rowlock_http::{IdempotencyLayer, scope};
use rowlock_test::{Db, Killable, Mode, connected, eventually, through_proxy};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const LEASE: Duration = Duration::from_millis(500);
/// Of a process that is never late.
const LONG_LEASE: Duration = Duration::from_mins(30);

/// A server whose handler waits for a permit.
struct Shop {
    rowlock: Rowlock,
    address: SocketAddr,
    hall: Arc<Hall>,
}

struct Hall {
    name: &'static str,
    runs: AtomicU32,
    gate: Semaphore,
}

impl Shop {
    async fn start(name: &'static str, url: &str, lease: Duration) -> Self {
        let connecting = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let rowlock = connected(&connecting, url).await;
        let hall = Arc::new(Hall {
            name,
            runs: AtomicU32::new(0),
            gate: Semaphore::new(0),
        });
        let me = |_: &Parts| Some("ann");
        let layer = IdempotencyLayer::new(rowlock.idempotency().lease(lease), me);
        let here = Arc::clone(&hall);
        let handle = move || async move {
            let run = here.runs.fetch_add(1, Ordering::SeqCst) + 1;
            here.gate.acquire().await.unwrap().forget();
            (StatusCode::CREATED, format!("{} {run}", here.name))
        };
        let app = Router::new().route("/pay", post(handle)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            rowlock,
            address,
            hall,
        }
    }

    fn pay(&self) -> impl Future<Output = Answer> + use<> {
        let url = format!("http://{}/pay", self.address);
        async move {
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            let request = client.post(url).header("idempotency-key", "\"k\"");
            let response = request.body("100").send().await.unwrap();
            Answer {
                status: response.status().as_u16(),
                replayed: response.headers().contains_key("idempotent-replayed"),
                body: response.text().await.unwrap(),
            }
        }
    }

    fn runs(&self) -> u32 {
        self.hall.runs.load(Ordering::SeqCst)
    }

    /// Waits until the handler runs.
    async fn running(&self) {
        eventually("the handler runs", || async { self.runs() == 1 }).await;
    }
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    replayed: bool,
    body: String,
}

impl Answer {
    fn of(replayed: bool, body: &str) -> Self {
        Self {
            status: 201,
            replayed,
            body: body.into(),
        }
    }
}

async fn state(rowlock: &Rowlock) -> RecordState {
    let record = rowlock
        .idempotency()
        .inspect(Scope(scope("ann")).key("k"))
        .await;
    record.unwrap().expect("a record").state
}

async fn lapsed(rowlock: &Rowlock) {
    let lapsed = || async { state(rowlock).await == RecordState::Lapsed };
    eventually("the lease has run out", lapsed).await;
}

async fn done(rowlock: &Rowlock) {
    let done = || async { state(rowlock).await == RecordState::Done };
    eventually("the response is kept", done).await;
}

/// One process cannot reach the database, the other one can.
pub(crate) async fn silence(engine: Engine) {
    for taken_over in [false, true] {
        let db = Db::new(engine).await;
        let (proxy, url) = through_proxy(&db).await;
        let first = Shop::start("first", &url, LEASE).await;
        let second = Shop::start("second", &db.url, LONG_LEASE).await;
        let answer = tokio::spawn(first.pay());
        first.running().await;
        proxy.set(Mode::Silent);
        first.hall.gate.add_permits(1);
        assert_eq!(answer.await.unwrap().status, 503);
        lapsed(&second.rowlock).await;
        let kept = if taken_over {
            let answer = tokio::spawn(second.pay());
            second.running().await;
            // The first one comes back while the second one's handler runs.
            proxy.set(Mode::Pass);
            let back = || async { first.pay().await.status == 409 };
            eventually("the first process sees the database", back).await;
            first.rowlock.flush().await;
            second.hall.gate.add_permits(1);
            assert_eq!(answer.await.unwrap(), Answer::of(false, "second 1"));
            "second 1"
        } else {
            proxy.set(Mode::Pass);
            done(&second.rowlock).await;
            "first 1"
        };
        for shop in [&first, &second, &first] {
            assert_eq!(shop.pay().await, Answer::of(true, kept));
        }
        let runs = (first.runs(), second.runs());
        assert_eq!(runs, (1, u32::from(taken_over)), "taken over: {taken_over}");
        drop((first, second));
        db.remove().await;
    }
}

/// The server is killed while the handler runs, and is started again when the lease has run out.
pub(crate) async fn killed(engine: Engine) {
    let server = Killable::new(engine);
    let url = server.start();
    let shop = Shop::start("only", &url, LEASE).await;
    let answer = tokio::spawn(shop.pay());
    shop.running().await;
    tokio::task::block_in_place(|| server.kill());
    shop.hall.gate.add_permits(1);
    assert_eq!(answer.await.unwrap().status, 503);
    // Nobody can be asked meanwhile: this is how long it is away, not how long something takes.
    tokio::time::sleep(LEASE * 3).await;
    tokio::task::block_in_place(|| server.start());
    let watcher = Rowlock::connect(&url).await.unwrap();
    done(&watcher).await;
    assert_eq!(shop.pay().await, Answer::of(true, "only 1"));
    assert_eq!(shop.runs(), 1);
}
