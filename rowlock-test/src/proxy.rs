//! A TCP proxy in front of a server. It can cut connections, delay requests and answers, or fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rowlock::Rowlock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{Notify, watch};

use crate::{Db, eventually};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// The next request reaches the server. Its answer does not come back, and the connection is cut.
    CutNextAnswer,
    /// As [`CutNextAnswer`](Self::CutNextAnswer). From then on the proxy is [`Silent`](Self::Silent).
    CutAndSilent,
    /// As [`CutNextAnswer`](Self::CutNextAnswer), for the next request of many operations.
    CutNextBatch,
    /// The proxy keeps the next request, and cuts its connection. [`Proxy::deliver`] passes the request to the server.
    KeepNextRequest,
    /// As [`KeepNextRequest`](Self::KeepNextRequest), for a request that contains this text; the number says how many
    /// such requests pass before. From then on the proxy is [`Silent`](Self::Silent).
    KeepRequestWith(&'static str, u32),
    /// Requests reach the server. The proxy holds the answers until the mode changes.
    HoldAnswers,
    /// Every answer is delayed by this time.
    Late(Duration),
    /// Nothing passes in either direction, and nothing is closed.
    Silent,
    /// As [`Silent`](Self::Silent), from the next request that contains this text.
    SilentFrom(&'static str),
    /// Every connection is closed, also new connections.
    Closed,
}

/// A request of at least this many bytes is one of many operations.
const BATCH: usize = 4_096;

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    mode: Arc<watch::Sender<Mode>>,
    passed: Arc<Passed>,
    kept: Arc<Kept>,
}

/// The numbers of connections, requests and answers, and the bytes of the answers.
#[derive(Debug, Default)]
struct Passed {
    connections: AtomicU32,
    requests: AtomicU32,
    answers: AtomicU32,
    received: AtomicU64,
}

/// The delayed request.
#[derive(Debug, Default)]
struct Kept {
    deliver: Notify,
    answered: Notify,
}

/// A proxy in front of the database's server, and the URL of the database through the proxy.
pub async fn through_proxy(db: &Db) -> (Proxy, String) {
    let at = db.url.find("127.0.0.1:").expect("a server on loopback") + "127.0.0.1:".len();
    let end = at + db.url[at..].find('/').unwrap();
    let proxy = Proxy::start(db.url[at..end].parse().unwrap()).await;
    let url = format!("{}{}{}", &db.url[..at], proxy.port, &db.url[end..]);
    (proxy, url)
}

/// As [`through_proxy`], without encryption, so that the proxy can read the requests.
///
/// (MySQL and MariaDB accept the password without TLS because the server has seen it before.)
pub async fn through_readable_proxy(db: &Db) -> (Proxy, String) {
    let (proxy, url) = through_proxy(db).await;
    (proxy, format!("{url}{}", db.kind.readable))
}

/// Waits until the client has a connection for its renewals. From then on only the lanes send requests.
pub async fn renewals_are_connected(rowlock: &Rowlock) {
    let lock = rowlock.lock("renewed").ttl(Duration::from_secs(3));
    let held = lock.acquire().await.unwrap();
    let first = held.deadline();
    eventually("a renewal is confirmed", async || held.deadline() > first).await;
    let _ = crate::loss(held.release().await);
}

impl Proxy {
    /// Starts a proxy in front of 127.0.0.1:`server`.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::Sender::new(Mode::Pass));
        let passed = Arc::new(Passed::default());
        let kept = Arc::new(Kept::default());
        let shared = (Arc::clone(&mode), Arc::clone(&passed), Arc::clone(&kept));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mode, passed, kept) = shared.clone();
                passed.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(connection(client, server, mode, passed, kept));
            }
        });
        Self {
            port,
            mode,
            passed,
            kept,
        }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// How many connections were made.
    pub fn connections(&self) -> u32 {
        self.passed.connections.load(Ordering::Relaxed)
    }

    /// The number of requests of the client.
    pub fn requests(&self) -> u32 {
        self.passed.requests.load(Ordering::Relaxed)
    }

    /// The bytes that the client has got.
    pub fn received(&self) -> u64 {
        self.passed.received.load(Ordering::Relaxed)
    }

    /// Holds all answers from now on, and waits for the first one. Then that client sends nothing more, and the server
    /// has no work left from it.
    pub async fn hold_an_answer(&self) {
        self.set(Mode::HoldAnswers);
        let held = || self.passed.answers.load(Ordering::SeqCst);
        let before = held();
        eventually("an answer is held", async || held() > before).await;
    }

    /// Passes the kept request to the server, on the connection that the client has given up. Waits for the server's
    /// whole answer: the first part of it may come before the commit.
    pub async fn deliver(&self) {
        self.kept.deliver.notify_one();
        self.kept.answered.notified().await;
    }

    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

