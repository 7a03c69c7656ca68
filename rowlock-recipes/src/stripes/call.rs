//! One call in a caller's transaction: its locks, and its statements.

use std::time::{Duration, Instant};

use super::seen::Used;
use super::{OnConnection, Quantities, Stripes, StripesError};
use rowlock::LockInTx;
use rowlock::extend::check_wait;
use rowlock::{Busy, Error, Name, TransactionError};

/// After this many busy stripes a call waits for the next one, because finding a stripe busy costs three round trips.
const BUSY: u32 = 1;

/// A client that met a locked stripe waits for the next stripe at once. One in this many calls asks without waiting,
/// to find out whether stripes are free again.
const ASKS: u32 = 8;

/// How long a call waits for one stripe before it goes on to another: longer than a transaction that sells, and much
/// shorter than a pause of a process.
const TURN: Duration = Duration::from_millis(100);

/// The quantities, and their sum.
pub(super) struct Found {
    pub(super) quantities: Vec<i64>,
    pub(super) sum: u64,
}

/// One call, its transaction, and the stripes that it has locked.
pub(super) struct Call<'a, S, T> {
    pub(super) stripes: &'a Stripes<S>,
    tx: &'a mut T,
    locked: Vec<usize>,
    /// How many stripes it found busy.
    busy: u32,
    /// When the call stops waiting.
    until: Option<Instant>,
}

