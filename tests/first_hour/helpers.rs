//! Functions of the application that get a connection, and lock or pin in the transaction that is open there.

on_both! {
    use rowlock::{Error, Held, RetryTx, Rowlock, TransactionError};
    use sqlx::Connection as _;
    use sqlx::pool::PoolConnection;

    async fn pins(held: &Held, conn: &mut Connection) -> Result<(), Error> {
        held.pin(conn).await
    }

    async fn locks(rowlock: &Rowlock, conn: &mut Connection) -> Result<i64, Error> {
        Ok(rowlock.in_tx(conn).lock("stock").acquire().await?.fence())
    }

    async fn locks_in_a_pools(rowlock: &Rowlock, conn: &mut PoolConnection<Database>) -> Result<i64, Error> {
        Ok(rowlock.in_tx(conn).lock("stock").acquire().await?.fence())
    }

    async fn locks_in_sqlx_s(rowlock: &Rowlock, tx: &mut sqlx::Transaction<'_, Database>) -> Result<i64, Error> {
        Ok(rowlock.in_tx(tx).lock("stock:2").acquire().await?.fence())
    }

    async fn locks_again(rowlock: &Rowlock, tx: &mut RetryTx<Database>) -> Result<i64, Error> {
        locks(rowlock, tx).await
    }

    #[tokio::test]
    async fn a_helper_that_takes_a_connection_locks_and_pins_in_its_transaction() -> anyhow::Result<()> {
        let (_db, rowlock, pool) = shop().await;
        let held = rowlock.lock("x").acquire().await?;
        let mut tx = pool.begin().await?;
        pins(&held, &mut tx).await?;
        let first = locks(&rowlock, &mut tx).await?;
        tx.commit().await?;

        let second = rowlock.retry().run(&pool, async |mut tx| {
            locks_in_sqlx_s(&rowlock, tx.as_mut()).await?;
            locks_again(&rowlock, &mut tx).await
        }).await?;
        assert!(second > first);

        let mut conn = pool.acquire().await?;
        let mut tx = conn.begin().await?;
        let third = locks(&rowlock, &mut tx).await?;
        assert!(third > second);
        tx.rollback().await?;
        Ok(())
    }

    #[tokio::test]
    async fn a_connection_without_a_transaction_is_refused_by_name() -> anyhow::Result<()> {
        let (db, rowlock, pool) = shop().await;
        let held = rowlock.lock("x").acquire().await?;
        let mut conn = pool.acquire().await?;
        let refused = [
            pins(&held, &mut conn).await,
            locks(&rowlock, &mut conn).await.map(drop),
            locks_in_a_pools(&rowlock, &mut conn).await.map(drop),
            rowlock.in_tx(&mut *conn).version("stock").await.map(drop),
            rowlock.form_tokens().issue_in(&mut *conn, "ann").await.map(drop),
        ];
        for refused in refused {
            let Err(error @ Error::Transaction(TransactionError::Over { .. })) = refused else { panic!("{refused:?}") };
            assert!(error.to_string().contains("sqlx has begun none"), "{error}");
            assert!(!error.is_retryable());
        }
        assert!(held.is_held());
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_lock WHERE name = 'stock' AND grant_id IS NOT NULL").await, 0);
        Ok(())
    }
}
