//! Hearing at once that a name was passed on: a datagram from the process that passed it on. All users of a file are
//! on one machine.
//!
//! A listener has a socket of its session, whose name is in Linux's abstract namespace (unix(7)): it is no file, and it
//! ends with its process. After its commit, the process that passes a name on sends the waiter's grant id there. Where
//! nobody has the socket (a client in another network namespace, or on another system than Linux), nobody is told, and
//! looks find what happened.

use std::io;

use async_trait::async_trait;
use tokio::net::UnixDatagram;
use uuid::Uuid;

use super::waiter::First;
use crate::model::FaultKind;
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::queue::{Listener, News};

/// The socket of a session.
#[derive(Debug)]
struct Socket(UnixDatagram);

/// Listens for a session; `None`: not on this system.
pub(super) fn listen(session: Uuid) -> Result<Option<Box<dyn Listener>>, Fault> {
    let bound = abstract_socket::bind(session);
    let bound = bound.map_err(|error| Fault::said(FaultKind::Other, error.to_string()))?;
    Ok(bound.map(|socket| Box::new(Socket(socket)) as Box<dyn Listener>))
}

/// Has the listener of a session look.
pub(super) fn wake(session: Uuid) {
    tell(session, Uuid::nil());
}

/// The outcome of a transaction. Those to whom it has passed a name on are told after its commit.
pub(super) fn told<T>(done: Result<T, Fault>, heirs: &[First]) -> Result<Option<T>, Fault> {
    let done = unlocked(done)?;
    if done.is_some() {
        for heir in heirs {
            tell(heir.session, heir.grant_id);
        }
    }
    Ok(done)
}

/// Its failure fails no verb, which has committed.
fn tell(session: Uuid, grant_id: Uuid) {
    if let Err(error) = abstract_socket::send(session, grant_id.as_bytes()) {
        tracing::debug!(%error, "a client that waits was not told: it looks by itself");
    }
}

#[async_trait]
impl Listener for Socket {
    async fn next(&mut self) -> Result<News, Fault> {
        let mut heard = [0; 16];
        match self.0.recv(&mut heard).await {
            Ok(16) if heard != [0; 16] => Ok(News::Passed(Uuid::from_bytes(heard))),
            Ok(_) => Ok(News::Woken),
            Err(error) => Err(Fault::said(FaultKind::Disconnected, error.to_string())),
        }
    }

    async fn close(self: Box<Self>) {}
}

#[cfg(target_os = "linux")]
mod abstract_socket {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::{Uuid, io};

    fn address(session: Uuid) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("rowlock_{}", session.simple()))
    }

    pub(super) fn bind(session: Uuid) -> io::Result<Option<super::UnixDatagram>> {
        let socket = UnixDatagram::bind_addr(&address(session)?)?;
        socket.set_nonblocking(true)?;
        super::UnixDatagram::from_std(socket).map(Some)
    }

    /// Waits for nobody: who does not read has to look.
    pub(super) fn send(session: Uuid, message: &[u8]) -> io::Result<usize> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message, &address(session)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod abstract_socket {
    use super::{Uuid, io};

    pub(super) fn bind(_session: Uuid) -> io::Result<Option<super::UnixDatagram>> {
        Ok(None)
    }

    pub(super) fn send(_session: Uuid, _message: &[u8]) -> io::Result<usize> {
        Ok(0)
    }
}
