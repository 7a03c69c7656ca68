//! A server of the shop: its routes, and one process that serves them.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rowlock::Rowlock;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpListener;
use tower_cookies::CookieManagerLayer;
use tower_sessions::SessionManagerLayer;
use tower_sessions::session::{self, Session};
use web_sessions::rotate::{refuse_moved, rotate};
use web_sessions::session_lock::{COOKIE, SessionLock, one_at_a_time};
use web_sessions::store::SqlStore;

use crate::Failure;
use crate::arguments::{Arguments, Mode};
use crate::meeting::meet;

/// The session's entry with the items of the cart.
const CART: &str = "cart";

/// How long the last statements to the database may take.
const LAST_STATEMENTS: Duration = Duration::from_secs(5);

/// What a serving process prints in the middle of the request at which it stops.
pub(crate) const IN_THE_MIDDLE: &str = "in the middle";

#[derive(Debug, Clone)]
struct Shop {
    store: SqlStore,
    think: Duration,
    /// The requests until this server stops in the middle of one; 0: it does not.
    until_stop: Arc<AtomicU32>,
}

type Answer<T> = Result<T, Failed>;

/// The session could not be loaded or changed.
struct Failed;

impl From<session::Error> for Failed {
    fn from(error: session::Error) -> Self {
        tracing::error!(%error, "a request failed");
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

async fn items(session: &Session) -> Answer<Vec<String>> {
    Ok(session.get(CART).await?.unwrap_or_default())
}

/// The first page, which makes the session.
async fn start(session: Session) -> Answer<StatusCode> {
    let cart = items(&session).await?;
    session.insert(CART, cart).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn cart(session: Session) -> Answer<Json<Vec<String>>> {
    items(&session).await.map(Json)
}

/// Changes the session as handlers do: reads a value, works for a while, writes the value.
async fn add(
    State(shop): State<Shop>,
    session: Session,
    Path(item): Path<String>,
) -> Answer<StatusCode> {
    let mut cart = items(&session).await?;
    tokio::time::sleep(shop.think).await;
    if shop.until_stop.load(Ordering::Relaxed) > 0
        && shop.until_stop.fetch_sub(1, Ordering::Relaxed) == 1
    {
        println!("{IN_THE_MIDDLE}");
        std::future::pending::<()>().await;
    }
    cart.push(item);
    session.insert(CART, cart).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn login(State(shop): State<Shop>, session: Session) -> Answer<StatusCode> {
    rotate(&session, &shop.store).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The routes. `lock` is the guard, `meeting` the place where requests meet.
fn router(shop: Shop, lock: Option<SessionLock>, meeting: Option<SocketAddr>) -> Router {
    let sessions = SessionManagerLayer::new(shop.store.clone()).with_name(COOKIE);
    let sessions = sessions.with_secure(false); // the example speaks HTTP
    let mut changing = Router::new()
        .route("/", get(start))
        .route("/cart/{item}", post(add))
        .route("/login", post(login));
    // Without a lock the requests meet after the load, and with a lock before they ask for it.
    if let (None, Some(host)) = (&lock, meeting) {
        changing = changing.layer(from_fn_with_state(host, meet));
    }
    changing = changing
        .layer(from_fn(refuse_moved))
        .layer(sessions.clone());
    if let Some(lock) = lock {
        changing = changing.layer(from_fn_with_state(lock, one_at_a_time));
        if let Some(host) = meeting {
            changing = changing.layer(from_fn_with_state(host, meet));
        }
    }
    // It only reads the session, so it need not wait for a lock.
    let reading = Router::new().route("/cart", get(cart));
    let reading = reading.layer(from_fn(refuse_moved)).layer(sessions);
    let routes = changing.merge(reading).layer(CookieManagerLayer::new());
    routes.with_state(shop)
}

/// Serves until the input ends. The first line of the input is the URL.
pub(crate) async fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let mode = *arguments.modes.first().ok_or("no mode")?;
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let url = lines.next_line().await?.ok_or("no URL")?;
    // Its waiters are in its session: when it crashes, they hold up the queue no longer than its leases do.
    let rowlock = Rowlock::builder().session_ttl(arguments.ttl());
    let rowlock = rowlock.connect(&url).await?;
    let shop = Shop {
        store: SqlStore::open(&url, mode == Mode::Pinned).await?,
        think: arguments.think(),
        until_stop: Arc::new(AtomicU32::new(arguments.process.stop_at.unwrap_or(0))),
    };
    let lock = mode.is_guarded().then(|| SessionLock {
        rowlock: rowlock.clone(),
        ttl: arguments.ttl(),
        wait: arguments.wait(),
    });
    let routes = router(shop, lock, arguments.process.meet_at);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let told = async move { while let Ok(Some(_)) = lines.next_line().await {} };
    axum::serve(listener, routes)
        .with_graceful_shutdown(told)
        .await?;
    for unfinished in rowlock.shutdown(LAST_STATEMENTS).await {
        eprintln!("web_sessions: not finished: {unfinished}");
    }
    Ok(())
}
