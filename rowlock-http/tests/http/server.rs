//! A server on a socket, and its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use rowlock::{Engine, Idempotency, Outcome, RecordInfo, Rowlock, Scope};
use rowlock_http::{IdempotencyLayer, scope};
use rowlock_test::{App, Db};
use serde_json::Value;

use crate::framework::{self, Serving};
use crate::shop::{Shop, text};

/// A test that ends, also when an event that it waits for never comes.
macro_rules! over_a_socket {
    ($($(#[$meta:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            tokio::time::timeout(rowlock_test::patience(), async $body)
                .await
                .expect("done within the patience of a test");
        }
    )*};
}
pub(crate) use over_a_socket;

/// The longest time of an operation. On a busy machine a hundred claims may take seconds.
pub(crate) const OPERATION: Duration = Duration::from_secs(10);

pub(crate) const DOCS: &str = "https://docs.rs/rowlock-http/latest/rowlock_http/index.html";

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) db: Db,
    pub(crate) rowlock: Rowlock,
    pub(crate) shop: Arc<Shop>,
    client: reqwest::Client,
    serving: Option<Serving>,
}

/// What a server is made of.
pub(crate) struct Place {
    db: Db,
    pub(crate) rowlock: Rowlock,
    pub(crate) shop: Arc<Shop>,
    pub(crate) layer: IdempotencyLayer,
}

impl Place {
    pub(crate) async fn new(
        records: impl FnOnce(Idempotency) -> Idempotency,
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
        timeout: Duration,
    ) -> Self {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = Rowlock::builder()
            .operation_timeout(timeout)
            .connect(&db.url)
            .await
            .unwrap();
        db.execute("CREATE TABLE effect (k TEXT NOT NULL)").await;
        let App::Sqlite(pool) = db.app.clone() else {
            unreachable!("it is SQLite")
        };
        let shop = Arc::new(Shop::new(pool));
        let user = |parts: &axum::http::request::Parts| {
            let user = text(&parts.headers, "x-user");
            assert_ne!(user.as_deref(), Some("panic"), "as was asked");
            user
        };
        let layer = set(IdempotencyLayer::new(records(rowlock.idempotency()), user));
        Self {
            db,
            rowlock,
            shop,
            layer,
        }
    }

    pub(crate) fn at(self, serving: Serving) -> Server {
        let client = reqwest::Client::builder().no_proxy();
        let client = client
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Server {
            address: serving.address,
            db: self.db,
            rowlock: self.rowlock,
            shop: self.shop,
            client,
            serving: Some(serving),
        }
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

    /// A server, and a layer that shares its requests: as it was before these settings.
    pub(crate) async fn and_layer(
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> (Self, IdempotencyLayer) {
        let mut kept = None;
        let server = Self::new(|layer| set(kept.insert(layer).clone())).await;
        (server, kept.expect("its settings were asked for"))
    }

    /// All routes are inside the layer. The header `x-user` names the user.
    pub(crate) async fn with(
        records: impl FnOnce(Idempotency) -> Idempotency,
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        let place = Place::new(records, set, OPERATION).await;
        let serving = framework::serve(place.layer.clone(), &place.shop).await;
        place.at(serving)
    }

    /// Takes no more connections, and waits for the end of those that there are.
    pub(crate) async fn stop(&mut self) {
        self.serving.take().unwrap().stop().await;
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

    /// A request of Ann's with this key, or without one. It has no body.
    pub(crate) async fn ask(&self, path: &str, key: &str) -> Answer {
        let request = self.request("POST", path).header("x-user", "ann");
        let request = match key {
            "" => request,
            key => request.header("idempotency-key", format!("\"{key}\"")),
        };
        send(request).await
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
            .inspect(Scope(scope("ann")).key(key))
            .await
            .unwrap()
    }

    pub(crate) async fn outcome(&self, key: &str) -> Outcome {
        self.record(key).await.unwrap().outcome.unwrap()
    }

    /// The lease of a record ends now, as if its process stood still.
    pub(crate) async fn lapse(&self) {
        let sql =
            "UPDATE rowlock_idempotency SET lease_until = attempted_at WHERE state = 'running'";
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
