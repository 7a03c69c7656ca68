//! Permits on both servers.

use std::time::Duration;

use super::*;
use crate::store::lease::{Freed, LeaseStore, RenewAsk, Renewed};
use crate::store::permit::{PermitAsk, PermitStore, PermitsPassed};

const TWO: Kind = Kind::Semaphore { capacity: 2 };

impl Client<Database> {
    fn wants(&self, name: &str, kind: Kind, weight: u32) -> PermitAsk {
        let join = JoinAsk {
            most: 1_000,
            ..self.ask(name)
        };
        PermitAsk { join, kind, weight }
    }

    async fn gets(&mut self, ask: &PermitAsk) -> i64 {
        match self.conn.permit_join(ask).await.unwrap() {
            Joined::Granted { fence } => fence,
            other => panic!("no permit: {other:?}"),
        }
    }

    async fn queues(&mut self, ask: &PermitAsk) -> i64 {
        match self.conn.permit_join(ask).await.unwrap() {
            Joined::Queued { position, .. } => position,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    /// Gives a permit back, and returns those who have one now.
    async fn gives_back(&mut self, ask: &PermitAsk) -> (Freed, Vec<Uuid>) {
        let pass = PassAsk {
            name: ask.join.name.clone(),
            of: Some((ask.join.grant_id, Leaves::None)),
        };
        match self.conn.permit_pass(&pass).await.unwrap() {
            PermitsPassed::Done { freed, next } => {
                (freed, next.iter().map(|next| next.grant_id).collect())
            }
            PermitsPassed::Locked => panic!("nothing has a row locked"),
        }
    }

    /// What is used of all names, and what their permits weigh.
    async fn is_used(&mut self, expected: i64) {
        for column in ["used", "weight"] {
            let sum = format!("SELECT CAST(SUM({column}) AS SIGNED) FROM rowlock_lock");
            assert_eq!(Database::numbers(&mut self.conn, &sum).await, [expected]);
        }
        self.check().await;
    }
}

pub(super) async fn a_queue_for_a_lock_is_not_one_for_permits(place: &Database) {
    let mut client = Client::new(place).await;
    let (first, second) = (client.wants("a", TWO, 2), client.wants("a", TWO, 1));
    let _ = client.gets(&first).await;
    let _ = client.queues(&second).await;
    let ask = client.ask("a");
    let joined = client.join(&ask).await;
    assert!(matches!(joined, Joined::Mismatch(TWO)), "{joined:?}");
    assert_eq!(client.pass("a", None).await, Passed::No);
    client.is_used(2).await;
    let next = vec![second.join.grant_id];
    assert_eq!(client.gives_back(&first).await, (Freed::Released, next));
    assert_eq!(client.pass("a", None).await, Passed::No);
    let joined = client.join(&ask).await;
    assert!(matches!(joined, Joined::Mismatch(TWO)), "{joined:?}");
    client.is_used(1).await;
}

/// Its permit has expired, and nobody has reaped it. It has the name of the new one.
pub(super) async fn a_late_second_sending_finds_its_dead_permit(place: &Database) {
    let mut client = Client::new(place).await;
    let late = client.wants("a", TWO, 1);
    let fence = client.gets(&late).await;
    client.expire_grants().await;
    assert!(client.gets(&late).await > fence);
    client.is_used(1).await;

    client.expire_grants().await;
    let (other, waits) = (client.wants("a", TWO, 1), client.wants("a", TWO, 2));
    let _ = client.gets(&other).await;
    // The dead permit of the first one is reaped, and that of the other one is live.
    let _ = client.queues(&waits).await;
    let _ = client.queues(&late).await;
    client.is_used(1).await;
    let next = vec![waits.join.grant_id];
    assert_eq!(client.gives_back(&other).await, (Freed::Released, next));
    let next = vec![late.join.grant_id];
    assert_eq!(client.gives_back(&waits).await, (Freed::Released, next));
    client.is_used(1).await;
}

pub(super) async fn more_waiters_than_a_text_grants_are_granted(place: &Database) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::new(place).await;
    let writer = client.wants("a", rw, all);
    let _ = client.gets(&writer).await;
    let mut readers = Vec::new();
    for _ in 0..100 + 20 {
        let reader = client.wants("a", rw, 1);
        let _ = client.queues(&reader).await;
        readers.push(reader.join.grant_id);
    }
    assert_eq!(client.gives_back(&writer).await, (Freed::Released, readers));
    client.is_used(120).await;
}

pub(super) async fn permits_of_the_longest_name_are_renewed_together(place: &Database) {
    let mut client = Client::new(place).await;
    let name = "n".repeat(255);
    let mut asks = Vec::new();
    for _ in 0..2 {
        let permit = client.wants(&name, TWO, 1);
        let _ = client.gets(&permit).await;
        let grant_id = permit.join.grant_id;
        let name = permit.join.name.permit(grant_id);
        let ttl = TTL * 2;
        asks.push(RenewAsk {
            name,
            grant_id,
            ttl,
        });
    }
    for renewed in client.conn.lease_renew(&asks).await.unwrap() {
        assert!(matches!(renewed, Renewed::Live { remaining } if remaining > TTL));
    }
    client.is_used(2).await;
}

pub(super) async fn a_window_for_a_permit_ends_with_the_session_of_its_waiter(place: &Database) {
    let mut client = Client::new(place).await;
    let mut brief = Client::with_ttl(place, Duration::from_secs(1)).await;
    let (held, waits) = (client.wants("a", TWO, 2), brief.wants("a", TWO, 1));
    let _ = client.gets(&held).await;
    let _ = brief.queues(&waits).await;
    let next = vec![waits.join.grant_id];
    assert_eq!(client.gives_back(&held).await, (Freed::Released, next));
    let left = "SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) FROM rowlock_lock WHERE weight > 0";
    let left = Database::numbers(&mut client.conn, left).await;
    assert!(left[0] <= 1_000_000, "longer than its session: {left:?}");
}
