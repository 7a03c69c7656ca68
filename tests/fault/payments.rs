//! The shop of the example: 4 processes, one of them killed with SIGKILL every 200 ms and started again, and clients that
//! pay each order under two keys, send each key 10 times at once, and go on until they have an answer.
//!
//! For each order there is one payment and one captured charge at the provider, whatever its keys asked for, and all clients
//! of a key got the same bytes. `ROWLOCK_FAULT_KEYS` (default 20) is how many orders.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use axum::routing::post;
use nix::sys::signal::Signal;
use rand::Rng;
use rowlock::Engine;
use rowlock_http::IdempotencyLayer;
use rowlock_test::Db;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::role::{Part, Process, Role, tell};
use payments::database::Payment;
use payments::gateway::{self, Entry};
use payments::limits::{self, Limits};
use payments::server;

const SHOPS: usize = 4;
/// Keys under which each order is paid.
const KEYS: usize = 2;
/// Clients of each key.
const SUBMITS: usize = 10;
/// Orders that are being paid at a time.
const AT_A_TIME: usize = 8;
/// A client that has no answer for so long will never get one.
const PATIENCE: Duration = Duration::from_mins(1);
const LEASE: Duration = Duration::from_secs(1);
const STRIKE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1_500);

fn orders() -> usize {
    std::env::var("ROWLOCK_FAULT_KEYS").map_or(20, |text| text.parse().expect("a number"))
}

/// The provider declines amounts that end in 13.
const DECLINED: usize = 13;

/// What a key asks for: of every ten orders, one is declined under both keys, one under the first only, and one is paid
/// with two amounts.
fn cents(order: usize, key: usize) -> usize {
    let whole = 1_000 + order * 100;
    match (order % 10, key) {
        (3, _) | (5, 0) => whole + DECLINED,
        (7, key) => whole + key,
        _ => whole,
    }
}

/// The provider: its file is the URL of its role.
pub(crate) async fn gateway(role: &Role) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = gateway::router(role.url.clone().into()).await.unwrap();
    tell(listener.local_addr().unwrap().port());
    gateway::serve(listener, provider).await.unwrap();
}

/// One of the shop's processes.
pub(crate) async fn shop(role: &Role, gateway: u16) {
    let settings = server::Settings {
        url: role.url.clone(),
        gateway: format!("http://127.0.0.1:{gateway}"),
        lease: role.ttl,
        // Nobody gives up, however often a key's processes are killed.
        max_attempts: 1_000,
        connections: 8,
        // Long enough to be killed in.
        gateway_delay_ms: 50,
    };
    let app = server::router(&settings).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    limits::serve(
        listener,
        app.router,
        app.payments,
        Limits::default(),
        pending(),
    )
    .await;
}

/// A process that dies as soon as it has claimed a key: it tells so, and then only waits for its end.
pub(crate) async fn claim(role: &Role) {
    let rowlock = role.connect().await;
    let once = IdempotencyLayer::new(rowlock.idempotency().lease(role.ttl), |parts: &Parts| {
        server::principal(&parts.headers)
    });
    let claimed = post(|| async {
        tell("claimed");
        pending::<()>().await;
    });
    let app = Router::new().route("/payments", claimed.layer(once));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    axum::serve(listener, app).await.unwrap();
}

