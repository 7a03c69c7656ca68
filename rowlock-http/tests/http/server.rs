//! A server on a socket, and its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::{self, Next};
use axum::{Router, routing::any};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rowlock::{Engine, Idempotency, Outcome, RecordInfo, Rowlock};
use rowlock_http::{IdempotencyLayer, scope};
use rowlock_test::{App, Db};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::shop::{Shop, handle, text};

/// A test that ends, also when an event that it waits for never comes.
macro_rules! over_a_socket {
    ($($(#[$meta:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            tokio::time::timeout(std::time::Duration::from_mins(2), async $body)
                .await
                .expect("done within two minutes");
        }
    )*};
}
pub(crate) use over_a_socket;

pub(crate) const DOCS: &str = "https://docs.rs/rowlock-http/latest/rowlock_http/index.html";

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) db: Db,
    pub(crate) rowlock: Rowlock,
    pub(crate) shop: Arc<Shop>,
    client: reqwest::Client,
    /// It serves until it is told to stop, or for ever when that is dropped with the test.
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// How connections are served.
#[derive(Clone, Copy)]
pub(crate) enum Hyper {
    AsAxumHasIt,
    /// A client may close its half of the connection, and is waited for.
    HalfClose,
}

/// How a server is run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) hyper: Hyper,
    /// How long it waits for the database.
    pub(crate) timeout: Duration,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            hyper: Hyper::AsAxumHasIt,
            timeout: Duration::from_secs(1),
        }
    }
}

/// What `axum::serve` does, with another setting of hyper's.
async fn half_close(listener: TcpListener, app: Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            server.http1().half_close(true);
            // Clients that are gone are errors.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Server {
    /// With the layer as it is.
    pub(crate) async fn plain() -> Self {
        Self::new(|layer| layer).await
    }

    pub(crate) async fn new(set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        Self::with(|idempotency| idempotency, set).await
    }

    /// All routes are inside the layer. The header `x-user` names the user.
    pub(crate) async fn with(
        records: impl FnOnce(Idempotency) -> Idempotency,
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        let routes = |layer, _| Router::new().route("/{*rest}", any(handle)).layer(layer);
        Self::routed(records, set, routes, Run::default()).await
    }

    /// With routes of its own.
    pub(crate) async fn routed(
        records: impl FnOnce(Idempotency) -> Idempotency,
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
        routes: impl FnOnce(IdempotencyLayer, Arc<Shop>) -> Router<Arc<Shop>>,
        run: Run,
    ) -> Self {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = Rowlock::builder()
            .operation_timeout(run.timeout)
            .connect(&db.url)
            .await
            .unwrap();
        db.execute("CREATE TABLE effect (k TEXT NOT NULL)").await;
        let App::Sqlite(pool) = db.app.clone() else {
            unreachable!("it is SQLite")
        };
        let shop = Arc::new(Shop::new(pool));
        let user = |parts: &axum::http::request::Parts| text(&parts.headers, "x-user");
        let layer = set(IdempotencyLayer::new(records(rowlock.idempotency()), user));
        let watched = Arc::clone(&shop);
        let watch = move |request: Request, next: Next| {
            // Dropped with the answer that nobody waits for any more.
            let watch = watched.watch(request.headers());
            async move {
                let response = next.run(request).await;
                watch.answered();
                response
            }
        };
        let app = routes(layer, Arc::clone(&shop))
            .layer(middleware::from_fn(watch))
            .with_state(Arc::clone(&shop));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = match run.hyper {
            Hyper::AsAxumHasIt => {
                let stopped = async move { drop(stopped.await) };
                let serving = axum::serve(listener, app).with_graceful_shutdown(stopped);
                tokio::spawn(async move { serving.await.unwrap() })
            }
            Hyper::HalfClose => tokio::spawn(half_close(listener, app)),
        };
        let client = reqwest::Client::builder().no_proxy();
        let client = client
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            address,
            db,
            rowlock,
            shop,
            client,
            serving: Some((stop, serving)),
        }
    }

    /// Takes no more connections, and waits for the end of those that there are.
    pub(crate) async fn stop(&mut self) {
        let (stop, serving) = self.serving.take().unwrap();
        stop.send(()).unwrap();
        serving.await.unwrap();
    }

    /// A payment of Ann's, which asks for `act`.
    pub(crate) fn pay(&self, key: &str, act: &str) -> reqwest::RequestBuilder {
        self.keyless(act)
            .header("idempotency-key", format!("\"{key}\""))
    }

    pub(crate) fn keyless(&self, act: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}/pay", self.address);
        let request = self.client.post(url).header("x-user", "ann");
        request.header("x-act", act).body("100")
    }

    /// Nobody's.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse::<reqwest::Method>().unwrap();
        self.client
            .request(method, format!("http://{}{path}", self.address))
    }

    /// How often the effect has happened.
    pub(crate) async fn effects(&self) -> i64 {
        self.db.number("SELECT COUNT(*) FROM effect").await
    }

    /// Ann's record.
    pub(crate) async fn record(&self, key: &str) -> Option<RecordInfo> {
        self.rowlock
            .idempotency()
            .inspect(scope("ann"), key)
            .await
            .unwrap()
    }

    pub(crate) async fn outcome(&self, key: &str) -> Outcome {
        self.record(key).await.unwrap().outcome.unwrap()
    }

    /// The lease of a record ends now, as if its process stood still.
    pub(crate) async fn lapse(&self) {
        let sql = "UPDATE rowlock_idempotency SET lease_until = 0 WHERE state = 'running'";
        assert_eq!(self.db.execute(sql).await, 1);
    }

    /// Nothing can be looked up from here on.
    pub(crate) async fn break_table(&self) {
        self.db
            .execute("ALTER TABLE rowlock_idempotency RENAME TO away")
            .await;
    }

    pub(crate) async fn mend_table(&self) {
        self.db
            .execute("ALTER TABLE away RENAME TO rowlock_idempotency")
            .await;
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) async fn send(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.bytes().await.unwrap(),
    }
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The header, which stands there once, or not at all.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.get_all(name).iter();
        let value = all.next().map(|value| value.to_str().unwrap());
        assert!(all.next().is_none(), "{name} stands there twice");
        value
    }

    pub(crate) fn is_replay(&self) -> bool {
        match self.header("idempotent-replayed") {
            Some("true") => true,
            None => false,
            Some(other) => panic!("{other}"),
        }
    }

    /// From a run of the handler, not a replay.
    #[track_caller]
    pub(crate) fn is_new(&self, status: u16) -> &Self {
        assert_eq!((self.status, self.is_replay()), (status, false), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn is_replay_of(&self, first: &Answer) -> &Self {
        assert_eq!(self.status, first.status, "{self:?}");
        assert_eq!(self.body, first.body, "{self:?}");
        assert!(self.is_replay() && !first.is_replay(), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, anchor: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert!(!self.is_replay());
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["type"], format!("{DOCS}#{anchor}"));
        assert_eq!(problem["status"], status);
        for member in ["title", "detail"] {
            let text = problem[member].as_str().unwrap();
            assert!(!text.is_empty(), "{member}");
        }
        problem
    }

    /// Whole seconds.
    #[track_caller]
    pub(crate) fn retry_after(&self) -> u32 {
        self.header("retry-after").unwrap().parse().unwrap()
    }
}
