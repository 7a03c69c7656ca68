//! The databases of a quorum. Those that could not be reached at the start are connected to later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::QuorumError;
use super::round::all;
use rowlock::Error;
use rowlock::{Builder, Rowlock, SchemaError};

/// The pause after a try to connect that has failed.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Members {
    each: Vec<Arc<Member>>,
}

/// One of the databases.
#[derive(Debug)]
struct Member {
    client: OnceLock<Rowlock>,
    /// How to connect to it, without making its tables.
    way: Option<(Builder, String)>,
    /// A task tries to connect to it.
    connecting: AtomicBool,
    /// It gave no answer when it was asked last.
    silent: AtomicBool,
}

/// A task tries to connect to this database: until it ends, or its runtime does.
struct Connecting(Arc<Member>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.connecting.store(false, Ordering::Release);
    }
}

impl Members {
    pub(super) fn of(clients: Vec<Rowlock>) -> Result<Self, QuorumError> {
        check_count(clients.len())?;
        check_ids(clients.iter())?;
        let member = |client: Rowlock| {
            Arc::new(Member {
                client: OnceLock::from(client),
                way: None,
                connecting: AtomicBool::new(false),
                silent: AtomicBool::new(false),
            })
        };
        Ok(Self {
            each: clients.into_iter().map(member).collect(),
        })
    }

    pub(super) async fn connect(builder: Builder, urls: Vec<String>) -> Result<Self, QuorumError> {
        check_count(urls.len())?;
        // A member without tables may have lost its data, and have forgotten leases with it.
        let as_it_is = builder.clone().migrate(false);
        let connecting = urls.iter().map(|url| as_it_is.clone().connect(url));
        let mut connected = all(connecting).await;
        let lacks_tables =
            |error: &Error| matches!(error, Error::Schema(SchemaError::Missing { .. }));
        let errors = connected.iter().filter_map(|c| c.as_ref().err());
        let lacking = errors.filter(|error| lacks_tables(error)).count();
        // A quorum has lost the data of a minority at most. This one is new.
        let is_new = urls.len() - lacking < urls.len() / 2 + 1;
        for (url, connected) in urls.iter().zip(&mut connected) {
            let may_migrate = |error: &Error| {
                is_new && lacks_tables(error)
                    || matches!(
                        error,
                        Error::Schema(
                            SchemaError::Older { .. } | SchemaError::FunctionsMissing { .. }
                        )
                    )
            };
            if connected.as_ref().is_err_and(may_migrate) {
                *connected = builder.clone().connect(url).await;
            }
        }
        let mut details = Vec::new();
        let mut each = Vec::new();
        for (url, connected) in urls.iter().zip(connected) {
            let client = match connected {
                Ok(client) => OnceLock::from(client),
                Err(error) if error.is_transient() || !is_new && lacks_tables(&error) => {
                    tracing::warn!(%error, "a database of a quorum is left out for now");
                    details.push(error.to_string());
                    OnceLock::new()
                }
                Err(error) => return Err(error.into()),
            };
            let way = Some((as_it_is.clone(), url.clone()));
            let silent = AtomicBool::new(client.get().is_none());
            each.push(Arc::new(Member {
                client,
                way,
                connecting: AtomicBool::new(false),
                silent,
            }));
        }
        let members = Self { each };
        let reached = members.each.len() - details.len();
        if reached < members.majority() {
            return Err(QuorumError::NoMajority {
                reached,
                needed: members.majority(),
                members: members.each.len(),
                detail: details.join("; "),
            });
        }
        check_ids(members.each.iter().filter_map(|member| member.client.get()))?;
        Ok(members)
    }

    pub(super) fn count(&self) -> usize {
        self.each.len()
    }

    pub(super) fn majority(&self) -> usize {
        self.each.len() / 2 + 1
    }

    pub(super) fn clients(&self) -> Vec<Option<Rowlock>> {
        let clients = self.each.iter();
        clients.map(|member| member.client.get().cloned()).collect()
    }

    /// The client of a database. If there is none yet, a task tries to connect.
    pub(super) fn client(self: &Arc<Self>, number: usize) -> Option<Rowlock> {
        let member = &self.each[number];
        let client = member.client.get();
        if client.is_none() && !member.connecting.swap(true, Ordering::AcqRel) {
            let connecting = Connecting(Arc::clone(member));
            let connect = Self::connect_to(Arc::downgrade(self), number);
            tokio::spawn(async move {
                let _connecting = connecting;
                connect.await;
            });
        }
        client.cloned()
    }

    /// Tries once to connect. Pauses after a failure.
    async fn connect_to(members: Weak<Self>, number: usize) {
        let way = members
            .upgrade()
            .and_then(|members| members.each[number].way.clone());
        let Some((builder, url)) = way else {
            return;
        };
        let connected = builder.connect(&url).await;
        if let Err(error) = &connected {
            tracing::debug!(%error, "a database of a quorum is out of reach");
            sleep(PAUSE).await;
        }
        // The quorum may have been dropped meanwhile.
        let Some(members) = members.upgrade() else {
            return;
        };
        let member = &members.each[number];
        let others = members.each.iter().filter_map(|member| member.client.get());
        let Ok(client) = connected else {
            return;
        };
        match check_ids(others.chain([&client])) {
            Ok(()) => {
                let _ = member.client.set(client);
            }
            Err(error) => {
                tracing::error!(%error, "a database of a quorum is left out");
                sleep(PAUSE).await;
            }
        }
    }

    /// Whether a database gave no answer when it was asked last.
    pub(super) fn is_silent(&self, number: usize) -> bool {
        self.each[number].silent.load(Ordering::Relaxed)
    }

    pub(super) fn set_silent(&self, number: usize, is_silent: bool) {
        self.each[number].silent.store(is_silent, Ordering::Relaxed);
    }

    /// The error of a member that is not connected.
    pub(super) fn missing() -> Error {
        Error::Unreachable {
            target: "a database of the quorum".into(),
            detail: "no try to connect to it has succeeded yet".into(),
        }
    }
}

fn check_count(count: usize) -> Result<(), QuorumError> {
    if count < 3 || count.is_multiple_of(2) {
        return Err(QuorumError::Count(count));
    }
    Ok(())
}

fn check_ids<'a>(clients: impl Iterator<Item = &'a Rowlock>) -> Result<(), QuorumError> {
    let mut seen = HashMap::new();
    for client in clients {
        if let Some(first) = seen.insert(client.admin().database_id(), client.target()) {
            return Err(QuorumError::SameDatabase {
                first: first.to_owned(),
                second: client.target().to_owned(),
                id: client.admin().database_id(),
            });
        }
    }
    Ok(())
}
