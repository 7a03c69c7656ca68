//! Taking from a counter.

use super::call::{Call, Found};
use super::change::signed;
use super::{OnConnection, Quantities, Stripes, StripesError};

/// What was taken, and from which stripes: made by [`Stripes::take`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    parts: Vec<(i32, u64)>,
}

impl Taken {
    /// The stripes, in ascending order, and how much was taken from each.
    pub fn parts(&self) -> impl Iterator<Item = (i32, u64)> {
        self.parts.iter().copied()
    }
}

impl FromIterator<(usize, i64)> for Taken {
    fn from_iter<I: IntoIterator<Item = (usize, i64)>>(changes: I) -> Self {
        let parts = changes.into_iter().map(|(stripe, by)| {
            let stripe = i32::try_from(stripe).unwrap_or(i32::MAX);
            (stripe, by.unsigned_abs())
        });
        Self {
            parts: parts.collect(),
        }
    }
}

impl<S: Quantities> Stripes<S> {
    /// Takes `n`: from one stripe that has enough, or else from several. It takes all of `n` or nothing. Zero takes
    /// nothing, without a statement.
    ///
    /// It takes from a stripe that has enough and whose lock is free. If all such stripes are locked, it waits for one
    /// after the other, a short time for each. If no stripe has enough, it locks all of them. The locks end with the
    /// transaction.
    ///
    /// The call may read the stripes before it locks one. Under REPEATABLE READ this fixes the snapshot of the
    /// transaction's later reads. A stripe's lock protects its quantity and nothing else, because other transactions
    /// hold other stripes at the same time.
    ///
    /// # Errors
    ///
    /// [`StripesError::Short`] when the sum of all stripes was smaller than `n` at one instant during the call (under
    /// REPEATABLE READ and SERIALIZABLE: as the transaction's snapshot shows it). Nothing was changed. The transaction
    /// can go on. Without more to do, roll it back, or commit it.
    ///
    /// [`StripesError::Rows`] when the application's rows do not fit. [`StripesError::Failed`] with
    /// [`Error::Conflict`](rowlock::Error::Conflict) when the transaction has to begin again, because the stripes
    /// changed or it locked them in an order in which it must not wait; with
    /// [`Error::WaitTimeout`](rowlock::Error::WaitTimeout) after [`wait`](Self::wait); with the errors of
    /// [`LockInTx::acquire`](rowlock::LockInTx::acquire) and of the application's statements. After these, roll back.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn take<T>(&self, tx: &mut T, n: u64) -> Result<Taken, StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        let n = signed(n)?;
        if n == 0 {
            return Ok(Taken::default());
        }
        let mut call = Call::new(self, tx)?;
        if let Some(stripe) = call.take_from_one(n).await? {
            return Ok([(stripe, n)].into_iter().collect());
        }
        call.take_from_several(n).await
    }
}

impl<S, T> Call<'_, S, T>
where
    S: Quantities,
    T: OnConnection<Connection = S::Connection>,
{
    /// Takes `n` from one stripe. `None`: no stripe has as much.
    async fn take_from_one(&mut self, n: i64) -> Result<Option<usize>, StripesError> {
        let seen = &self.stripes.seen;
        let mut has_looked = !seen.is_fresh();
        if has_looked {
            self.look(n).await?;
        }
        // Those that this call found locked.
        let mut busy: Vec<usize> = Vec::new();
        loop {
            let untried = |stripe| !self.has_locked(stripe) && !busy.contains(&stripe);
            let Some(stripe) = seen.pick(n, untried) else {
                if busy.iter().any(|stripe| self.may_wait_for(*stripe)) {
                    busy.clear();
                } else if let Some(stripe) = busy.first() {
                    return Err(self.begin_again(*stripe));
                } else if has_looked {
                    return Ok(None);
                }
                self.look(n).await?;
                has_looked = true;
                continue;
            };
            if !self.lock_soon(stripe).await? {
                busy.push(stripe);
                continue;
            }
            if self.add(stripe, -n).await? {
                return Ok(Some(stripe));
            }
            // Others have taken from it since the look.
            seen.has_less(stripe, n);
            self.look(n).await?;
            has_looked = true;
        }
    }

    /// Fails when the stripes have less than `n` together.
    async fn look(&mut self, n: i64) -> Result<(), StripesError> {
        let found = self.read().await?;
        self.enough(&found, n)
    }

    fn enough(&self, found: &Found, n: i64) -> Result<(), StripesError> {
        if found.sum >= n.unsigned_abs() {
            return Ok(());
        }
        Err(StripesError::Short {
            name: self.stripes.name.clone(),
            asked: n.unsigned_abs(),
            left: found.sum,
        })
    }

    async fn take_from_several(&mut self, n: i64) -> Result<Taken, StripesError> {
        self.lock_all().await?;
        let found = self.read_newest().await?;
        self.enough(&found, n)?;
        let changes = largest_first(&found.quantities, n);
        self.add_all(&changes).await?;
        Ok(changes.into_iter().collect())
    }
}

/// How much to take from which stripes, so that few change. They have `n` together.
fn largest_first(quantities: &[i64], n: i64) -> Vec<(usize, i64)> {
    let mut stripes: Vec<_> = quantities.iter().copied().enumerate().collect();
    stripes.sort_by_key(|(_, quantity)| -quantity);
    let mut left = n;
    let mut changes = Vec::new();
    for (stripe, quantity) in stripes {
        if left == 0 {
            break;
        }
        let part = quantity.min(left);
        changes.push((stripe, -part));
        left -= part;
    }
    changes.sort_unstable();
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_stripes_are_emptied() {
        assert_eq!(largest_first(&[1, 5, 3], 7), [(1, -5), (2, -2)]);
        assert_eq!(largest_first(&[1, 5, 3], 9), [(0, -1), (1, -5), (2, -3)]);
        assert_eq!(largest_first(&[4, 4], 4), [(0, -4)]);
    }
}
