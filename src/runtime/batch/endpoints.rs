//! The servers of a client: dialing each in turn until one takes writes.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::timeout;
use uuid::Uuid;

use crate::model::FaultKind;
use crate::store::driver::connector::{Connection, Connector};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::Listener;

/// A [`Connector`] of any engine.
#[async_trait]
pub(super) trait Dialer: fmt::Debug + Send + Sync {
    fn servers(&self) -> usize;

    async fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> Result<Box<dyn Connection>, Fault>;

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault>;
}

#[async_trait]
impl<C: Connector> Dialer for C {
    fn servers(&self) -> usize {
        Connector::servers(self)
    }

    async fn connect(
        &self,
        server: usize,
        operation_timeout: Duration,
    ) -> Result<Box<dyn Connection>, Fault> {
        Ok(Box::new(
            Connector::connect(self, server, operation_timeout).await?,
        ))
    }

    async fn listen(
        &self,
        server: usize,
        session: Uuid,
    ) -> Result<Option<Box<dyn Listener>>, Fault> {
        Connector::listen(self, server, session).await
    }
}

/// How to reach the servers: shared by all links of a client.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// The server to try next.
    pub(super) turn: AtomicUsize,
    /// Why the last attempt to connect was refused, if it was.
    refusal: Mutex<Option<Fault>>,
    #[cfg(feature = "testing")]
    pub(crate) gate: super::gate::Gate,
}

impl Endpoints {
    /// Runs a call on a connection, or makes one. (A test may hold the answer back.)
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        #[cfg(feature = "testing")]
        let call = self.gate.through(call);
        call.await
    }

    /// Why the last connection could not be made. (Silence is no refusal, nor is a server that is full or still
    /// starting.)
    pub(crate) fn refusal(&self) -> Option<Fault> {
        self.refusal.lock().clone()
    }

    pub(super) fn dialed<T>(&self, made: &Result<T, Fault>) {
        let is_refusal = |fault: &&Fault| !fault.is_silence() && !fault.is_no_room();
        let refusal = made.as_ref().err().filter(is_refusal);
        *self.refusal.lock() = refusal.cloned();
    }
}

/// Gives each server an equal share of the operation timeout, so that a silent one does not keep us from the next.
pub(super) async fn dial_each(
    dialer: &dyn Dialer,
    operation_timeout: Duration,
    turn: &AtomicUsize,
) -> Result<Box<dyn Connection>, Fault> {
    let count = dialer.servers();
    let share = operation_timeout / u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let first = turn.load(Ordering::Relaxed);
    let mut faults = Vec::new();
    for server in (0..count).map(|step| (first + step) % count) {
        // A dial that is cut off here continues with the next server.
        turn.store((server + 1) % count, Ordering::Relaxed);
        let made = timeout(share, dialer.connect(server, operation_timeout)).await;
        match made.unwrap_or_else(|_| Err(Fault::timed_out())) {
            Err(fault) if matches!(fault.kind, FaultKind::Disconnected | FaultKind::ReadOnly) => {
                faults.push((server, fault));
            }
            // Another server would not help against a refused login or a missing database.
            made => {
                turn.store(server, Ordering::Relaxed);
                return made;
            }
        }
    }
    Err(none_of(faults))
}

/// The error to return when no server is the primary.
fn none_of(mut faults: Vec<(usize, Fault)>) -> Fault {
    if faults.len() == 1
        && let Some((_, fault)) = faults.pop()
    {
        return fault;
    }
    if faults.iter().all(|(_, fault)| fault.is_silence()) {
        return Fault::timed_out();
    }
    faults.sort_by_key(|(server, _)| *server);
    let is_read_only = |(_, fault): &(usize, Fault)| fault.kind == FaultKind::ReadOnly;
    let kind = if faults.iter().any(is_read_only) {
        FaultKind::ReadOnly
    } else {
        FaultKind::Disconnected
    };
    let said: Vec<String> = faults
        .iter()
        .map(|(server, fault)| format!("server {}: {fault}", server + 1))
        .collect();
    Fault::said(kind, said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_no_writes_is_told_rather_than_one_that_is_out_of_reach() {
        let read_only = || Fault::said(FaultKind::ReadOnly, "a standby");
        let kind = |faults: Vec<Fault>| none_of(faults.into_iter().enumerate().collect()).kind;
        assert_eq!(kind(vec![read_only()]), FaultKind::ReadOnly);
        let mixed = vec![Fault::timed_out(), read_only()];
        assert_eq!(kind(mixed), FaultKind::ReadOnly);
        let silent = vec![Fault::timed_out(), Fault::timed_out()];
        assert_eq!(kind(silent), FaultKind::Disconnected);
    }

    #[test]
    fn what_the_last_dial_was_refused_for_is_told_and_silence_is_no_refusal() {
        let endpoints = Endpoints::default();
        let refused = || Fault::said(FaultKind::Disconnected, "connection refused");
        endpoints.dialed::<()>(&Err(refused()));
        assert!(endpoints.refusal().is_some());
        let silent = vec![(0, Fault::timed_out()), (1, Fault::timed_out())];
        endpoints.dialed::<()>(&Err(none_of(silent)));
        assert!(endpoints.refusal().is_none());
        endpoints.dialed::<()>(&Err(none_of(vec![(0, refused()), (1, Fault::timed_out())])));
        assert!(endpoints.refusal().is_some());
        endpoints.dialed(&Ok(()));
        assert!(endpoints.refusal().is_none());
    }
}
