//! Many clients at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rowlock_test::patience;
use tokio::task::JoinSet;

use super::late::Late;
use super::*;

const CLIENTS: usize = 8;
const NAMES: [&str; 3] = ["a", "aa", "b"];
const TIME: Duration = Duration::from_secs(5);

/// What the clients share.
struct Campaign {
    end: Instant,
    /// One name is held once.
    holders: [AtomicBool; 3],
    late: Late,
    /// Whether a waiter has had a turn.
    had_turn: AtomicBool,
}

impl Campaign {
    /// A busy machine gets more time for the first turn.
    fn goes_on(&self) -> bool {
        let now = Instant::now();
        now < self.end || !self.had_turn.load(Ordering::SeqCst) && now < self.end + patience()
    }
}

/// What a waiter was granted: the number of its name, its position and its fence.
type Granted = (usize, i64, i64);

pub(crate) async fn many_clients_keep_the_queue_in_order<P: Place>(place: &P) {
    let campaign = Arc::new(Campaign {
        end: Instant::now() + TIME,
        holders: Default::default(),
        late: Late::default(),
        had_turn: AtomicBool::new(false),
    });
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(place.clone(), Arc::clone(&campaign)));
    }
    let mut watcher = Client::new(place).await;
    while campaign.goes_on() {
        watcher.check().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut granted: Vec<Granted> = clients.join_all().await.into_iter().flatten().collect();
    watcher.check().await;
    campaign.late.check();
    let left = P::numbers(&mut watcher.conn, "SELECT count(*) FROM rowlock_waiter").await;
    assert_eq!(left, [0]);
    granted.sort_unstable();
    assert!(!granted.is_empty(), "no waiter had a turn");
    for pair in granted.windows(2) {
        if let [
            (name, position, fence),
            (next_name, next_position, next_fence),
        ] = pair
            && name == next_name
        {
            assert!(
                position < next_position && fence < next_fence,
                "{}: {pair:?}",
                NAMES[*name]
            );
        }
    }
}

async fn client<P: Place>(place: P, campaign: Arc<Campaign>) -> Vec<Granted> {
    let Campaign { holders, late, .. } = &*campaign;
    let mut client = Client::with_ttl(&place, LONG_TTL).await;
    let mut granted = Vec::new();
    while campaign.goes_on() {
        let n = rand::rng().random_range(0..NAMES.len());
        let params = client.ask(NAMES[n]);
        let asked = Instant::now();
        let (fence, position) = match late.passes_on(client.try_join(&params)).await {
            Some(JoinOutcome::Granted { fence }) => (fence, None),
            Some(JoinOutcome::Queued { position, .. }) => {
                let waits = Waits {
                    params: params.clone(),
                    position,
                };
                let leaves = rand::rng().random_bool(0.15);
                match turn(&mut client, &waits, asked, leaves, late).await {
                    Some(fence) => (fence, Some(position)),
                    None => continue,
                }
            }
            Some(joined) => panic!("{joined:?}"),
            None => continue,
        };
        assert!(
            !holders[n].swap(true, Ordering::SeqCst),
            "{} is held twice",
            NAMES[n]
        );
        if let Some(position) = position {
            campaign.had_turn.store(true, Ordering::SeqCst);
            granted.push((n, position, fence));
        }
        if rand::rng().random_bool(0.3) {
            let pause = rand::rng().random_range(0..4);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        assert!(holders[n].swap(false, Ordering::SeqCst));
        loop {
            let freed = client.try_release(params.grant_id, NAMES[n], fence);
            match late.passes_on(freed).await {
                Some(FreeOutcome::Released | FreeOutcome::Passed(_)) => break,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    }
    granted
}

/// Waits for a turn; its join was sent at `asked`. `None`: it left, or its window was over.
async fn turn<P: Place>(
    client: &mut Client<P>,
    waits: &Waits,
    asked: Instant,
    leaves: bool,
    late: &Late,
) -> Option<i64> {
    let name = waits.params.name.as_str();
    let began = Instant::now();
    // Its turn may have come before the answer of the join did.
    let mut waited = asked;
    loop {
        assert!(
            began.elapsed() < patience(),
            "a waiter of {name} was forgotten"
        );
        if leaves && began.elapsed() > Duration::from_millis(2) {
            let left = client.try_pass(name, waits.leaves());
            if late.passes_on(left).await.is_none() {
                continue;
            }
            return None;
        }
        let now = Instant::now();
        let looked = client.look(waits).await;
        // The window began after the last look that found it waiting.
        if matches!(looked, LookOutcome::Waiting { .. }) {
            waited = now;
        }
        match looked {
            LookOutcome::Granted => match client.try_confirm(waits).await {
                Some(ConfirmOutcome::Held { fence, .. }) => return Some(fence),
                None => {}
                Some(ConfirmOutcome::Gone) => {
                    late.lost(waited);
                    return None;
                }
            },
            LookOutcome::Waiting {
                is_orphaned: true, ..
            } => {
                let orphaned = client.try_pass(name, PassWhy::Orphaned);
                late.passes_on(orphaned).await;
            }
            LookOutcome::Waiting { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
            LookOutcome::Gone => {
                late.lost(waited);
                return None;
            }
        }
    }
}
