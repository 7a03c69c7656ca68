//! Tasks that acquire permits: of read/write locks, and of semaphores.

use std::ops::Deref;
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Held, Mode, RwHeld, RwLock, Semaphore};
use tokio::time::{sleep, timeout};

use super::a_name;
use super::event::{Answer, Ask, Grant, Share, answered, is_in_session};
use super::permit::CAPACITY;
use super::worker::{MAX_WAIT, Task, failed, up_to};

enum Permit {
    Of(Held),
    Rw(RwHeld),
}

impl Deref for Permit {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Self::Of(held) => held,
            Self::Rw(held) => held,
        }
    }
}

/// The longest time that a caller waits who does not drop the future.
const TO_THE_END: Duration = Duration::from_hours(1);

impl Task {
    pub(super) async fn run_permits(self) {
        loop {
            let name = a_name();
            let share = a_share(&name);
            let permit = match rand::rng().random_range(0..10) {
                0..4 => self.try_permit(&name, share).await,
                4..7 => self.permit(&name, share, TO_THE_END).await,
                7 => self.permit(&name, share, up_to(8)).await,
                _ => self.permit(&name, share, up_to(MAX_WAIT)).await,
            };
            if let Some((permit, grant)) = permit {
                self.hold_permit(&name, permit, grant).await;
            }
            sleep(up_to(20)).await;
        }
    }

    /// Holds the permit for a moment, or for longer than its TTL. Looks at it, and changes it, meanwhile.
    async fn hold_permit(&self, name: &str, mut permit: Permit, grant: Grant) {
        for _ in 0..rand::rng().random_range(0..5) {
            let is_long = rand::rng().random_bool(0.1);
            sleep(up_to(if is_long { 250 } else { 25 })).await;
            match &mut permit {
                Permit::Rw(held) if rand::rng().random_bool(0.4) => {
                    self.change(name, held, grant).await;
                }
                _ => self.check(name, &permit, grant),
            }
        }
        if rand::rng().random_bool(0.7) {
            self.release(name, &permit, grant).await;
        } else {
            self.numbers.asked(name, Ask::Drop(grant));
        }
    }

    /// Downgrades, or upgrades. Now and then the future is dropped.
    async fn change(&self, name: &str, held: &mut RwHeld, grant: Grant) {
        let moment = if rand::rng().random_bool(0.3) {
            up_to(4)
        } else {
            TO_THE_END
        };
        // A reader's downgrade makes sure that it is a reader.
        if held.mode() == Mode::Write || rand::rng().random_bool(0.1) {
            let id = self.numbers.asked(name, Ask::Downgrade(grant));
            match timeout(moment, held.downgrade()).await {
                Ok(Ok(())) => answered(id, Answer::Downgraded),
                Ok(Err(error)) => not_changed(id, &error),
                Err(_) => {}
            }
        } else {
            let id = self.numbers.asked(name, Ask::Upgrade(grant));
            match timeout(moment, held.try_upgrade()).await {
                Ok(Ok(true)) => answered(id, Answer::Upgraded(held.fence())),
                Ok(Ok(false)) => answered(id, Answer::Busy(None)),
                Ok(Err(error)) => not_changed(id, &error),
                Err(_) => {}
            }
        }
    }

    async fn try_permit(&self, name: &str, share: Share) -> Option<(Permit, Grant)> {
        let id = self.numbers.asked(name, Ask::TryPermit(share));
        let tried = match share {
            Share::Read => self.rw_lock(name, id).try_read().await.map(rw),
            Share::Write => self.rw_lock(name, id).try_write().await.map(rw),
            Share::Weight(weight) => {
                let of = self.semaphore(name, id).weight(weight);
                of.try_acquire().await.map(|tried| tried.map(Permit::Of))
            }
        };
        granted(id, tried)
    }

    /// The future is dropped after a moment.
    async fn permit(&self, name: &str, share: Share, moment: Duration) -> Option<(Permit, Grant)> {
        let id = self.numbers.asked(name, Ask::Permit(share));
        let acquired = timeout(moment, async {
            match share {
                Share::Read => self.rw_lock(name, id).read().await.map(Permit::Rw),
                Share::Write => self.rw_lock(name, id).write().await.map(Permit::Rw),
                Share::Weight(weight) => {
                    let of = self.semaphore(name, id).weight(weight);
                    of.acquire().await.map(Permit::Of)
                }
            }
        });
        granted(id, acquired.await.ok()?.map(Some))
    }

    fn rw_lock(&self, name: &str, id: u64) -> RwLock {
        let lock = self.rowlock.rw_lock(name).holder(id.to_string());
        let lock = if is_in_session(id) {
            lock.in_session()
        } else {
            lock.ttl(self.ttl)
        };
        lock.wait(up_to(MAX_WAIT))
    }

    fn semaphore(&self, name: &str, id: u64) -> Semaphore {
        let of = self
            .rowlock
            .semaphore(name, CAPACITY)
            .holder(id.to_string());
        let of = if is_in_session(id) {
            of.in_session()
        } else {
            of.ttl(self.ttl)
        };
        of.wait(up_to(MAX_WAIT))
    }
}

/// What to ask for. Some names are semaphores, the others read/write locks.
pub(super) fn a_share(name: &str) -> Share {
    if name.ends_with(['3', '4']) {
        Share::Weight(rand::rng().random_range(1..=CAPACITY))
    } else if rand::rng().random_bool(0.6) {
        Share::Read
    } else {
        Share::Write
    }
}

fn rw(tried: Option<RwHeld>) -> Option<Permit> {
    tried.map(Permit::Rw)
}

/// Tells of the outcome of acquire `id`.
fn granted(id: u64, outcome: Result<Option<Permit>, Error>) -> Option<(Permit, Grant)> {
    match outcome {
        Ok(Some(permit)) => {
            let fence = permit.fence();
            answered(id, Answer::Granted(fence));
            return Some((permit, Grant { fence, by: id }));
        }
        Ok(None) | Err(Error::WaitTimeout { .. }) => answered(id, Answer::Busy(None)),
        Err(error) => failed(id, &error),
    }
    None
}

/// Tells of a change that was not confirmed.
fn not_changed(id: u64, error: &Error) {
    match error {
        Error::Lost { .. } => answered(id, Answer::Lost),
        error => failed(id, error),
    }
}
