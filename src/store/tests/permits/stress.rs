//! Many clients at once, for permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rowlock_test::patience;
use tokio::task::JoinSet;

use super::order::{Granted, in_order};
use super::pace::Pace;
use crate::model::{Kind, Share};
use crate::store::tests::*;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{FOR_EVER, RenewOutcome, RenewParams};
use crate::store::verbs::permit::{WeighOutcome, WeighParams};

const CLIENTS: usize = 8;
pub(super) const PLACES: [(&str, Kind); 2] = [
    ("semaphore", Kind::Semaphore { capacity: 3 }),
    ("read/write", Kind::ReadWrite),
];
/// The session and the permit of a client that freezes: its window is over then too.
const BRIEF: Duration = Duration::from_millis(40);

/// How many rows of names have used more than they have, or not what their permits weigh. (Each permit has its name's
/// capacity.)
const MISCOUNTED: &str = "
SELECT count(*) FROM rowlock_lock k
WHERE k.weight = 0
  AND (k.used > k.capacity
       OR k.used <> (SELECT COALESCE(sum(p.weight), 0) FROM rowlock_lock p
                     WHERE p.weight > 0 AND p.capacity = k.capacity))";

/// What is left of permits, of waiters, and in use.
const LEFT: [&str; 3] = [
    "SELECT count(*) FROM rowlock_lock WHERE weight > 0",
    "SELECT count(*) FROM rowlock_waiter",
    "SELECT count(*) FROM rowlock_lock WHERE used <> 0 OR waiters <> 0",
];

/// How much of each name the clients hold.
type Held = Arc<[AtomicI64; 2]>;

/// What a client does with its next permit.
struct Plan {
    place: usize,
    params: PermitParams,
    /// It is never heard of again.
    freezes: bool,
    /// It leaves the queue; `true`: it tells its position.
    leaves: Option<bool>,
    weighs: Option<u32>,
}

pub(crate) async fn many_clients_share_the_capacity_in_order<P: Place>(place: &P) {
    let held = Held::default();
    let pace = Arc::new(Pace::new());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(place.clone(), Arc::clone(&held), Arc::clone(&pace)));
    }
    let mut watcher = Client::new(place).await;
    while !pace.is_over() {
        watcher.check_permits().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let granted: Vec<Granted> = clients.join_all().await.into_iter().flatten().collect();
    watcher.check_permits().await;
    in_order(&granted);
    for place in 0..PLACES.len() {
        watcher.drain(place, &pace).await;
    }
    pace.late.check();
    for left in LEFT {
        assert_eq!(P::numbers(&mut watcher.conn, left).await, [0], "{left}");
    }
    watcher.check_permits().await;
}

async fn client<P: Place>(place: P, held: Held, pace: Arc<Pace>) -> Vec<Granted> {
    let mut client = Client::with_ttl(&place, LONG_TTL).await;
    let mut granted = Vec::new();
    while !pace.is_over() {
        let plan = client.plan();
        if plan.freezes {
            pace.late.passes_on(client.freeze(plan.params)).await;
            continue;
        }
        let asked = Instant::now();
        let answer = pace.late.passes_on(client.join_permit(&plan.params)).await;
        let joined = (asked, Instant::now());
        let (position, fence) = match answer {
            Some(JoinOutcome::Granted { fence }) => (None, Some(fence)),
            Some(JoinOutcome::Queued { position, .. }) => {
                let turn = client.turn(&plan, position, asked, &pace).await;
                (Some(position), turn)
            }
            None => continue,
            Some(answer) => panic!("{answer:?}"),
        };
        let Some(fence) = fence else {
            continue;
        };
        if position.is_some() {
            pace.had_a_turn(plan.place);
        }
        granted.push(Granted {
            place: plan.place,
            position,
            fence,
            is_new: plan.params.share.kind != Kind::ReadWrite
                || plan.params.share.weight == Kind::ALL,
            joined,
        });
        client
            .hold_for_a_while(&plan, fence, &held[plan.place], &pace)
            .await;
    }
    granted
}