impl<'a, S, T> Call<'a, S, T>
where
    S: Quantities,
    T: OnConnection<Connection = S::Connection>,
{
    pub(super) fn new(stripes: &'a Stripes<S>, tx: &'a mut T) -> Result<Self, Error> {
        if let Some(wait) = stripes.wait {
            check_wait(wait)?;
        }
        Ok(Self {
            stripes,
            tx,
            locked: Vec::new(),
            busy: 0,
            until: stripes.wait.map(|wait| Instant::now() + wait),
        })
    }

    pub(super) fn has_locked(&self, stripe: usize) -> bool {
        self.locked.contains(&stripe)
    }

    /// Whether the call may wait for a stripe: only for one after all that it has locked. So the stripes that calls
    /// wait for are in ascending order, and no two calls wait for each other.
    pub(super) fn may_wait_for(&self, stripe: usize) -> bool {
        self.locked.iter().all(|locked| *locked < stripe)
    }

    /// Locks a stripe if it is free, or soon free: it waits for it when most stripes are locked, and the call may wait
    /// for this one.
    pub(super) async fn lock_soon(&mut self, stripe: usize) -> Result<bool, StripesError> {
        let crowded = self.stripes.seen.is_crowded() && fastrand::u32(0..ASKS) > 0;
        if (self.busy >= BUSY || crowded) && self.may_wait_for(stripe) {
            return self.lock(stripe, Some(TURN)).await;
        }
        let is_locked = self.try_lock(stripe).await?;
        self.stripes.seen.met(!is_locked);
        self.busy += u32::from(!is_locked);
        Ok(is_locked)
    }

    async fn try_lock(&mut self, stripe: usize) -> Result<bool, StripesError> {
        let used = self.stripes.seen.used(stripe);
        let lock = self.request(vec![self.stripes.names[stripe].clone()], None);
        let locked = match lock.wait(Duration::ZERO).acquire().await {
            Ok(_) => Ok(true),
            Err(Error::WaitTimeout { busy, .. }) if busy.quarantine.is_some() => {
                return Err(self.quarantined(stripe, *busy).into());
            }
            Err(Error::WaitTimeout { .. }) => Ok(false),
            Err(error) => Err(error),
        };
        self.is_locked(used, locked)
    }

    /// Waits for a stripe: for the time that the caller has set, or a shorter turn. `false`: the turn is over.
    async fn lock(&mut self, stripe: usize, turn: Option<Duration>) -> Result<bool, StripesError> {
        let used = self.stripes.seen.used(stripe);
        let lock = self.request(vec![self.stripes.names[stripe].clone()], turn);
        let locked = match lock.acquire().await {
            // No turn comes while the database is in quarantine.
            Err(Error::WaitTimeout { busy, .. })
                if self.has_time() && busy.quarantine.is_none() =>
            {
                Ok(false)
            }
            locked => locked.map(|_| true),
        };
        self.is_locked(used, locked)
    }

    /// A transaction does not wait for the end of a quarantine.
    fn quarantined(&self, stripe: usize, busy: Busy) -> Error {
        Error::WaitTimeout {
            name: self.stripes.names[stripe].clone(),
            waited: Duration::ZERO,
            busy: Box::new(busy),
        }
    }

    fn has_time(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    fn request(&mut self, names: Vec<Name>, turn: Option<Duration>) -> LockInTx<'_, T> {
        let left = self
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        let lock = self.stripes.rowlock.in_tx(&mut *self.tx).lock_all(names);
        match left.into_iter().chain(turn).min() {
            Some(wait) => lock.wait(wait),
            None => lock,
        }
    }

    /// A stripe that an earlier call of the same transaction has locked is as good as one that this call has locked.
    fn is_locked(
        &mut self,
        used: Used,
        outcome: Result<bool, Error>,
    ) -> Result<bool, StripesError> {
        let locked = match outcome {
            Err(Error::Transaction(TransactionError::AlreadyLocked { .. })) => true,
            outcome => outcome?,
        };
        if locked {
            self.locked.push(used.stripe());
            self.tx.keep_until_end(used);
        }
        Ok(locked)
    }

    /// Locks all stripes, in ascending order. A stripe before one that is locked is not waited for: then the
    /// transaction has to begin again.
    pub(super) async fn lock_all(&mut self) -> Result<(), StripesError> {
        if self.locked.is_empty() {
            match self
                .request(self.stripes.names.to_vec(), Some(Duration::ZERO))
                .acquire()
                .await
            {
                Ok(_) => {
                    self.locked = (0..self.stripes.names.len()).collect();
                    return Ok(());
                }
                // One after the other: then an error names the stripe that is in the way.
                Err(
                    Error::Transaction(TransactionError::AlreadyLocked { .. })
                    | Error::WaitTimeout { .. },
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for stripe in 0..self.stripes.names.len() {
            if self.has_locked(stripe) {
            } else if self.may_wait_for(stripe) {
                while !self.lock(stripe, None).await? {}
            } else if !self.try_lock(stripe).await? {
                return Err(self.begin_again(stripe));
            }
        }
        Ok(())
    }

    /// [`Retry`](rowlock::Retry) begins the transaction again.
    pub(super) fn begin_again(&self, stripe: usize) -> StripesError {
        let name = &self.stripes.names[stripe];
        StripesError::Failed(Error::Conflict {
            what: format!("{name:?} has another holder"),
        })
    }

    /// Adds to a stripe, unless the result is below zero.
    pub(super) async fn add(&mut self, stripe: usize, by: i64) -> Result<bool, StripesError> {
        let connection = self.tx.on_connection();
        // There are at most `Stripes::MOST` of them.
        let number = i32::try_from(stripe).unwrap_or(i32::MAX);
        match self.stripes.sql.add(connection, number, by).await? {
            0 => Ok(false),
            1 => {
                self.stripes.seen.added(stripe, by);
                Ok(true)
            }
            rows => Err(Error::Transaction(TransactionError::NotOneRow { rows }).into()),
        }
    }

    /// Adds to several stripes, or changes nothing.
    pub(super) async fn add_all(&mut self, changes: &[(usize, i64)]) -> Result<(), StripesError> {
        for (at, (stripe, by)) in changes.iter().enumerate() {
            if self.add(*stripe, *by).await? {
                continue;
            }
            // The quantities were older than the locks. A caller may commit in spite of the error.
            for (stripe, by) in &changes[..at] {
                self.add(*stripe, -*by).await?;
            }
            return Err(self.begin_again(*stripe));
        }
        Ok(())
    }

    /// The quantities at one instant, which other transactions may change meanwhile.
    pub(super) async fn read(&mut self) -> Result<Found, StripesError> {
        let rows = self.stripes.sql.read(self.tx.on_connection()).await?;
        self.checked(rows)
    }

    /// The quantities under the locks.
    pub(super) async fn read_newest(&mut self) -> Result<Found, StripesError> {
        let connection = self.tx.on_connection();
        let rows = self.stripes.sql.read_newest(connection).await?;
        self.checked(rows)
    }

    fn checked(&self, rows: Vec<(i32, i64)>) -> Result<Found, StripesError> {
        let found = in_order(rows, self.stripes.names.len());
        let found = found.map_err(|detail| StripesError::Rows {
            name: self.stripes.name.clone(),
            detail,
        })?;
        self.stripes.seen.look(&found.quantities);
        Ok(found)
    }
}

/// Checks that there is one row for each stripe.
fn in_order(mut rows: Vec<(i32, i64)>, stripes: usize) -> Result<Found, String> {
    rows.sort_unstable();
    let numbers = rows.iter().map(|row| usize::try_from(row.0).ok());
    if !numbers.eq((0..stripes).map(Some)) {
        let found: Vec<i32> = rows.iter().map(|row| row.0).collect();
        return Err(format!(
            "the table has the stripes {found:?}, and one row is needed for each stripe from 0 to {}",
            stripes - 1
        ));
    }
    let mut sum: i64 = 0;
    for (stripe, quantity) in &rows {
        if *quantity < 0 {
            return Err(format!(
                "stripe {stripe} has {quantity}, which is below zero"
            ));
        }
        sum = sum
            .checked_add(*quantity)
            .ok_or("their sum does not fit into 63 bits")?;
    }
    Ok(Found {
        quantities: rows.into_iter().map(|row| row.1).collect(),
        sum: sum.unsigned_abs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_any_order_are_accepted_and_wrong_ones_are_named() {
        let found = in_order(vec![(2, 0), (0, 7), (1, 5)], 3).ok().unwrap();
        assert_eq!((found.quantities, found.sum), (vec![7, 5, 0], 12));
        for (rows, said) in [
            (vec![], "[]"),
            (vec![(0, 1)], "[0]"),
            (vec![(0, 1), (0, 1)], "[0, 0]"),
            (vec![(0, 1), (1, 1), (2, 1)], "from 0 to 1"),
            (vec![(1, 1), (2, 1)], "[1, 2]"),
            (vec![(0, 1), (-1, 1)], "[-1, 0]"),
            (vec![(0, 1), (1, -1)], "stripe 1 has -1"),
            (vec![(0, i64::MAX), (1, 1)], "63 bits"),
        ] {
            let error = in_order(rows, 2).err().unwrap();
            assert!(error.contains(said), "{error}");
        }
    }
}
