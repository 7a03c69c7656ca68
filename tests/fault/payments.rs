//! The shop of the example: 4 processes, one of them killed with SIGKILL every 200 ms and started again, and clients that
//! send each payment 20 times at once and go on until they have an answer.
//!
//! For each key there is one payment and one charge at the provider, and all of its clients got the same bytes.
//! `ROWLOCK_FAULT_KEYS` (default 20) is how many keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rand::Rng;
use rowlock::Engine;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::common::Db;
use crate::role::{Part, Process, Role, tell};
use crate::service::gateway::{self, Entry};
use crate::service::server;

const SHOPS: usize = 4;
const SUBMITS: usize = 20;
/// Keys that are being submitted at a time.
const AT_A_TIME: usize = 8;
/// Of every so many payments one is declined.
const DECLINED: usize = 10;
const LEASE: Duration = Duration::from_secs(1);
const STRIKE: Duration = Duration::from_millis(200);

fn keys() -> usize {
    std::env::var("ROWLOCK_FAULT_KEYS").map_or(20, |text| text.parse().expect("a number"))
}

/// The provider: its file is the URL of its role.
pub(crate) async fn gateway(role: &Role) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    gateway::serve(listener, role.url.clone().into())
        .await
        .unwrap();
}

/// One of the shop's processes.
pub(crate) async fn shop(role: &Role, gateway: u16) {
    let settings = server::Settings {
        url: role.url.clone(),
        gateway: format!("http://127.0.0.1:{gateway}"),
        lease: role.ttl,
        connections: 8,
        // Long enough to be killed in.
        gateway_delay_ms: 50,
    };
    let app = server::router(&settings).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    axum::serve(listener, app.router).await.unwrap();
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

#[derive(Debug)]
struct Town {
    client: reqwest::Client,
    shops: [AtomicU16; SHOPS],
    sent: AtomicU64,
    replayed: AtomicU64,
}

impl Town {
    /// Sends a payment until there is an answer.
    async fn pay(&self, key: usize) -> Answer {
        let cents = if key % DECLINED == 3 {
            1_013
        } else {
            1_000 + key * 100
        };
        let body =
            format!(r#"{{"order_id":"order {key}","amount_cents":{cents},"currency":"EUR"}}"#);
        loop {
            let shop = rand::rng().random_range(0..SHOPS);
            let port = self.shops[shop].load(Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
            let sent = self
                .client
                .post(format!("http://127.0.0.1:{port}/payments"))
                .bearer_auth("alice")
                .header("Idempotency-Key", format!("\"key {key}\""))
                .header("Content-Type", "application/json")
                .body(body.clone())
                .send()
                .await;
            if let Ok(response) = sent {
                let status = response.status().as_u16();
                let header = |name| {
                    let value = response.headers().get(name)?;
                    Some(value.to_str().unwrap().to_owned())
                };
                let content_type = header("content-type").unwrap_or_default();
                let replayed = header("idempotent-replayed").is_some();
                if let (201 | 402, Ok(body)) = (status, response.bytes().await) {
                    self.replayed
                        .fetch_add(u64::from(replayed), Ordering::Relaxed);
                    return Answer {
                        status,
                        content_type,
                        body: body.to_vec(),
                    };
                }
                assert!(matches!(status, 201 | 402 | 409 | 500 | 503), "{status}");
            }
            // As a client would: a little later.
            let pause = rand::rng().random_range(5..=100);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }
}

/// Kills one of the shops every so often, and starts it again.
async fn strike(
    mut shops: Vec<Process>,
    shop: Role,
    town: Arc<Town>,
    over: Arc<AtomicBool>,
) -> u32 {
    let mut kills = 0;
    let mut strikes = tokio::time::interval(STRIKE);
    while !over.load(Ordering::Relaxed) {
        strikes.tick().await;
        let at = rand::rng().random_range(0..SHOPS);
        shops[at].kill();
        kills += 1;
        let (process, port) = start(shop.clone()).await;
        town.shops[at].store(port, Ordering::Relaxed);
        shops[at] = process;
    }
    kills
}

/// Submits every key many times at once, and gathers what its clients were told.
async fn submit_all(town: &Arc<Town>) -> HashMap<usize, HashSet<Answer>> {
    let answers: Arc<Mutex<HashMap<usize, HashSet<Answer>>>> = Arc::default();
    let next = Arc::new(AtomicUsize::new(0));
    let mut lines = JoinSet::new();
    for _ in 0..AT_A_TIME {
        let (town, next, answers) = (Arc::clone(town), Arc::clone(&next), Arc::clone(&answers));
        lines.spawn(async move {
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key >= keys() {
                    return;
                }
                let mut submits = JoinSet::new();
                for _ in 0..SUBMITS {
                    let town = Arc::clone(&town);
                    submits.spawn(async move { town.pay(key).await });
                }
                let told = submits.join_all().await;
                assert_eq!(told.len(), SUBMITS);
                answers.lock().unwrap().entry(key).or_default().extend(told);
            }
        });
    }
    while let Some(line) = lines.join_next().await {
        line.unwrap();
    }
    Arc::into_inner(answers).unwrap().into_inner().unwrap()
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
    let kills = tokio::spawn(strike(shops, shop, Arc::clone(&town), Arc::clone(&over)));
    let answers = submit_all(&town).await;
    over.store(true, Ordering::Relaxed);
    let kills = kills.await.unwrap();

    assert_eq!(answers.len(), keys());
    for (key, told) in &answers {
        assert_eq!(told.len(), 1, "key {key}: its clients were told {told:?}");
        let status = told.iter().next().unwrap().status;
        assert_eq!(
            status,
            if key % DECLINED == 3 { 402 } else { 201 },
            "key {key}"
        );
    }
    let declined = answers.keys().filter(|key| *key % DECLINED == 3).count();
    let paid = i64::try_from(keys() - declined).unwrap();
    assert_eq!(
        db.number("SELECT COUNT(*) FROM payment").await,
        paid,
        "payments"
    );
    let distinct = "SELECT COUNT(DISTINCT order_id) FROM payment";
    assert_eq!(db.number(distinct).await, paid, "orders that were paid");
    let charges = town
        .client
        .get(format!("http://127.0.0.1:{gateway}/charges"));
    let charges: Vec<Entry> = charges.send().await.unwrap().json().await.unwrap();
    let references: HashSet<_> = charges.iter().map(|charge| &charge.reference).collect();
    assert_eq!(
        (charges.len(), references.len()),
        (keys(), keys()),
        "charges"
    );
    println!(
        "payments {engine}: {} keys, {} submits, {} requests, {} replays, {kills} kills; one payment and one charge each",
        keys(),
        keys() * SUBMITS,
        town.sent.load(Ordering::Relaxed),
        town.replayed.load(Ordering::Relaxed),
    );
    assert!(kills > 0, "nobody was killed");
    db.remove().await;
}