impl<P: Place> Client<P> {
    async fn check_permits(&mut self) {
        self.check().await;
        let wrong = P::numbers(&mut self.conn, MISCOUNTED).await;
        assert_eq!(wrong, [0], "names whose use is not that of their permits");
    }

    fn plan(&self) -> Plan {
        let mut random = rand::rng();
        let place = random.random_range(0..PLACES.len());
        let (name, kind) = PLACES[place];
        let mut weight = || match kind {
            Kind::ReadWrite if random.random_bool(0.7) => 1,
            Kind::ReadWrite => Kind::ALL,
            _ => random.random_range(1..=kind.capacity()),
        };
        let (weight, other) = (weight(), weight());
        let mut join = self.ask(name);
        join.in_session = random.random_bool(0.3);
        if join.in_session {
            join.ttl = FOR_EVER;
        }
        let tells = random.random_bool(0.5);
        Plan {
            place,
            params: PermitParams {
                join,
                share: Share { kind, weight },
            },
            freezes: random.random_bool(0.1),
            leaves: random.random_bool(0.15).then_some(tells),
            weighs: random.random_bool(0.3).then_some(other),
        }
    }

    /// Joins in a session that nobody renews, and does nothing else.
    async fn freeze(&mut self, mut params: PermitParams) {
        let open = OpenParams {
            id: Uuid::new_v4(),
            ttl: BRIEF,
            holder: "freezes".into(),
        };
        while is_busy(&self.conn.session_open(&open).await) {}
        params.join.session = open.id;
        if !params.join.in_session {
            params.join.ttl = BRIEF;
        }
        self.conn
            .permit_join(&params.join, params.share)
            .await
            .unwrap();
    }

    /// `None`: the row is locked.
    async fn join_permit(&mut self, params: &PermitParams) -> Option<JoinOutcome> {
        unless_locked(self.conn.permit_join(&params.join, params.share).await)
    }

