//! Where the options of a server's connections come from. They may change while the client runs: passwords are
//! rotated.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::model::FaultKind;
use crate::store::verbs::fault::Fault;

/// The connect options of the application's pool, as they are now.
pub(crate) type Current<O> = Arc<dyn Fn() -> Arc<O> + Send + Sync>;

/// Asks the application for the password of a new connection.
pub(crate) type Password =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<String, Fault>> + Send>> + Send + Sync>;

/// The options of a client's connections to servers.
#[derive(Clone)]
pub(crate) struct Origin<O> {
    /// At the start. They differ in nothing but the address, and there is at least one.
    servers: Vec<O>,
    changes: Changes<O>,
}

#[derive(Clone)]
enum Changes<O> {
    None,
    Pool {
        current: Current<O>,
        /// Adds what rowlock's own connections need.
        ours: fn(O) -> O,
    },
    Password {
        ask: Password,
        set: fn(O, &str) -> O,
    },
}

impl<O: Clone> Origin<O> {
    /// From a URL.
    pub(crate) fn fixed(servers: Vec<O>, ours: fn(O) -> O) -> Self {
        Self {
            servers: servers.into_iter().map(ours).collect(),
            changes: Changes::None,
        }
    }

    /// From a pool, which the connections follow.
    pub(crate) fn pool(current: Current<O>, ours: fn(O) -> O) -> Self {
        Self {
            servers: vec![ours((*current()).clone())],
            changes: Changes::Pool { current, ours },
        }
    }

    pub(crate) fn with_password(self, ask: Password, set: fn(O, &str) -> O) -> Self {
        Self {
            changes: Changes::Password { ask, set },
            ..self
        }
    }

    /// The same servers, with another setting. (A pool's options are the pool's.)
    pub(crate) fn with(mut self, set: impl Fn(O) -> O) -> Self {
        let servers = std::mem::take(&mut self.servers).into_iter();
        self.servers = servers.map(set).collect();
        self
    }

    /// At the start, for messages.
    pub(crate) fn servers(&self) -> &[O] {
        &self.servers
    }

    /// For a new connection to the server of this number. `database` is what the options name: the application may
    /// give its pool another database, which has other locks.
    pub(crate) async fn now(&self, server: usize, database: fn(&O) -> String) -> Result<O, Fault> {
        let start = &self.servers[server];
        match &self.changes {
            Changes::None => Ok(start.clone()),
            Changes::Pool { current, ours } => {
                let now = ours((*current()).clone());
                if database(&now) == database(start) {
                    return Ok(now);
                }
                Err(Fault::said(
                    FaultKind::NoSuchDatabase,
                    "the pool's connect options name another database than when the client was made: make a new client",
                ))
            }
            Changes::Password { ask, set } => Ok(set(start.clone(), &ask().await?)),
        }
    }
}

/// Without the options: sqlx prints their passwords.
impl<O> fmt::Debug for Origin<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("servers", &self.servers.len())
            .finish_non_exhaustive()
    }
}
