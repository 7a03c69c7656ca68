//! Servers of one database, in this process. Each has a client of its own, as a process would.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use rowlock::Rowlock;
use rowlock_test::patience;
use tokio::sync::Notify;
use tower_cookies::CookieManagerLayer;
use tower_service::Service;
use tower_sessions::session::Id;
use tower_sessions::{Session, SessionManagerLayer};
use web_sessions::rotate::{refuse_moved, rotate};
use web_sessions::session_lock::{COOKIE, SessionLock, one_at_a_time};
use web_sessions::store::SqlStore;

/// A handler that is asked to be slow tells that it has the session, and waits.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) entered: Notify,
    pub(crate) go: Notify,
}

impl Gate {
    async fn pass(&self) {
        self.entered.notify_one();
        self.go.notified().await;
    }
}

#[derive(Debug, Clone)]
struct App {
    store: SqlStore,
    gate: Arc<Gate>,
}

#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) rowlock: Rowlock,
    pub(crate) store: SqlStore,
    pub(crate) gate: Arc<Gate>,
    routes: Router,
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pins: bool,
}

type Answer = Result<StatusCode, StatusCode>;

fn failed(_: tower_sessions::session::Error) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

async fn items(session: &Session) -> Result<Vec<String>, StatusCode> {
    Ok(session
        .get("cart")
        .await
        .map_err(failed)?
        .unwrap_or_default())
}

async fn add(State(app): State<App>, session: Session, Path(item): Path<String>) -> Answer {
    let mut cart = items(&session).await?;
    match item.as_str() {
        "slow" => app.gate.pass().await,
        "panic" => panic!("as the test asked"),
        _ => {}
    }
    cart.push(item);
    session.insert("cart", cart).await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn login(State(app): State<App>, session: Session) -> Answer {
    items(&session).await?;
    app.gate.pass().await;
    rotate(&session, &app.store).await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn logout(session: Session) -> Answer {
    session.flush().await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn cart(session: Session) -> Result<Json<Vec<String>>, StatusCode> {
    items(&session).await.map(Json)
}

impl World {
    pub(crate) async fn new(pins: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = Self { dir, pins };
        let store = SqlStore::open(&world.url(), false).await.unwrap();
        store.make_table().await.unwrap();
        world
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.dir.path().join("sessions.db").display())
    }

    pub(crate) async fn server(&self) -> Server {
        self.patient_server(Duration::from_secs(30)).await
    }

    pub(crate) async fn patient_server(&self, wait: Duration) -> Server {
        let rowlock = Rowlock::connect(&self.url()).await.unwrap();
        let lock = SessionLock {
            rowlock: rowlock.clone(),
            ttl: Duration::from_mins(1),
            wait,
        };
        let store = SqlStore::open(&self.url(), self.pins).await.unwrap();
        let gate = Arc::new(Gate::default());
        let sessions = SessionManagerLayer::new(store.clone()).with_name(COOKIE);
        let reading = Router::new().route("/cart", get(cart));
        let unlocked = Router::new().route("/unlocked/{item}", post(add));
        let outside = reading.merge(unlocked).layer(from_fn(refuse_moved));
        let routes = Router::new()
            .route("/add/{item}", post(add))
            .route("/login", post(login))
            .route("/logout", post(logout))
            .layer(from_fn(refuse_moved))
            .layer(sessions.clone())
            .layer(from_fn_with_state(lock, one_at_a_time))
            .merge(outside.layer(sessions))
            .layer(CookieManagerLayer::new())
            .with_state(App {
                store: store.clone(),
                gate: Arc::clone(&gate),
            });
        Server {
            rowlock,
            store,
            gate,
            routes,
        }
    }
}

/// The new cookie in an answer.
pub(crate) fn new_cookie(answer: &Response) -> Option<String> {
    let cookie = answer.headers().get(header::SET_COOKIE)?.to_str().unwrap();
    Some(cookie.split(';').next().unwrap().to_owned())
}

/// The session that a cookie names.
pub(crate) fn id(cookie: &str) -> Id {
    cookie.strip_prefix("id=").unwrap().parse().unwrap()
}

/// A request that was sent.
pub(crate) struct Sent(pub(crate) tokio::task::JoinHandle<Response>);

impl Sent {
    pub(crate) async fn answer(self) -> Response {
        self.0.await.unwrap()
    }
}

impl Server {
    async fn send(&self, method: &str, path: String, cookie: &str) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if !cookie.is_empty() {
            request = request.header(header::COOKIE, cookie);
        }
        let request = request.body(Body::empty()).unwrap();
        let mut routes = self.routes.clone();
        let answer = tokio::time::timeout(patience(), routes.call(request)).await;
        answer.expect("no answer").unwrap()
    }

    pub(crate) async fn post(&self, path: &str, cookie: &str) -> Response {
        self.send("POST", format!("/{path}"), cookie).await
    }

    /// Makes a session with one item, and returns its cookie.
    pub(crate) async fn first(&self) -> String {
        new_cookie(&self.post("add/first", "").await).unwrap()
    }

    /// Sends a request, and does not wait for its answer.
    pub(crate) fn spawn(&self, path: &str, cookie: &str) -> Sent {
        let (server, path, cookie) = (self.clone(), path.to_owned(), cookie.to_owned());
        let sent = async move { server.post(&path, &cookie).await };
        Sent(tokio::spawn(sent))
    }

    /// Sends a request that stops in its handler, and returns when it is there.
    ///
    /// [`Sent::answer`] waits for its answer.
    pub(crate) async fn begin(&self, path: &str, cookie: &str) -> Sent {
        let sent = self.spawn(path, cookie);
        self.gate.entered.notified().await;
        sent
    }

    pub(crate) async fn cart(&self, cookie: &str) -> Vec<String> {
        let answer = self.send("GET", "/cart".to_owned(), cookie).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }
}
