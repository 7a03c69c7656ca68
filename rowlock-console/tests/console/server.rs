//! A console on a socket.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use rowlock::{Begun, Engine, Fingerprint, IdempotencyGuard, Rowlock, Scope, StepFailed};
use rowlock_console::{Access, Console};
use rowlock_test::Db;
use tokio::task::JoinHandle;

use crate::browser::Browser;

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

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn of(router: Router) -> Self {
        Self::at("127.0.0.1:0", router).await
    }

    pub(crate) async fn at(address: &str, router: Router) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, task }
    }

    pub(crate) fn browser(&self) -> Browser {
        Browser::at(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A console that lets everybody act, as Ann.
pub(crate) fn of_ann(rowlock: &Rowlock) -> Console {
    let who = "Ann".to_owned();
    Console::new(rowlock, move |_| Access::Act { who: who.clone() })
}

/// A console for a SQLite file of its own, and the client beside it.
pub(crate) async fn console(set: impl FnOnce(Console) -> Console) -> (Server, Rowlock, Db) {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let server = Server::of(set(of_ann(&rowlock)).router()).await;
    (server, rowlock, db)
}

/// The work of a step whose server does not answer.
pub(crate) async fn no_answer() -> Result<u8, StepFailed<Box<dyn Error + Send + Sync>>> {
    Err(StepFailed::Unknown("no answer".into()))
}

/// A new attempt of a key of the scope `shop`.
pub(crate) async fn attempt(rowlock: &Rowlock, key: impl AsRef<[u8]>) -> IdempotencyGuard {
    let key = Scope("shop").key(key);
    match rowlock.idempotency().begin(key, Fingerprint::of("1")).await {
        Ok(Begun::New(attempt)) => attempt,
        other => panic!("{other:?}"),
    }
}
