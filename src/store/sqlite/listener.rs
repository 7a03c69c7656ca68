//! Hearing at once that a name was passed on: a datagram from the process that passed it on. All users of a file are
//! on one machine.
//!
//! A listener has a socket of its session, whose name is in Linux's abstract namespace (unix(7)): it is no file, and
//! ends with its process. After its commit, the process that passes a name on sends the waiter's grant id there. A
//! message may be lost, and then a look finds the grant:
//!
//! - The socket is out of reach: the waiter is in another network namespace, or not on Linux.
//! - The socket is full (`net.unix.max_dgram_qlen`, often 10): nobody waits for a reader that is busy. So all that one
//!   commit has for a session is in one message.
//!
//! What a process tells itself does not show that others can reach it. Anybody on the machine may see the name of a
//! socket and send to it. So the name has one half of the session's id, and a message counts with the other half only.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::model::Name;
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::queue::Listener;

/// The waiter to whom a transaction has passed a name on.
#[derive(Debug)]
pub(super) struct PassedTo {
    pub(super) session: Uuid,
    pub(super) grant_id: Uuid,
}

/// The session of the first live waiter of the name `$name`.
macro_rules! first_session {
    ($name:literal) => {
        concat!(
            "(SELECT w.session_id
    FROM rowlock_waiter w CROSS JOIN rowlock_session s ON s.id = w.session_id
    WHERE w.name = ",
            $name,
            " AND s.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
    ORDER BY w.position LIMIT 1)"
        )
    };
}

const FIRST_SESSION: &str = concat!("SELECT ", first_session!("?1"));

/// The sessions of the first waiters for what a session holds. The name of a permit begins with that of the lock and
/// NUL.
const FIRST_SESSIONS: &str = concat!(
    "
SELECT DISTINCT ",
    first_session!("substr(l.name, 1, instr(CAST(l.name || x'00' AS BLOB), x'00') - 1)"),
    "
FROM rowlock_lock l WHERE l.session_id = ?1"
);

/// Listens for a session; `None`: not on this system.
pub(super) fn listen(session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
    socket::bind(session)
}

/// Has the listener of a session look.
pub(super) fn wake(session: Uuid) {
    tell(session, &[]);
}

/// Has the client of the first waiter look: the lease that it waits for ends sooner than a look has found.
pub(super) async fn wake_first(conn: &mut SqliteConnection, name: &Name) {
    let first = sqlx::query_scalar(FIRST_SESSION).bind(name.as_bytes());
    match first.fetch_one(conn).await {
        Ok(Some(session)) => wake(session),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "{NOT_TOLD}"),
    }
}

/// The sessions of the first waiters for what a session holds.
pub(super) async fn first_sessions(
    conn: &mut SqliteConnection,
    session: Uuid,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let first = sqlx::query_scalar(FIRST_SESSIONS).bind(session);
    let first: Vec<Option<Uuid>> = first.fetch_all(conn).await?;
    Ok(first.into_iter().flatten().collect())
}

/// The outcome of a transaction; `None`: the file was busy. Those to whom it has passed a name on are told after its
/// commit.
pub(super) fn tell_after_commit<T>(
    done: Result<T, Fault>,
    next: &[PassedTo],
) -> Result<Option<T>, Fault> {
    let done = unlocked(done)?;
    if done.is_some() {
        let mut by_session: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
        for next in next {
            let of_session = by_session.entry(next.session).or_default();
            of_session.push(next.grant_id);
        }
        for (session, grant_ids) in by_session {
            tell(session, &grant_ids);
        }
    }
    Ok(done)
}

const NOT_TOLD: &str = "a client that waits was not told: it looks by itself";

/// Its failure fails no verb, which has committed.
fn tell(session: Uuid, grant_ids: &[Uuid]) {
    if let Err(error) = socket::send(session, grant_ids) {
        tracing::debug!(%error, "{NOT_TOLD}");
    }
}

#[cfg(target_os = "linux")]
mod socket {
    use std::io;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::LazyLock;

    use super::{Fault, Listener, Uuid, async_trait};
    use crate::model::FaultKind;
    use crate::store::verbs::permit::MOST;
    use crate::store::verbs::queue::News;

    /// Tells who sends.
    static PROCESS: LazyLock<Uuid> = LazyLock::new(Uuid::new_v4);

    /// How many bytes of a session's id are in the name of its socket. The others are in each message.
    const NAMED: usize = 8;

    #[derive(Debug)]
    struct Socket {
        from: tokio::net::UnixDatagram,
        session: Uuid,
        /// What the last message had.
        heard: Vec<News>,
    }

    fn address(session: Uuid) -> io::Result<SocketAddr> {
        let named = session.simple().to_string();
        SocketAddr::from_abstract_name(format!("rowlock_{}", &named[..2 * NAMED]))
    }

    pub(super) fn bind(session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        let bind = || {
            let socket = UnixDatagram::bind_addr(&address(session)?)?;
            socket.set_nonblocking(true)?;
            tokio::net::UnixDatagram::from_std(socket)
        };
        let from = bind().map_err(|error| Fault::said(FaultKind::Other, error.to_string()))?;
        Ok(Some(Box::new(Socket {
            from,
            session,
            heard: Vec::new(),
        })))
    }

    /// Does not block: if the socket is full, the message is dropped.
    pub(super) fn send(session: Uuid, grant_ids: &[Uuid]) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let head = [&session.as_bytes()[NAMED..], PROCESS.as_bytes()];
        let grant_ids = grant_ids.iter().map(|id| &id.as_bytes()[..]);
        let message: Vec<&[u8]> = head.into_iter().chain(grant_ids).collect();
        socket.send_to_addr(&message.concat(), &address(session)?)?;
        Ok(())
    }

    impl Socket {
        /// What is in a message; nothing, if it is a stranger's.
        fn news(&self, message: &[u8]) -> Vec<News> {
            let key = &self.session.as_bytes()[NAMED..];
            let Some((process, grant_ids)) = message
                .strip_prefix(key)
                .and_then(<[u8]>::split_first_chunk::<16>)
            else {
                return Vec::new();
            };
            let by_another = process != PROCESS.as_bytes();
            let passed = |id: &[u8; 16]| News::Passed {
                to: Uuid::from_bytes(*id),
                by_another,
            };
            match grant_ids.as_chunks().0 {
                [] => vec![News::Woken],
                ids => ids.iter().map(passed).collect(),
            }
        }
    }

    #[async_trait]
    impl Listener for Socket {
        async fn next(&mut self) -> Result<News, Fault> {
            loop {
                if let Some(news) = self.heard.pop() {
                    return Ok(news);
                }
                let mut message = [0; 16 * (2 + MOST)];
                let heard = self.from.recv(&mut message).await;
                let length = heard
                    .map_err(|error| Fault::said(FaultKind::Disconnected, error.to_string()))?;
                self.heard = self.news(&message[..length]);
            }
        }

        async fn close(self: Box<Self>) {}
    }
}

#[cfg(not(target_os = "linux"))]
mod socket {
    use super::{Fault, Listener, Uuid};

    pub(super) fn bind(_session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
        Ok(None)
    }

    pub(super) fn send(_session: Uuid, _grant_ids: &[Uuid]) -> std::io::Result<()> {
        Ok(())
    }
}
