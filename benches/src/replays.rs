//! Many replays at once through the HTTP layer: duplicates of one key beside replays of as many keys, and large
//! replays beside a stranger's claim.
//!
//! The server waits for the disk at each commit. The clients of the large replays, and the stranger, have threads of
//! their own, on the same cores. The results are medians of several rounds.

#[allow(dead_code, reason = "what one benchmark never needs, another one does")]
mod figures;
#[allow(dead_code, reason = "the same")]
mod servers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::Request;
use axum::routing::post;
use clap::Parser;
use figures::{median, table};
use hdrhistogram::Histogram;
use http_body_util::BodyExt;
use rowlock::{Engine, Rowlock};
use rowlock_http::IdempotencyLayer;
use servers::Server;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tower_service::Service;

/// How many bursts of large replays a round has.
const BURSTS: usize = 3;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgres")]
    engines: Vec<Engine>,
    /// The number of rounds. The result is their median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Replays at once.
    #[arg(long, default_value_t = 10_000)]
    replays: usize,
    /// Large replays at once.
    #[arg(long, default_value_t = 256)]
    large: usize,
    /// The bytes of a large response.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
    /// Claims of a stranger, one after the other: at least so many.
    #[arg(long, default_value_t = 40)]
    claims: usize,
}

/// A shop with the layer around it.
#[derive(Clone)]
struct Shop {
    app: Router,
    runs: Arc<AtomicUsize>,
}

impl Shop {
    /// At most `most` requests wait for an attempt.
    async fn open(url: &str, most: usize) -> Result<Self, Failure> {
        let rowlock = Rowlock::connect(url).await?;
        let idempotency = rowlock
            .idempotency()
            .max_outcome(4 << 20)
            .wait(Duration::from_mins(1));
        let layer = IdempotencyLayer::new(idempotency, |_| Some("ann")).max_waiting(most);
        layer.check()?;
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let pay = move |Path(bytes): Path<usize>| {
            count.fetch_add(1, Ordering::SeqCst);
            async move { "x".repeat(bytes) }
        };
        let app = Router::new().route("/{bytes}", post(pay)).layer(layer);
        Ok(Self { app, runs })
    }

    /// Sends a request, and reads its whole response. Returns how long that took.
    async fn send(mut self, bytes: usize, key: String) -> Result<Duration, Failure> {
        let request =
            Request::post(format!("/{bytes}")).header("idempotency-key", format!("\"{key}\""));
        let request = request.body(Body::empty())?;
        let began = Instant::now();
        let response = self.app.call(request).await?;
        assert_eq!(response.status(), 200, "{response:?}");
        let body = response.into_body().collect().await?.to_bytes();
        assert_eq!(body.len(), bytes);
        Ok(began.elapsed())
    }

    /// All at once. Returns the 99th percentile.
    async fn all(&self, keys: impl IntoIterator<Item = String>) -> Result<Duration, Failure> {
        let mut sent = JoinSet::new();
        for key in keys {
            sent.spawn(self.clone().send(100, key));
        }
        let mut times = Histogram::<u64>::new(3)?;
        for time in sent.join_all().await {
            times.record(u64::try_from(time?.as_micros())?)?;
        }
        Ok(Duration::from_micros(times.value_at_quantile(0.99)))
    }
}

/// The 99th percentile of as many replays, of keys of their own and of one key, whose effect is among them.
async fn duplicates(
    shop: &Shop,
    arguments: &Arguments,
    round: usize,
) -> Result<[Duration; 2], Failure> {
    let keys = || (0..arguments.replays).map(|n| format!("{round}-{n}"));
    shop.all(keys()).await?;
    let different = shop.all(keys()).await?;
    let before = shop.runs.load(Ordering::SeqCst);
    let hot = format!("hot-{round}");
    let same = shop
        .all((0..arguments.replays).map(|_| hot.clone()))
        .await?;
    assert_eq!(shop.runs.load(Ordering::SeqCst), before + 1, "one effect");
    Ok([different, same])
}

/// Posts to the shop over a socket, and reads the whole response.
async fn post_over(
    client: reqwest::Client,
    at: SocketAddr,
    bytes: usize,
    key: String,
) -> Result<Duration, Failure> {
    let request = client.post(format!("http://{at}/{bytes}"));
    let began = Instant::now();
    let response = request
        .header("idempotency-key", format!("\"{key}\""))
        .send()
        .await?;
    let body = response.error_for_status()?.bytes().await?;
    assert_eq!(body.len(), bytes);
    Ok(began.elapsed())
}

