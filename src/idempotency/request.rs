//! [`Idempotency`]: the settings for a request for a key.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::begun::{Reconciled, UnknownStep};
use super::outcome_bounds::Bounds;
use super::waiting::KeyWait;
use crate::model::bounds::{check_ttl, check_wait, within};
use crate::model::{Error, Fingerprint, InvalidError, RecordKey};
use crate::runtime::Core;
use crate::store::verbs::record::ClaimParams;
use crate::transaction::Retry;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_RETENTION: Duration = Duration::from_hours(24);
const DEFAULT_REMEMBER_EXPIRED: Duration = Duration::from_hours(6 * 24);
const DEFAULT_MAX_ATTEMPTS: u32 = 5;
const DEFAULT_MAX_OUTCOME: usize = 1 << 20;
const MAX_MAX_OUTCOME: usize = 4 << 20;
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);
/// The shortest time for which a key is remembered after it was given up during its work.
const REMEMBER_BEGUN: Duration = Duration::from_hours(366 * 24);

/// Idempotency: an effect that happens once for a key. Made by
/// [`Rowlock::idempotency`](crate::Rowlock::idempotency); cloning is cheap.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let pool = sqlx::SqlitePool::connect(&url).await?;
/// # sqlx::raw_sql("CREATE TABLE payment (cents INTEGER)").execute(&pool).await?;
/// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
/// use rowlock::{Begun, Fingerprint, Outcome};
///
/// let request = Fingerprint::of(r#"{"cents":500}"#);
/// let begun = rowlock
///     .idempotency()
///     .run_in_tx(&pool, rowlock::Scope("customer:7").key("order-4711"), &request, async |mut tx| {
///         sqlx::query("INSERT INTO payment VALUES (500)").execute(&mut *tx).await?;
///         Outcome::json(&"captured")
///     })
///     .await?;
/// match begun {
///     Begun::New(outcome) | Begun::Replay(outcome) => println!("{outcome:?}"),
///     refused => println!("{refused:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it does nothing by itself"]
pub struct Idempotency {
    pub(super) core: Arc<Core>,
    pub(super) lease: Duration,
    retention: Duration,
    remember_expired: Duration,
    pub(super) wait: Duration,
    max_attempts: u32,
    max_outcome: usize,
    pub(super) retry: Retry,
    pub(super) reconcile: Option<Hook>,
}

type Hook =
    Arc<dyn Fn(UnknownStep) -> Pin<Box<dyn Future<Output = Reconciled> + Send>> + Send + Sync>;

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .field("remember_expired", &self.remember_expired)
            .field("max_attempts", &self.max_attempts)
            .field("max_outcome", &self.max_outcome)
            .finish_non_exhaustive()
    }
}

