//! Permits on both servers.

use super::*;
use crate::model::Share;
use crate::store::mysql::permit_text::{Reclaim, pass_text as permit_pass_text};
use crate::store::tests::PermitParams;
use crate::store::verbs::lease::{LeaseStore, RenewOutcome, RenewParams};
use crate::store::verbs::permit::{WeighOutcome, WeighParams};

/// That of the newest permit.
const FENCE: &str = "SELECT MAX(fence) FROM rowlock_lock WHERE weight > 0";

const TWO: Kind = Kind::Semaphore { capacity: 2 };

impl Client<Database> {
    fn wants(&self, name: &str, kind: Kind, weight: u32) -> PermitParams {
        let join = JoinParams {
            most: 1_000,
            ..self.ask(name)
        };
        let share = Share { kind, weight };
        PermitParams { join, share }
    }

    async fn gets(&mut self, params: &PermitParams) -> i64 {
        match self.joins_permits(params).await {
            JoinOutcome::Granted { fence } => fence,
            other => panic!("no permit: {other:?}"),
        }
    }

    async fn queues(&mut self, params: &PermitParams) -> i64 {
        match self.joins_permits(params).await {
            JoinOutcome::Queued { position, .. } => position,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    /// Gives a permit back, and returns those who have one now.
    async fn gives_back(&mut self, params: &PermitParams) -> (EndedGrant, Vec<Uuid>) {
        let pass = PassParams {
            name: params.join.name.clone(),
            why: PassWhy::Ended(params.join.grant_id),
        };
        let PassOutcome { ended, next } = self.passes_permits(&pass).await;
        (ended, next)
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
    let params = client.ask("a");
    let joined = client.join(&params).await;
    assert!(
        matches!(joined, JoinOutcome::Mismatch(Some(TWO))),
        "{joined:?}"
    );
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING
    );
    client.is_used(2).await;
    let next = vec![second.join.grant_id];
    assert_eq!(client.gives_back(&first).await, (EndedGrant::Live, next));
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING
    );
    let joined = client.join(&params).await;
    assert!(
        matches!(joined, JoinOutcome::Mismatch(Some(TWO))),
        "{joined:?}"
    );
    client.is_used(1).await;
}

/// Its permit has expired, and nobody has reclaimed it. It has the name of the new one.
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
    // The dead permit of the first one is reclaimed, and that of the other one is live.
    let _ = client.queues(&waits).await;
    let _ = client.queues(&late).await;
    client.is_used(1).await;
    let next = vec![waits.join.grant_id];
    assert_eq!(client.gives_back(&other).await, (EndedGrant::Live, next));
    let next = vec![late.join.grant_id];
    assert_eq!(client.gives_back(&waits).await, (EndedGrant::Live, next));
    client.is_used(1).await;
}

pub(super) async fn permits_of_the_longest_name_are_renewed_together(place: &Database) {
    let mut client = Client::new(place).await;
    let name = "n".repeat(255);
    let mut all = Vec::new();
    for _ in 0..2 {
        let permit = client.wants(&name, TWO, 1);
        let _ = client.gets(&permit).await;
        let grant_id = permit.join.grant_id;
        let name = permit.join.name.permit(grant_id);
        let ttl = TTL * 2;
        all.push(RenewParams {
            name,
            grant_id,
            ttl,
        });
    }
    for renewed in client.conn.lease_renew(&all).await.unwrap() {
        assert!(matches!(renewed, RenewOutcome::Live { remaining } if remaining > TTL));
    }
    client.is_used(2).await;
}

pub(super) async fn a_window_for_a_permit_ends_with_the_session_of_its_waiter(place: &Database) {
    let mut client = Client::new(place).await;
    let mut brief = Client::with_ttl(place, WINDOW * 3 / 4).await;
    let (held, waits) = (client.wants("a", TWO, 2), brief.wants("a", TWO, 1));
    let _ = client.gets(&held).await;
    let _ = brief.queues(&waits).await;
    let next = vec![waits.join.grant_id];
    assert_eq!(client.gives_back(&held).await, (EndedGrant::Live, next));
    let left = "SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) FROM rowlock_lock WHERE weight > 0";
    let left = Database::numbers(&mut client.conn, left).await;
    assert!(
        left[0] <= to_micros(WINDOW * 3 / 4),
        "longer than its session: {left:?}"
    );
}