async fn start(role: Role) -> (Process, u16) {
    let start = move || {
        let mut process = Process::start(&role);
        let port = process.listen().parse().unwrap();
        (process, port)
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// What a client was told at last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Answer {
    status: u16,
    content_type: String,
    body: Vec<u8>,
}

impl Answer {
    async fn of(response: reqwest::Response) -> reqwest::Result<Self> {
        let content_type = response.headers().get("content-type");
        Ok(Self {
            status: response.status().as_u16(),
            content_type: content_type
                .map_or_else(String::new, |text| text.to_str().unwrap().into()),
            body: response.bytes().await?.to_vec(),
        })
    }

    /// Nothing is left to be done. (409 with a payment: the order is paid. With a problem: the key is in flight.)
    fn is_final(&self) -> bool {
        match self.status {
            201 | 402 => true,
            409 => self.content_type == "application/json",
            _ => false,
        }
    }
}

/// Sends a payment once.
async fn send(
    client: &reqwest::Client,
    port: u16,
    key: &str,
    order: &str,
    cents: usize,
) -> reqwest::Result<reqwest::Response> {
    let body = format!(r#"{{"order_id":"{order}","amount_cents":{cents},"currency":"EUR"}}"#);
    client
        .post(format!("http://127.0.0.1:{port}/payments"))
        .bearer_auth("alice")
        .header("Idempotency-Key", format!("\"{key}\""))
        .header("Content-Type", "application/json")
        .body(body)
        .send()
        .await
}

/// As a client would: a little later.
async fn pause() {
    let pause = rand::rng().random_range(5..=100);
    tokio::time::sleep(Duration::from_millis(pause)).await;
}

#[derive(Debug)]
struct Town {
    client: reqwest::Client,
    shops: [AtomicU16; SHOPS],
    sent: AtomicU64,
    replayed: AtomicU64,
}

impl Town {
    /// Sends a payment until there is an answer.
    async fn pay(&self, order: usize, key: usize) -> Answer {
        let cents = cents(order, key);
        let (name, key) = (
            format!("order {order}"),
            format!("order {order}, key {key}"),
        );
        let until = Instant::now() + PATIENCE;
        loop {
            let shop = rand::rng().random_range(0..SHOPS);
            let port = self.shops[shop].load(Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
            if let Ok(response) = send(&self.client, port, &key, &name, cents).await {
                let replayed = response.headers().contains_key("idempotent-replayed");
                if let Ok(answer) = Answer::of(response).await {
                    if answer.is_final() {
                        let replays = u64::from(replayed);
                        self.replayed.fetch_add(replays, Ordering::Relaxed);
                        return answer;
                    }
                    assert!(matches!(answer.status, 409 | 500 | 503), "{answer:?}");
                    assert!(Instant::now() < until, "{key}: {answer:?}");
                }
            }
            pause().await;
        }
    }
}

/// Kills one of the shops every so often, and starts it again. Now and then another one is stopped for longer than its lease.
async fn strike(
    mut shops: Vec<Process>,
    shop: Role,
    town: Arc<Town>,
    over: Arc<AtomicBool>,
) -> (u32, u32, Vec<Process>) {
    let (mut kills, mut pauses) = (0, 0);
    let mut strikes = tokio::time::interval(STRIKE);
    let mut stopped = 0;
    // Goes on by itself: a process that is stopped with a lock keeps others from starting.
    let mut pause = tokio::spawn(async {});
    while !over.load(Ordering::Relaxed) {
        strikes.tick().await;
        if pause.is_finished() {
            stopped = rand::rng().random_range(0..SHOPS);
            pause = tokio::spawn(shops[stopped].pause(PAUSE));
            pauses += 1;
        }
        let others = rand::rng().random_range(1..SHOPS);
        let at = (stopped + others) % SHOPS;
        shops[at].kill();
        kills += 1;
        let (process, port) = start(shop.clone()).await;
        town.shops[at].store(port, Ordering::Relaxed);
        shops[at] = process;
    }
    pause.await.unwrap();
    (kills, pauses, shops)
}

/// What the clients of each key of each order were told.
type Told = HashMap<(usize, usize), HashSet<Answer>>;

/// Pays every order under all of its keys, many times at once, and gathers what the clients were told.
async fn submit_all(town: &Arc<Town>) -> Told {
    let answers: Arc<Mutex<Told>> = Arc::default();
    let next = Arc::new(AtomicUsize::new(0));
    let mut lines = JoinSet::new();
    for _ in 0..AT_A_TIME {
        let (town, next, answers) = (Arc::clone(town), Arc::clone(&next), Arc::clone(&answers));
        lines.spawn(async move {
            loop {
                let order = next.fetch_add(1, Ordering::Relaxed);
                if order >= orders() {
                    return;
                }
                let mut submits = JoinSet::new();
                for submit in 0..KEYS * SUBMITS {
                    let (town, key) = (Arc::clone(&town), submit % KEYS);
                    submits.spawn(async move { (key, town.pay(order, key).await) });
                }
                for (key, told) in submits.join_all().await {
                    let mut answers = answers.lock().unwrap();
                    answers.entry((order, key)).or_default().insert(told);
                }
            }
        });
    }
    while let Some(line) = lines.join_next().await {
        line.unwrap();
    }
    Arc::into_inner(answers).unwrap().into_inner().unwrap()
}

/// One charge and one payment for each order that can be paid, of the same amount, and no other.
fn judge(told: &Told, charges: &[Entry], payments: &[Payment]) {
    assert_eq!(told.len(), orders() * KEYS);
    for (of, answers) in told {
        assert_eq!(
            answers.len(),
            1,
            "{of:?}: its clients were told {answers:?}"
        );
    }
    let keys: HashSet<_> = charges.iter().map(|charge| &charge.key).collect();
    assert_eq!(keys.len(), charges.len(), "the provider's keys");
    let mut sums = (0, 0);
    for order in 0..orders() {
        let name = format!("order {order}");
        let of_order = charges.iter().filter(|charge| charge.reference == name);
        let (captured, declined): (Vec<_>, Vec<_>) =
            of_order.partition(|charge| charge.status == "captured");
        let payments: Vec<_> = payments
            .iter()
            .filter(|payment| payment.order_id == name)
            .collect();
        let payable = (0..KEYS).filter(|key| cents(order, *key) % 100 != DECLINED);
        let payable = payable.count();
        assert_eq!(
            captured.len(),
            payable.min(1),
            "{name}: charges {captured:?}"
        );
        assert_eq!(
            payments.len(),
            payable.min(1),
            "{name}: payments {payments:?}"
        );
        assert!(declined.len() <= KEYS - payable, "{name}: {declined:?}");
        for key in 0..KEYS {
            let answer = told[&(order, key)].iter().next().unwrap();
            let declines = cents(order, key) % 100 == DECLINED;
            match answer.status {
                402 => assert!(declines, "{name}, key {key}"),
                status => {
                    // An order that was paid is not charged again, also where the charge would be declined.
                    assert!(!declines || status == 409, "{name}, key {key}: {status}");
                    let paid: Payment = serde_json::from_slice(&answer.body).unwrap();
                    assert_eq!(&paid, payments[0], "{name}, key {key}");
                    assert_eq!(paid.amount_cents, captured[0].amount_cents, "{name}");
                }
            }
        }
        let created = (0..KEYS).filter(|key| {
            let answer = told[&(order, *key)].iter().next().unwrap();
            answer.status == 201
        });
        assert_eq!(created.count(), payable.min(1), "{name}: {told:?}");
        sums = (sums.0 + captured.len(), sums.1 + declined.len());
    }
    assert_eq!(sums.0 + sums.1, charges.len(), "charges of no order");
    assert_eq!(sums.0, payments.len(), "payments of no order");
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let books = tempfile::tempdir().unwrap();
    let role = |part, url: String| Role {
        part,
        url,
        ttl: LEASE,
    };
    let file = books.path().join("gateway.db").display().to_string();
    let (_provider, gateway) = start(role(Part::Gateway, file)).await;
    let shop = role(Part::Shop { gateway }, db.url.clone());
    let mut shops = Vec::new();
    let town = Arc::new(Town {
        client: reqwest::Client::builder()
            .timeout(Duration::from_secs(20))
            .build()
            .unwrap(),
        shops: Default::default(),
        sent: AtomicU64::new(0),
        replayed: AtomicU64::new(0),
    });
    for at in 0..SHOPS {
        let (process, port) = start(shop.clone()).await;
        town.shops[at].store(port, Ordering::Relaxed);
        shops.push(process);
    }

    let over = Arc::new(AtomicBool::new(false));
    let strikes = tokio::spawn(strike(shops, shop, Arc::clone(&town), Arc::clone(&over)));
    let answers = submit_all(&town).await;
    over.store(true, Ordering::Relaxed);
    let (kills, pauses, _shops) = strikes.await.unwrap();

    let books = format!("http://127.0.0.1:{gateway}/charges");
    let charges = town.client.get(books).send().await.unwrap();
    let charges: Vec<Entry> = charges.json().await.unwrap();
    let payments = format!(
        "http://127.0.0.1:{}/payments",
        town.shops[0].load(Ordering::Relaxed)
    );
    let payments = town.client.get(payments).bearer_auth("alice");
    let payments: Vec<Payment> = payments.send().await.unwrap().json().await.unwrap();
    judge(&answers, &charges, &payments);
    println!(
        "payments {engine}: {} orders under {KEYS} keys each, {} submits, {} requests, {} replays, {kills} kills, {pauses} pauses; \
         {} charges, {} payments",
        orders(),
        orders() * KEYS * SUBMITS,
        town.sent.load(Ordering::Relaxed),
        town.replayed.load(Ordering::Relaxed),
        charges.len(),
        payments.len(),
    );
    assert!(kills > 0, "nobody was killed");
    db.remove().await;
}

/// A provider that charges, and keeps its answers back until it may go on.
#[derive(Debug)]
struct Gate {
    gateway: u16,
    client: reqwest::Client,
    charged: Semaphore,
    answers: Semaphore,
}

impl Gate {
    /// Serves in the background, on the port that it returns.
    async fn start(gateway: u16) -> (Arc<Self>, u16) {
        let gate = Arc::new(Self {
            gateway,
            client: reqwest::Client::new(),
            charged: Semaphore::new(0),
            answers: Semaphore::new(0),
        });
        let app = Router::new().route("/charges", post(Self::charge));
        let app = app.with_state(Arc::clone(&gate));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (gate, port)
    }

    async fn charge(
        State(gate): State<Arc<Self>>,
        headers: HeaderMap,
        body: Bytes,
    ) -> impl IntoResponse {
        let charge = gate
            .client
            .post(format!("http://127.0.0.1:{}/charges", gate.gateway))
            .header("Idempotency-Key", &headers["idempotency-key"])
            .header("Content-Type", "application/json")
            .body(body);
        let answer = Answer::of(charge.send().await.unwrap()).await.unwrap();
        gate.charged.add_permits(1);
        gate.answers.acquire().await.unwrap().forget();
        let status = axum::http::StatusCode::from_u16(answer.status).unwrap();
        (status, [("content-type", answer.content_type)], answer.body)
    }
}

/// An attempt is stopped in the middle of its charge and taken over by a process that dies right after its claim. It wakes,
/// and learns that it is superseded; then another key comes for the same order.
pub(crate) async fn superseded(engine: Engine) {
    let db = Db::new(engine).await;
    let books = tempfile::tempdir().unwrap();
    let role = |part, url: &str| Role {
        part,
        url: url.into(),
        ttl: LEASE,
    };
    let file = books.path().join("gateway.db").display().to_string();
    let (_provider, books) = start(role(Part::Gateway, &file)).await;
    let (gate, gateway) = Gate::start(books).await;
    let (stopped, its_port) = start(role(Part::Shop { gateway }, &db.url)).await;
    let (mut dies, dying_port) = start(role(Part::Claim, &db.url)).await;
    let client = reqwest::Client::new();

    let first = {
        let client = client.clone();
        tokio::spawn(async move { send(&client, its_port, "first", "order", 500).await })
    };
    gate.charged.acquire().await.unwrap().forget();
    stopped.signal(Signal::SIGSTOP);
    let insist = {
        let client = client.clone();
        tokio::spawn(async move {
            while let Ok(response) = send(&client, dying_port, "first", "order", 500).await {
                assert_eq!(response.status(), 409, "in flight, until its lease is over");
                pause().await;
            }
        })
    };
    let dead = tokio::task::spawn_blocking(move || {
        assert_eq!(dies.listen(), "claimed");
        dies.kill();
    });
    dead.await.unwrap();
    insist.await.unwrap();
    gate.answers.add_permits(100);
    stopped.signal(Signal::SIGCONT);
    assert_eq!(first.await.unwrap().unwrap().status(), 503, "superseded");

    let mut told = Vec::new();
    for key in ["second", "first"] {
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            let sent = send(&client, its_port, key, "order", 500).await.unwrap();
            let answer = Answer::of(sent).await.unwrap();
            if answer.is_final() {
                break answer;
            }
            assert!(Instant::now() < until, "{key}: {answer:?}");
            pause().await;
        };
        told.push((answer.status, answer.body));
    }
    let charges = client.get(format!("http://127.0.0.1:{books}/charges"));
    let charges: Vec<Entry> = charges.send().await.unwrap().json().await.unwrap();
    assert_eq!(charges.len(), 1, "{charges:?}");
    assert_eq!(told[0].1, told[1].1, "the same payment");
    assert_eq!((told[0].0, told[1].0), (409, 201), "it is the first key's");
    db.remove().await;
}
