//! A proxy in front of a node. It keeps one request from the node, as if the client stood still before it.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(crate) struct Gate {
    /// The database through the gate.
    pub(crate) url: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The next request with this text passes, and the request after it on the same connection is kept.
    text: Mutex<Option<&'static str>>,
    kept: Notify,
    go_on: Notify,
}

impl Gate {
    /// A gate in front of the node with this URL. Nothing is encrypted, because the gate reads the requests.
    pub(crate) async fn before(url: &str) -> Self {
        let (head, path) = url.rsplit_once('/').expect("it names a database");
        let (user, node) = head.split_once('@').expect("it names a user");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let (node, of_all) = (node.to_owned(), Arc::clone(&shared));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&node).await.unwrap();
                tokio::spawn(connection(client, server, Arc::clone(&of_all)));
            }
        });
        Self {
            url: format!("{user}@{address}/{path}?ssl-mode=disabled"),
            shared,
        }
    }

    pub(crate) fn keep_after(&self, text: &'static str) {
        *self.shared.text.lock().unwrap() = Some(text);
    }

    /// Waits until a request is kept.
    pub(crate) async fn kept(&self) {
        self.shared.kept.notified().await;
    }

    /// Passes the kept request to the node.
    pub(crate) fn go_on(&self) {
        self.shared.go_on.notify_one();
    }
}

async fn connection(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let (mut client, mut answers) = client.into_split();
    let (mut from_server, mut server) = server.into_split();
    // The client sees the end of a connection that the server has ended.
    tokio::spawn(async move { copy(&mut from_server, &mut answers).await });
    let mut request = vec![0; 65_536];
    let mut is_next = false;
    while let Ok(count @ 1..) = client.read(&mut request).await {
        let request = &request[..count];
        if std::mem::take(&mut is_next) {
            shared.kept.notify_one();
            shared.go_on.notified().await;
        }
        is_next = shared.passes(request);
        if server.write_all(request).await.is_err() {
            return;
        }
    }
}

impl Shared {
    /// Whether the next request is to be kept.
    fn passes(&self, request: &[u8]) -> bool {
        let has = |text: &mut &str| request.windows(text.len()).any(|at| at == text.as_bytes());
        self.text.lock().unwrap().take_if(has).is_some()
    }
}
