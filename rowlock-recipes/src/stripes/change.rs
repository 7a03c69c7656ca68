//! Giving back, restocking and rebalancing; the sum.

use super::call::Call;
use super::{OnConnection, Quantities, Stripes, StripesError};
use rowlock::{Error, InvalidError};

impl<S: Quantities> Stripes<S> {
    /// Adds `n` to one stripe, a free one if there is one. Zero adds nothing, without a statement.
    ///
    /// # Errors
    ///
    /// [`StripesError::Rows`] and [`StripesError::Failed`], as [`take`](Self::take).
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn give_back<T>(&self, tx: &mut T, n: u64) -> Result<(), StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        let n = signed(n)?;
        if n == 0 {
            return Ok(());
        }
        let mut call = Call::new(self, tx)?;
        let mut stripe = fastrand::usize(0..self.names.len());
        while !call.lock_soon(stripe).await? {
            stripe = (stripe + 1) % self.names.len();
        }
        if call.add(stripe, n).await? {
            return Ok(());
        }
        // Nothing plus something is not below zero: the row is missing, or is below zero.
        call.read().await?;
        Err(call.begin_again(stripe))
    }

    /// Adds `n`, and moves quantities so that all stripes are within one of each other: to fill the stripes for the
    /// first time, and later. It locks all stripes.
    ///
    /// # Errors
    ///
    /// [`StripesError::Rows`] and [`StripesError::Failed`], as [`take`](Self::take).
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn restock<T>(&self, tx: &mut T, n: u64) -> Result<(), StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        let n = signed(n)?;
        self.level(tx, n).await.map(drop)
    }

    /// Moves quantities so that all stripes are within one of each other, and returns how much it moved. It locks all
    /// stripes, and waits for the transactions that hold them. Stripes run empty together without it ([the
    /// module](super)); use it after large takes or returns.
    ///
    /// # Errors
    ///
    /// [`StripesError::Rows`] and [`StripesError::Failed`], as [`take`](Self::take).
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn rebalance<T>(&self, tx: &mut T) -> Result<u64, StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        self.level(tx, 0).await
    }

    /// The sum of all stripes, read in one statement without a lock: exact at one instant, and as the transaction sees
    /// it (with its own changes; under REPEATABLE READ and SERIALIZABLE, as its snapshot shows it). Other transactions
    /// may change it before this returns.
    ///
    /// # Errors
    ///
    /// [`StripesError::Rows`]; [`StripesError::Failed`] with the error of the application's statement.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll the transaction back.
    pub async fn total<T>(&self, tx: &mut T) -> Result<u64, StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        let found = Call::new(self, tx)?.read().await?;
        Ok(found.sum)
    }

    async fn level<T>(&self, tx: &mut T, more: i64) -> Result<u64, StripesError>
    where
        T: OnConnection<Connection = S::Connection>,
    {
        let mut call = Call::new(self, tx)?;
        call.lock_all().await?;
        let found = call.read_newest().await?;
        let sum = found.sum.checked_add(more.unsigned_abs());
        let sum = signed(sum.unwrap_or(u64::MAX))?;
        let changes = to_level(&found.quantities, sum);
        call.add_all(&changes).await?;
        let moved = changes.iter().filter(|(_, by)| *by < 0);
        Ok(moved.map(|(_, by)| by.unsigned_abs()).sum())
    }
}

/// The largest quantity. The sum of two of them, and of thousands, fits into the column: where it does not fit, SQLite
/// would make it a float.
const MOST: i64 = 1_000_000_000_000_000;

/// A quantity as the application's statements get it.
pub(super) fn signed(n: u64) -> Result<i64, StripesError> {
    let n = i64::try_from(n).ok().filter(|n| *n <= MOST);
    n.ok_or_else(|| {
        Error::Invalid(InvalidError::Setting {
            setting: "n",
            reason: "a quantity and the sum of all stripes are at most 1,000,000,000,000,000",
        })
        .into()
    })
}

/// The changes that share `sum` out, so that the stripes are within one of each other. The stripes that have most get
/// the rest, so that little moves.
fn to_level(quantities: &[i64], sum: i64) -> Vec<(usize, i64)> {
    let stripes = i64::try_from(quantities.len()).unwrap_or(i64::MAX);
    let (each, mut rest) = (sum / stripes, sum % stripes);
    let mut order: Vec<usize> = (0..quantities.len()).collect();
    order.sort_by_key(|stripe| -quantities[*stripe]);
    let mut changes: Vec<(usize, i64)> = order
        .into_iter()
        .map(|stripe| {
            let share = each + i64::from(rest > 0);
            rest -= i64::from(rest > 0);
            (stripe, share - quantities[stripe])
        })
        .filter(|(_, by)| *by != 0)
        .collect();
    changes.sort_unstable();
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_within_one_and_moves_little() {
        assert_eq!(to_level(&[0, 9, 0], 9), [(0, 3), (1, -6), (2, 3)]);
        assert_eq!(to_level(&[3, 4, 3], 10), [], "it is level already");
        assert_eq!(to_level(&[4, 3, 5], 12), [(1, 1), (2, -1)]);
        assert_eq!(to_level(&[0, 0, 0], 2), [(0, 1), (1, 1)]);
        assert_eq!(to_level(&[i64::MAX], i64::MAX), []);
    }

    #[test]
    fn a_quantity_that_is_too_large_is_refused() {
        assert_eq!(signed(7).unwrap(), 7);
        assert_eq!(signed(10_u64.pow(15)).unwrap(), 10_i64.pow(15));
        for n in [10_u64.pow(15) + 1, u64::MAX] {
            let error = signed(n).unwrap_err().to_string();
            assert!(error.contains("at most 1,000,"), "{error}");
        }
    }
}