/// Of two permits that have expired, a transaction has one pinned: the other one is given to others at once.
pub(super) async fn a_pinned_permit_keeps_nobody_waiting(place: &Database) {
    let (mut pins, mut client) = (Client::new(place).await, Client::new(place).await);
    let (pinned, other) = (client.wants("a", TWO, 1), client.wants("a", TWO, 1));
    let _ = client.gets(&pinned).await;
    let _ = client.gets(&other).await;
    let [first, second] = [client.wants("a", TWO, 1), client.wants("a", TWO, 1)];
    let _ = client.queues(&first).await;
    client.expire_grants().await;
    let permit = hex(pinned.join.name.permit(pinned.join.grant_id).as_bytes());
    let pin = format!(
        "START TRANSACTION; SELECT * FROM rowlock_lock WHERE name = {permit} LOCK IN SHARE MODE"
    );
    pins.run(&pin).await;
    let pass = PassParams {
        name: named("a"),
        why: PassWhy::Orphaned,
    };
    let passed = client.passes_permits(&pass).await;
    let next = vec![first.join.grant_id];
    let ended = EndedGrant::Nothing;
    assert_eq!(passed, PassOutcome { ended, next });
    // A join and a change of weight find too little room, at once.
    let _ = client.queues(&second).await;
    let fence = Database::numbers(&mut client.conn, FENCE).await[0];
    let weigh = WeighParams {
        name: named("a"),
        grant_id: first.join.grant_id,
        fence,
        weight: 2,
    };
    assert_eq!(client.weighs_permit(&weigh).await, WeighOutcome::Full);
    client.is_used(2).await;
    pins.run("COMMIT").await;
    // The waiter does not keep it back.
    let weighed = client.weighs_permit(&weigh).await;
    assert!(matches!(weighed, WeighOutcome::Done { .. }), "{weighed:?}");
    client.is_used(2).await;
}

/// A renewal or a confirm was faster than the look at the permit again.
pub(super) async fn a_permit_that_was_renewed_meanwhile_is_not_reclaimed(place: &Database) {
    let mut client = Client::new(place).await;
    let (held, waits) = (client.wants("a", TWO, 2), client.wants("a", TWO, 1));
    let _ = client.gets(&held).await;
    let _ = client.queues(&waits).await;
    client.expire_grants().await;
    // The set is read, then the permit is renewed, then the set is looked at again.
    let pass = PassParams {
        name: named("a"),
        why: PassWhy::Orphaned,
    };
    let text = patient(&permit_pass_text(&pass, Reclaim::Now, 100));
    let at = text.find("DELETE l FROM").expect("it reclaims");
    client.run("START TRANSACTION").await;
    client.run(&text[..at]).await;
    let mut renews = Client::new(place).await;
    let renew = "UPDATE rowlock_lock SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE WHERE weight > 0";
    let permit = hex(held.join.name.permit(held.join.grant_id).as_bytes());
    renews.run(&format!("{renew} AND name = {permit}")).await;
    client.run(&text[at..]).await;
    client.run("COMMIT").await;
    client.is_used(2).await;
    assert_eq!(client.gives_back(&held).await.0, EndedGrant::Live);
}

/// The cleaner or a person has removed the rows of permits.
pub(super) async fn permits_that_are_gone_use_nothing(place: &Database) {
    let mut client = Client::new(place).await;
    let (held, waits) = (client.wants("a", TWO, 2), client.wants("a", TWO, 2));
    let remove = "DELETE FROM rowlock_lock WHERE weight > 0";
    let _ = client.gets(&held).await;
    client.run(remove).await;
    let _ = client.gets(&client.wants("a", TWO, 1)).await;
    client.is_used(1).await;
    let _ = client.queues(&waits).await;
    client.run(remove).await;
    // 100 ms later.
    client
        .run("UPDATE rowlock_lock SET reclaim_at = NULL")
        .await;
    let next = vec![waits.join.grant_id];
    assert_eq!(client.gives_back(&held).await, (EndedGrant::Nothing, next));
    client.is_used(2).await;
}