/// Runs a client on a thread of its own, as another process would.
async fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let run = || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(work)
    };
    tokio::task::spawn_blocking(run).await?
}

/// What the stranger and the large replays know of each other.
#[derive(Default)]
struct Beside {
    bursts: AtomicUsize,
    has_claims: AtomicBool,
}

/// So many replays at once, and again when all are done, until there were enough bursts and claims.
async fn bursts(
    at: SocketAddr,
    bytes: usize,
    key: String,
    at_once: usize,
    beside: Arc<Beside>,
) -> Result<(), Failure> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    while at_once > 0
        && (beside.bursts.load(Ordering::SeqCst) < BURSTS
            || !beside.has_claims.load(Ordering::SeqCst))
    {
        let post = |_| post_over(client.clone(), at, bytes, key.clone());
        let burst: JoinSet<_> = (0..at_once).map(post).collect();
        for done in burst.join_all().await {
            done?;
        }
        beside.bursts.fetch_add(1, Ordering::SeqCst);
    }
    beside.bursts.fetch_max(BURSTS, Ordering::SeqCst);
    Ok(())
}

/// A stranger's claims, one after the other: at least so many, and until there were enough bursts.
async fn claims(
    at: SocketAddr,
    at_least: usize,
    key: String,
    beside: Arc<Beside>,
) -> Result<Vec<Duration>, Failure> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    post_over(client.clone(), at, 10, format!("{key}-first")).await?;
    let mut times = Vec::new();
    while times.len() < at_least || beside.bursts.load(Ordering::SeqCst) < BURSTS {
        let claim = times.len();
        times.push(post_over(client.clone(), at, 10, format!("{key}-{claim}")).await?);
    }
    beside.has_claims.store(true, Ordering::SeqCst);
    times.sort_unstable();
    Ok(times)
}

/// A stranger's claims, alone and beside bursts of large replays: the median, and the longest.
async fn strangers(
    shop: &Shop,
    arguments: &Arguments,
    round: usize,
) -> Result<[[Duration; 2]; 2], Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let app = shop.app.clone();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let large = format!("large-{round}");
    let client = reqwest::Client::builder().no_proxy().build()?;
    post_over(client, at, arguments.bytes, large.clone()).await?;
    let mut found = Vec::new();
    for at_once in [0, arguments.large] {
        let beside = Arc::new(Beside::default());
        let key = format!("stranger-{round}-{at_once}");
        let stranger = claims(at, arguments.claims, key, Arc::clone(&beside));
        let bursts = bursts(at, arguments.bytes, large.clone(), at_once, beside);
        let (times, ()) = tokio::try_join!(apart(stranger), apart(bursts))?;
        found.push([times[times.len() / 2], times[times.len() - 1]]);
    }
    serving.abort();
    Ok([found[0], found[1]])
}

fn millis(times: &[Duration]) -> f64 {
    median(times.iter().map(|time| time.as_secs_f64() * 1e3).collect())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut replays = table(&[
        "p99 of replays at once, ms",
        "of keys of their own",
        "of one key, and its effect",
        "ratio",
    ]);
    let mut claims = table(&[
        "a stranger's claim, ms",
        "alone",
        "beside large replays",
        "longest alone",
        "longest beside",
    ]);
    for engine in &arguments.engines {
        let server = Server::start(*engine)?;
        let shop = Shop::open(&server.url, arguments.replays).await?;
        let (mut all, mut strange) = (Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            all.push(duplicates(&shop, &arguments, round).await?);
            strange.push(strangers(&shop, &arguments, round).await?);
        }
        let of = |n: usize| millis(&all.iter().map(|it| it[n]).collect::<Vec<_>>());
        let ratio = median(
            all.iter()
                .map(|[different, same]| same.as_secs_f64() / different.as_secs_f64())
                .collect(),
        );
        replays.add_row([
            engine.to_string(),
            format!("{:.1}", of(0)),
            format!("{:.1}", of(1)),
            format!("{ratio:.2}"),
        ]);
        let of = |beside: usize, which: usize| {
            millis(
                &strange
                    .iter()
                    .map(|it| it[beside][which])
                    .collect::<Vec<_>>(),
            )
        };
        let cells = [of(0, 0), of(1, 0), of(0, 1), of(1, 1)].map(|cell| format!("{cell:.1}"));
        claims.add_row([vec![engine.to_string()], cells.to_vec()].concat());
    }
    println!("{replays}\n\n{claims}");
    Ok(())
}
