//! A TCP proxy in front of a server, that can cut connections, keep what is said for later, or fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{Notify, watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// The next request reaches the server; its answer does not come back, the connection is cut.
    CutNextAnswer,
    /// The same for the next request of many operations.
    CutNextBatch,
    /// The next request stays here, and its connection is cut; [`Proxy::deliver`] hands it to the server.
    KeepNextRequest,
    /// The same for a request that has this text in it, behind so many others that have it; from then on it is
    /// [`Silent`](Self::Silent).
    KeepRequestWith(&'static str, u32),
    /// Requests reach the server; answers come here, and stay here until the mode changes.
    HoldAnswers,
    /// Every answer comes so late.
    Late(Duration),
    /// Nothing passes in either direction, and nothing is closed.
    Silent,
    /// The same from the next request on that has this text in it.
    SilentFrom(&'static str),
    /// Every connection is closed, new ones as soon as they are made.
    Closed,
}

/// A request of so many bytes is one of many operations.
const BATCH: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: Arc<watch::Sender<Mode>>,
    passed: Arc<Passed>,
    kept: Arc<Kept>,
}

/// How many times something was said.
#[derive(Debug, Default)]
struct Passed {
    requests: AtomicU32,
    answers: AtomicU32,
}

/// A request that is on its way for long.
#[derive(Debug, Default)]
struct Kept {
    deliver: Notify,
    answered: Notify,
}

/// A proxy in front of the database's server, and the URL of the database through the proxy.
pub(crate) async fn through_proxy(db: &Db) -> (Proxy, String) {
    let at = db.url.find("127.0.0.1:").expect("a server on loopback") + "127.0.0.1:".len();
    let end = at + db.url[at..].find('/').unwrap();
    let proxy = Proxy::start(db.url[at..end].parse().unwrap()).await;
    let url = format!("{}{}{}", &db.url[..at], proxy.port, &db.url[end..]);
    (proxy, url)
}

/// As [`through_proxy`], without encryption, so that the proxy can read the requests.
///
/// (MySQL and MariaDB accept the password without TLS because the server has seen it before.)
pub(crate) async fn through_readable_proxy(db: &Db) -> (Proxy, String) {
    let (proxy, url) = through_proxy(db).await;
    match db.engine {
        Engine::MySql | Engine::MariaDb => (proxy, format!("{url}?ssl-mode=disabled")),
        _ => (proxy, url),
    }
}

/// Waits until the client has a connection for its renewals. From then on only the lanes send requests.
pub(crate) async fn renewals_are_connected(rowlock: &Rowlock) {
    let lock = rowlock.lock("renewed").ttl(Duration::from_secs(3));
    let held = lock.acquire().await.unwrap();
    let first = held.deadline();
    eventually("a renewal is confirmed", async || held.deadline() > first).await;
    let _ = held.release().await.unwrap();
}

impl Proxy {
    /// In front of 127.0.0.1:`server`.
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::Sender::new(Mode::Pass));
        let passed = Arc::new(Passed::default());
        let kept = Arc::new(Kept::default());
        let shared = (Arc::clone(&mode), Arc::clone(&passed), Arc::clone(&kept));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mode, passed, kept) = shared.clone();
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

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// How many times the client has said something.
    pub(crate) fn requests(&self) -> u32 {
        self.passed.requests.load(Ordering::Relaxed)
    }

    /// From now on answers stay here. Resolves when there is one: whoever has asked asks nothing more, and the server works
    /// on nothing of his.
    pub(crate) async fn hold_an_answer(&self) {
        self.set(Mode::HoldAnswers);
        let held = || self.passed.answers.load(Ordering::SeqCst);
        let before = held();
        eventually("an answer is held", async || held() > before).await;
    }

    /// The request that was kept reaches the server, on the connection that the client has given up. Resolves when the
    /// server has answered.
    pub(crate) async fn deliver(&self) {
        self.kept.deliver.notify_one();
        self.kept.answered.notified().await;
    }

    pub(crate) fn mode(&self) -> Mode {
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
                passed.requests.fetch_add(1, Ordering::Relaxed);
                if falls_silent(&mode, &up[..count]) {
                    continue;
                }
                if disarm(&mode, Mode::KeepNextRequest) || has_text(&mode, &up[..count]) {
                    drop(client);
                    kept.deliver.notified().await;
                    server.write_all(&up[..count]).await.unwrap();
                    let answer = server.read(&mut down).await;
                    assert!(matches!(answer, Ok(1..)), "the server answers: {answer:?}");
                    return kept.answered.notify_one();
                }
                asked |= match *mode.borrow() {
                    Mode::CutNextAnswer => true,
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
                let other = |mode: &Mode| *mode != Mode::HoldAnswers;
                if changes.wait_for(other).await.is_err() {
                    return;
                }
                // The server has done it; its answer is lost, and with it the connection.
                let cuts = [Mode::CutNextAnswer, Mode::CutNextBatch];
                if asked && cuts.into_iter().any(|cut| disarm(&mode, cut)) {
                    return;
                }
                let current = *changes.borrow();
                if let Mode::Late(delay) = current {
                    tokio::time::sleep(delay).await;
                }
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Whether this is the request that is to be kept.
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

/// Whether this is the request from which on nothing passes.
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

/// Whether `mode` is what is asked for; if it is, it is so no longer.
fn disarm(mode: &watch::Sender<Mode>, armed: Mode) -> bool {
    mode.send_if_modified(|mode| {
        let is_armed = *mode == armed;
        if is_armed {
            *mode = Mode::Pass;
        }
        is_armed
    })
}