    /// Waits for a turn; its join was sent at `asked`. `None`: it left, or its window was over.
    async fn turn(
        &mut self,
        plan: &Plan,
        position: i64,
        asked: Instant,
        pace: &Pace,
    ) -> Option<i64> {
        let JoinParams { name, grant_id, .. } = plan.params.join.clone();
        let look = LookParams {
            name: name.clone(),
            grant_id,
            position,
        };
        let left = |at| PassWhy::Left { grant_id, at };
        let leaves = plan.leaves.map(|tells| left(tells.then_some(position)));
        let began = Instant::now();
        // Its turn may have come before the answer of the join did.
        let mut waited = asked;
        loop {
            let waits = began.elapsed();
            assert!(waits < patience(), "a waiter of {name} was forgotten");
            if let Some(leaves) = leaves.filter(|_| waits > Duration::from_millis(2)) {
                match pace.late.passes_on(self.pass_permits(&name, leaves)).await {
                    None => continue,
                    // Its turn had come, perhaps.
                    Some(EndedGrant::Nothing | EndedGrant::Live) => return None,
                    Some(EndedGrant::Expired) => {
                        pace.late.lost(waited);
                        return None;
                    }
                }
            }
            let now = Instant::now();
            let looked = self.conn.permit_look(std::slice::from_ref(&look)).await;
            let looked = looked.unwrap().remove(0);
            // The window began after the last look that found it waiting.
            if matches!(looked, LookOutcome::Waiting { .. }) {
                waited = now;
            }
            match looked {
                LookOutcome::Granted => match self.confirm_permit(&plan.params).await {
                    Some(ConfirmOutcome::Held { fence, .. }) => return Some(fence),
                    None => {}
                    Some(ConfirmOutcome::Gone) => {
                        pace.late.lost(waited);
                        return None;
                    }
                },
                LookOutcome::Waiting {
                    is_orphaned: true, ..
                } => {
                    let orphaned = self.pass_permits(&name, PassWhy::Orphaned);
                    pace.late.passes_on(orphaned).await;
                }
                LookOutcome::Waiting { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
                LookOutcome::Gone => {
                    pace.late.lost(waited);
                    return None;
                }
            }
        }
    }

    /// `None`: the row is locked.
    async fn pass_permits(&mut self, name: &Name, why: PassWhy) -> Option<EndedGrant> {
        let name = name.clone();
        let passed = self.conn.permit_pass(&PassParams { name, why }).await;
        unless_locked(passed).map(|passed| passed.ended)
    }

    async fn confirm_permit(
        &mut self,
        PermitParams { join, .. }: &PermitParams,
    ) -> Option<ConfirmOutcome> {
        let params = ConfirmParams {
            ttl: join.ttl,
            session: join.in_session.then_some(join.session),
            ..confirm_params(join.name.permit(join.grant_id), join.grant_id)
        };
        unless_locked(self.conn.queue_confirm(&params).await)
    }

    async fn hold_for_a_while(&mut self, plan: &Plan, fence: i64, held: &AtomicI64, pace: &Pace) {
        let PermitParams { join, share } = &plan.params;
        let take = |more: i64| {
            let now = held.fetch_add(more, Ordering::SeqCst) + more;
            let capacity = i64::from(share.kind.capacity());
            assert!((0..=capacity).contains(&now), "{now} of {capacity} held");
        };
        let mut weight = i64::from(share.weight);
        take(weight);
        self.renew_permit(join).await;
        if let Some(new) = plan.weighs {
            let more = i64::from(new) - weight;
            // What it gives back, another client may have before the answer.
            take(more.min(0));
            let params = WeighParams {
                name: join.name.clone(),
                grant_id: join.grant_id,
                fence,
                weight: new,
            };
            match pace.late.passes_on(self.weigh_permit(&params)).await {
                WeighOutcome::Done { fence: now, .. } => {
                    let is_new = more > 0 || more == 0 && new > 1;
                    assert!(if is_new { now > fence } else { now == fence });
                    weight += more;
                    take(more.max(0));
                }
                WeighOutcome::Full if more > 0 => {}
                other => panic!("{more} more: {other:?}"),
            }
        }
        if rand::rng().random_bool(0.3) {
            let pause = rand::rng().random_range(0..4);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        take(-weight);
        pace.late.passes_on(self.release_permit(join, fence)).await;
    }

    async fn renew_permit(&mut self, join: &JoinParams) {
        let params = RenewParams {
            name: join.name.permit(join.grant_id),
            grant_id: join.grant_id,
            ttl: join.ttl,
        };
        let renewed = self.conn.lease_renew(&[params]).await;
        if !is_busy(&renewed) {
            assert!(matches!(renewed.unwrap()[0], RenewOutcome::Live { .. }));
        }
    }

    async fn weigh_permit(&mut self, params: &WeighParams) -> WeighOutcome {
        loop {
            if let Some(weighed) = unless_locked(self.conn.permit_weigh(params).await) {
                return weighed;
            }
        }
    }

    async fn release_permit(&mut self, join: &JoinParams, fence: i64) {
        let params = ReleaseParams {
            name: join.name.permit(join.grant_id),
            grant_id: join.grant_id,
            fence,
            was_queued: false,
        };
        loop {
            let freed = self.conn.lease_release(std::slice::from_ref(&params)).await;
            match freed.unwrap().remove(0) {
                FreeOutcome::Released | FreeOutcome::Passed(_) => return,
                FreeOutcome::Locked => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Has the whole capacity once: then nobody else has any, and nobody waits.
    async fn drain(&mut self, place: usize, pace: &Pace) {
        let (name, kind) = PLACES[place];
        let join = self.ask(name);
        let weight = kind.capacity();
        let share = Share { kind, weight };
        let plan = Plan {
            place,
            params: PermitParams { join, share },
            freezes: false,
            leaves: None,
            weighs: None,
        };
        let asked = Instant::now();
        let joined = until_unlocked!(self.join_permit(&plan.params).await);
        let fence = match joined {
            JoinOutcome::Granted { fence } => Some(fence),
            JoinOutcome::Queued { position, .. } => self.turn(&plan, position, asked, pace).await,
            other => panic!("{other:?}"),
        };
        let fence = fence.expect("it does not leave");
        self.release_permit(&plan.params.join, fence).await;
    }
}

/// SQLite's file may be busy.
fn is_busy<T>(answer: &Result<T, Fault>) -> bool {
    matches!(answer, Err(fault) if fault.kind == FaultKind::LockTimeout)
}