async fn connection(
    mut client: TcpStream,
    server: u16,
    mode: Arc<watch::Sender<Mode>>,
    passed: Arc<Passed>,
    kept: Arc<Kept>,
) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let mut changes = mode.subscribe();
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    let mut asked = false;
    loop {
        let current = *changes.borrow_and_update();
        if current == Mode::Closed {
            return;
        }
        if current == Mode::Silent {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        select! {
            _ = changes.changed() => {}
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                // The request may have come after the silence began, and before this task heard of it.
                if !passes(&mut changes, &[Mode::Silent]).await {
                    return;
                }
                passed.requests.fetch_add(1, Ordering::Relaxed);
                if falls_silent(&mode, &up[..count]) {
                    continue;
                }
                if disarm(&mode, Mode::KeepNextRequest) || has_text(&mode, &up[..count]) {
                    drop(client);
                    kept.deliver.notified().await;
                    server.write_all(&up[..count]).await.unwrap();
                    // The server runs the whole request before it reads the end.
                    server.shutdown().await.unwrap();
                    let mut answer = Vec::new();
                    let _ = server.read_to_end(&mut answer).await;
                    assert!(!answer.is_empty(), "the server answers");
                    return kept.answered.notify_one();
                }
                asked |= match *mode.borrow() {
                    Mode::CutNextAnswer | Mode::CutAndSilent => true,
                    Mode::CutNextBatch => count >= BATCH,
                    _ => false,
                };
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                passed.answers.fetch_add(1, Ordering::SeqCst);
                passed.received.fetch_add(count as u64, Ordering::Relaxed);
                let current = *changes.borrow();
                if let Mode::Late(delay) = current {
                    tokio::time::sleep(delay).await;
                }
                if !passes(&mut changes, &[Mode::Silent, Mode::HoldAnswers]).await {
                    return;
                }
                // The server has run the request. Its answer and the connection are lost.
                let cuts = [Mode::CutNextAnswer, Mode::CutNextBatch];
                if asked && cuts.into_iter().any(|cut| disarm(&mode, cut)) {
                    return;
                }
                if asked && becomes(&mode, Mode::CutAndSilent, Mode::Silent) {
                    return;
                }
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until the mode is none of `held`. False if the connection must be closed.
async fn passes(changes: &mut watch::Receiver<Mode>, held: &[Mode]) -> bool {
    let mode = changes.wait_for(|mode| !held.contains(mode)).await;
    mode.is_ok_and(|mode| *mode != Mode::Closed)
}

/// Whether the proxy must keep this request.
fn has_text(mode: &watch::Sender<Mode>, request: &[u8]) -> bool {
    let mut is_it = false;
    mode.send_if_modified(|mode| {
        let Mode::KeepRequestWith(text, behind) = *mode else {
            return false;
        };
        let has_text = contains(request, text);
        is_it = has_text && behind == 0;
        if is_it {
            *mode = Mode::Silent;
        } else if has_text {
            *mode = Mode::KeepRequestWith(text, behind - 1);
        }
        has_text
    });
    is_it
}

/// Whether the silence begins with this request.
fn falls_silent(mode: &watch::Sender<Mode>, request: &[u8]) -> bool {
    mode.send_if_modified(|mode| {
        let is_it = matches!(*mode, Mode::SilentFrom(text) if contains(request, text));
        if is_it {
            *mode = Mode::Silent;
        }
        is_it
    })
}

fn contains(request: &[u8], text: &str) -> bool {
    let mut parts = request.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

/// Whether the mode is `armed`. If it is, this ends the mode.
fn disarm(mode: &watch::Sender<Mode>, armed: Mode) -> bool {
    becomes(mode, armed, Mode::Pass)
}

/// Whether the mode is `armed`. If it is, it is `next` from now on.
fn becomes(mode: &watch::Sender<Mode>, armed: Mode, next: Mode) -> bool {
    mode.send_if_modified(|mode| {
        let is_armed = *mode == armed;
        if is_armed {
            *mode = next;
        }
        is_armed
    })
}
