//! A TCP proxy in front of a server, that can cut connections or fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// The next request reaches the server; its answer does not come back, the connection is cut.
    CutNextAnswer,
    /// Every answer comes so late.
    Late(std::time::Duration),
    /// Nothing passes in either direction, and nothing is closed.
    Silent,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: Arc<watch::Sender<Mode>>,
    requests: Arc<AtomicU32>,
}

impl Proxy {
    /// In front of 127.0.0.1:`server`.
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(watch::Sender::new(Mode::Pass));
        let requests = Arc::new(AtomicU32::new(0));
        let (shared, counter) = (Arc::clone(&mode), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mode, requests) = (Arc::clone(&shared), Arc::clone(&counter));
                tokio::spawn(connection(client, server, mode, requests));
            }
        });
        Self {
            port,
            mode,
            requests,
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// How many times the client has said something.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

async fn connection(
    mut client: TcpStream,
    server: u16,
    mode: Arc<watch::Sender<Mode>>,
    requests: Arc<AtomicU32>,
) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let mut changes = mode.subscribe();
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    let mut asked = false;
    loop {
        if *changes.borrow_and_update() == Mode::Silent {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        select! {
            _ = changes.changed() => {}
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                requests.fetch_add(1, Ordering::Relaxed);
                asked |= *mode.borrow() == Mode::CutNextAnswer;
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                // The server has done it; its answer is lost, and with it the connection.
                if asked && mode.send_if_modified(|mode| {
                    let armed = *mode == Mode::CutNextAnswer;
                    if armed {
                        *mode = Mode::Pass;
                    }
                    armed
                }) {
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