impl Idempotency {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        core.keep_clean();
        Self {
            core: Arc::clone(core),
            lease: DEFAULT_LEASE,
            retention: DEFAULT_RETENTION,
            remember_expired: DEFAULT_REMEMBER_EXPIRED,
            wait: Duration::ZERO,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            max_outcome: DEFAULT_MAX_OUTCOME,
            retry: Retry::new().owned_by(&core.lanes.tasks),
            reconcile: None,
        }
    }

    /// How long an attempt's lease lasts without a renewal, before others take over: 100 ms to 24 h, and more than
    /// twice the client's [`clock_error`](crate::Builder::clock_error); 30 s when not set. The lease is
    /// renewed in the background while the guard lives, so this setting matters after a crash or a pause.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long an outcome and the results of its steps are kept for replays: 1 s to 10 years, 24 h when not set.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long after the retention the key is remembered and refused ([`Begun::Expired`](crate::Begun::Expired)): 0
    /// to 10 years, 6 days when not set. Then the key is forgotten, and the work can run again.
    pub fn remember_expired(mut self, time: Duration) -> Self {
        self.remember_expired = time;
        self
    }

    /// The longest wait for the attempt of another caller, or for a transaction of [`run_in_tx`](Self::run_in_tx),
    /// before the result is [`Begun::InFlight`](crate::Begun::InFlight): at most 366 days, no wait when not set. If
    /// the attempt ends in that time, this call replays its outcome, or takes its key. An attempt or a transaction of
    /// this client tells its end, and its outcome, to all who wait; for those of other clients, one of the waiters
    /// asks the database, every 2 ms at first, at least every 40 ms. A waiting caller keeps no connection of a pool;
    /// [`run_in_tx`](Self::run_in_tx) describes when it needs one for a moment before it waits.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How many attempts may be abandoned (crash, or drop their guard) in a row before the key is
    /// [`Begun::Poisoned`](crate::Begun::Poisoned): 1 to 1000, 5 when not set. Attempts that complete, or are
    /// [released](crate::IdempotencyGuard::release), do not count. An attempt that was abandoned counts for an hour
    /// from the end of its lease: then the key may be tried again, as after a [`reset`](Self::reset). So a request
    /// that kills its process does so no more often than that in an hour, and requests that ran beside it are not
    /// refused for ever.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// The largest outcome, and the largest result of a step, in bytes: at most 4 MiB, 1 MiB when not set.
    /// `MySQL` and `MariaDB` keep no more than a little less than half of their `max_allowed_packet`.
    pub fn max_outcome(mut self, bytes: usize) -> Self {
        self.max_outcome = bytes;
        self
    }

    /// The policy with which [`run_in_tx`](Self::run_in_tx) tries its transaction again after a conflict.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry.owned_by(&self.core.lanes.tasks);
        self
    }

    /// Sets a hook that finds out whether an unknown step happened. rowlock calls it before it returns
    /// [`Begun::Unknown`](crate::Begun::Unknown).
    ///
    /// A hook that panics, or that has not ended after the time of a [`lease`](Self::lease), has found out nothing.
    ///
    /// Several processes may call the hook at the same time. It must only look (at the payment provider, for example,
    /// with the [`downstream_key`](UnknownStep::downstream_key)). Before you return [`Reconciled::NotHappened`], make
    /// sure that the step cannot happen later: its process may only be paused.
    pub fn reconcile<F>(mut self, hook: impl Fn(UnknownStep) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reconciled> + Send + 'static,
    {
        self.reconcile = Some(Arc::new(move |step| Box::pin(hook(step))));
        self
    }

    /// Whether to look at the record before the first claim: a client that has seen the key will probably find a
    /// replay, which needs no claim. On an engine with one writer a claim waits for all others.
    pub(super) fn may_be_there(&self, key: &RecordKey) -> bool {
        let is_known = self.core.seen_keys.see(key);
        is_known || self.core.server.capabilities.one_writer
    }

    pub(super) fn ask(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        seen: Option<i64>,
    ) -> ClaimParams {
        ClaimParams {
            key: key.clone(),
            attempt_id: Uuid::new_v4(),
            holder: Arc::clone(&self.core.holdings.settings.holder),
            fingerprint: *fingerprint,
            lease: self.lease,
            max_attempts: self.allowed_attempts(),
            database: self.core.server.database,
            retain: self.retention,
            remember: self.remember_for(),
            remember_begun: self.remember_begun_for(),
            seen,
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            retention: self.retention,
            remember: self.remember_for(),
            max_outcome: self.max_outcome.min(self.core.server.largest_outcome),
        }
    }

    pub(super) fn waiting(&self) -> KeyWait {
        KeyWait::new(self.wait)
    }

    /// How long a key is remembered after its attempt ended.
    fn remember_for(&self) -> Duration {
        self.retention + self.remember_expired
    }

    /// How long a key is remembered after it was given up during its work.
    pub(super) fn remember_begun_for(&self) -> Duration {
        self.remember_for().max(REMEMBER_BEGUN)
    }

    pub(super) fn allowed_attempts(&self) -> i32 {
        i32::try_from(self.max_attempts).unwrap_or(i32::MAX)
    }

    /// Checks the settings, without the database. Every call that begins an attempt checks them first; call this at
    /// the start of the server to find mistakes early.
    ///
    /// # Errors
    ///
    /// [`InvalidError::Duration`], [`InvalidError::Setting`].
    pub fn check(&self) -> Result<(), Error> {
        check_ttl("lease", self.lease)?;
        self.core
            .holdings
            .settings
            .check_lease("lease", self.lease)?;
        check_wait(self.wait)?;
        let second = Duration::from_secs(1);
        let bounds = "1 s to 10 years are allowed";
        within("retention", self.retention, second..=LONGEST, bounds)?;
        let bounds = "at most 10 years are allowed";
        within(
            "remember_expired",
            self.remember_expired,
            Duration::ZERO..=LONGEST,
            bounds,
        )?;
        if !(1..=1_000).contains(&self.max_attempts) {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "max_attempts",
                reason: "1 to 1000 are allowed",
            }));
        }
        if self.max_outcome > MAX_MAX_OUTCOME {
            return Err(Error::Invalid(InvalidError::Setting {
                setting: "max_outcome",
                reason: "at most 4 MiB are allowed",
            }));
        }
        Ok(())
    }
}
